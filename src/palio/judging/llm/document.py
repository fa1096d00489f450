"""A judge sees the whole record, each piece quoted, in the order in which it happened.

Nothing is shortened: results that were cut once made judges accuse honest agents of fabrication.
A record too long for a model's context is for the caller to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from palio.judging.evidence import BYTES_PER_TOKEN
from palio.judging.llm.quoting import Delimited, Quoting
from palio.judging.thinking import written_text
from palio.records.base import bytes_digest, digest
from palio.records.message import Message
from palio.records.trajectory import DispatchEvent, InferenceEvent, Trajectory

PACKAGE = "palio.judging.llm"
END = "That is the whole record. Answer with the JSON object alone."


class Prompt(NamedTuple):
    """The instruction to the judge and the form of its answer.

    Attributes:
        digest: of both; part of the identity of whoever judges by them.
    """

    system: str
    schema: dict[str, Any]
    digest: str


class Piece(NamedTuple):
    """One quotation: its head is the host's, its text is not."""

    head: str
    text: str


@cache
def packaged_prompt() -> Prompt:
    """The prompt that is shipped."""
    folder = files(PACKAGE)
    return prompt_of(folder.joinpath("prompt.md").read_text(encoding="utf-8"))


def prompt_of(system: str) -> Prompt:
    """A prompt with another instruction and the same form of answer."""
    data = files(PACKAGE).joinpath("answer.schema.json").read_bytes()
    schema = msgspec.json.decode(data)
    return Prompt(system, schema, digest([bytes_digest(system.encode()), schema]))


DELIMITED = Delimited()


def document(trajectory: Trajectory, quoting: Quoting = DELIMITED) -> str:
    """The record as one text.

    Args:
        trajectory: the run; only its events and query are shown, never what it claims beside.
        quoting: how untrusted text is set apart; tests alone give another.
    """
    held = list(pieces(trajectory))
    mark = quoting.mark(piece.text for piece in held)
    blocks = [quoting.block(mark, piece.head, piece.text) for piece in held]
    return "\n".join([f"MARK of this record: {mark}", *blocks, END])


def pieces(trajectory: Trajectory) -> Iterator[Piece]:
    """Everything of a run that a judge must see; agent's and shop's text stands in `text` alone."""
    yield Piece("step=- part=request", trajectory.query)
    shown: set[str] = {trajectory.query}
    for event in trajectory.events:
        if isinstance(event, DispatchEvent):
            yield from _dispatched(event)
            shown.add(event.result)
        else:
            yield from _inferred(event, shown)


def _dispatched(event: DispatchEvent) -> Iterator[Piece]:
    yield Piece(f"step={event.seq} part=call", f"{event.tool} {event.arguments}")
    beside = [event.error, *event.warnings, event.fault.what if event.fault else ""]
    yield Piece(
        f"step={event.seq} part=result", "\n".join([event.result, *(one for one in beside if one)])
    )


def _inferred(event: InferenceEvent, shown: set[str]) -> Iterator[Piece]:
    """What the agent told the model beside the record, and what the model wrote."""
    for message in event.request:
        for text in (message.content, message.reasoning_content):
            if text and not _repeats(text, message, shown):
                yield Piece(f"step={event.seq} part=prompt", f"{message.role}: {text}")
                shown.add(text)
    completion = event.completion
    if completion is None:
        what = event.fault.what if event.fault else "no completion"
        yield Piece(f"step={event.seq} part=failed", what)
        return
    tokens = len(written_text(completion).encode("utf-8", "replace")) // BYTES_PER_TOKEN
    if completion.reasoning_content and not completion.rationalised:
        head = f"step={event.seq} part=thinking tokens={tokens}"
        yield Piece(head, completion.reasoning_content)
    if completion.content:
        yield Piece(f"step={event.seq} part=content tokens={tokens}", completion.content)
        shown.add(completion.content)
    asked = [f"{call.function.name} {call.function.arguments}" for call in completion.tool_calls]
    if asked:
        yield Piece(f"step={event.seq} part=asked tokens={tokens}", "\n".join(asked))
    if not (completion.reasoning_content or completion.content or asked):
        yield Piece(f"step={event.seq} part=content tokens=0", "")


def _repeats(text: str, message: Message, shown: set[str]) -> bool:
    """Whether a prompt only repeats what stands in the record; a tool message adds warnings."""
    if text in shown:
        return True
    head = text.split("\nWarning: ", 1)[0]
    return message.role == "tool" and head in shown
