"""The chat text of pretrained models in their own vocabulary: palio's template or another one.

With another template a conversation that it rewrites is no row; its reason is counted and told.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from palio.records import ConfigError, InputError, Message, bytes_digest
from palio.train.backends.qwen_template import QWEN3, marked, qwen3_template
from palio.train.backends.templates import check_template, prompt_segments, row_segments
from palio.train.codec import Talk
from palio.train.rl.tokens import PROBE
from palio.train.text import END, REPLY, Segment, assistant_text, chat_template, segments
from palio.train.tokenizer import Encoded

LOG = logging.getLogger(__name__)
TEMPLATE = "chat_template_tools.jinja"
SIGNATURES = "signatures"
"""Name in a recipe of the template that lists one line a tool."""
_FILES = {SIGNATURES: "chat_template_signatures.jinja"}
_HEAD = (
    "# Tools\n\nCall a function by writing one block for each call:\n<tool_call>\n"
    '{"name": "...", "arguments": {...}}\n</tool_call>\n\n'
)


def schema_list(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools as JSON schemas, one a line: 1,500 tokens of SmolLM2's for the seven tools."""
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    return "The functions, as JSON schemas:\n<tools>" + listed


def signature_list(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools as signatures, one a line: 345 tokens of SmolLM2's for the seven tools."""
    lines = []
    for tool in tools:
        told = tool["function"]
        parameters = told.get("parameters") or {}
        required = parameters.get("required") or ()
        names = ", ".join(
            name
            + ("" if name in required else "?")
            + ("=" + "|".join(map(str, enum)) if (enum := _enum(schema)) else "")
            for name, schema in (parameters.get("properties") or {}).items()
        )
        lines.append(f"\n{told['name']}({names}): {told.get('description') or ''}")
    return "The functions; arguments with a question mark may be left out:\n<tools>" + "".join(
        lines
    )


def _enum(schema: Any) -> Sequence[Any]:
    """The values that a parameter may have; a schema may also be `true`."""
    found = schema.get("enum") if isinstance(schema, Mapping) else None
    return found if isinstance(found, list | tuple) else ()


Listing = Callable[[Sequence[Mapping[str, Any]]], str]
_LISTINGS: dict[str, Listing] = {TEMPLATE: schema_list, _FILES[SIGNATURES]: signature_list}


def template_text(named: str) -> str:
    """The chat template that a recipe names: "" for the model's or our own, a name, or a file.

    Qwen3's own, by name or from a file of a model, gets generation marks.

    Raises:
        ConfigError: there is no such file.
        MissingDependencyError: Qwen3's is named, and TRL, which ships it, is not installed.
    """
    if named in _FILES:
        return chat_template(_FILES[named])
    if named == QWEN3:
        return qwen3_template()
    try:
        text = Path(named).read_text("utf-8") if named else ""
        return marked(text) or text
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the chat template cannot be read: {error}",
            where=named,
            remedy=f"name a file, {SIGNATURES!r}, {QWEN3!r}, or leave `template` empty",
        ) from error


def tool_segments(
    messages: Sequence[Message], tools: Sequence[Any] = (), listing: Listing = schema_list
) -> Iterator[Segment]:
    """What the chat template writes, in pieces.

    Args:
        messages: the conversation.
        tools: records or plain nested OpenAI schemas.
        listing: how tools are shown; `schema_list` is that of `chat_template_tools.jinja`.
    """
    if tools:
        system = bool(messages) and messages[0].role == "system"
        opening = (messages[0].content or "") if system else ""
        plain = [msgspec.to_builtins(tool) for tool in tools]
        head = (f"{opening}\n\n" if opening else "") + _HEAD + listing(plain) + "\n</tools>"
        yield Segment(f"<|im_start|>system\n{head}{END}\n", False)
        messages = messages[1:] if system else messages
    yield from segments(messages)


class PretrainedCodec:
    """`codec.Codec` over a tokenizer of `transformers`.

    A turn is encoded by itself, as it is sampled: whole text could be cut differently at the
    edge of a turn, and then training would see other ids than sampling.

    Attributes:
        refused: conversations that were no rows, by reason; see `templates.row_segments`.

    Args:
        tokenizer: a fast tokenizer with the ChatML marks.
        template: another chat template, see `templates`; "" for the tokenizer's where that is one
            that conversations can be trained with, as a checkpoint's is, else for ours.

    Raises:
        InputError: the vocabulary has no end mark.
        ConfigError: `templates.check_template` refuses the template.
    """

    def __init__(self, tokenizer: Any, template: str = "") -> None:
        self.tokenizer = tokenizer
        ours = {chat_template(name): listing for name, listing in _LISTINGS.items()}
        marks = tokenizer.special_tokens_map.items()
        self._marks = {name: str(mark) for name, mark in marks if not isinstance(mark, list)}
        held = getattr(tokenizer, "chat_template", None)
        if not template:
            keeps = held in ours or self._keeps(held)
            template = str(held) if keeps else chat_template(TEMPLATE)
        self.template = template
        self._listing = ours.get(template)
        self._every = self._listing is not None or check_template(template, self._marks)
        self.refused: Counter[str] = Counter()
        self.tokenizer.chat_template = template
        found = tokenizer.convert_tokens_to_ids(END)
        if found is None or found == tokenizer.unk_token_id:
            raise InputError(
                f"the tokenizer has no entry {END!r}",
                remedy="choose a model with ChatML marks, such as Qwen3 or SmolLM2",
            )
        self.end = int(found)
        self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else found)

    def _keeps(self, held: Any) -> bool:
        """Whether the tokenizer's own template is one to train with; most models' are not."""
        try:
            check_template(str(held or ""), self._marks)
        except ConfigError:
            return False
        return True

    @property
    def template_digest(self) -> str:
        """Digest of the chat template."""
        return bytes_digest(self.template.encode())

    def encode(self, text: str) -> list[int]:
        """Ids of a text; chat marks in it become their tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids, chat marks included."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def encode_talks(self, talks: Sequence[Talk]) -> list[Encoded]:
        """Ids and masks of whole conversations; no ids for one that the template rewrites.

        Such a conversation is counted in `refused` and told in the log. One that ends in `PROBE` is
        asked for its prompt, which is what the template writes.

        Raises:
            ConfigError: the template rewrites all of several conversations.
        """
        refused: Counter[str] = Counter()
        made = []
        for talk in talks:
            pieces, why = self._row(talk)
            made.append(self._encode(pieces))
            refused.update([why] if why else [])
        if refused:
            self._tell(refused, len(made))
        return made

    def _row(self, talk: Talk) -> tuple[Sequence[Segment], str]:
        """The pieces of a conversation, or why it is no row."""
        messages, tools = talk.messages, talk.tools
        if self._listing is not None:
            return list(tool_segments(messages, tools, self._listing)), ""
        if messages and messages[-1] is PROBE:
            before = self.segments(messages[:-1], tools)
            opened = (Segment(REPLY, False), Segment(assistant_text(PROBE) + END, True))
            return [*before, *opened], ""
        return row_segments(self.template, messages, tools, self._marks, every=self._every)

    def _tell(self, refused: Counter[str], asked: int) -> None:
        """Count, and say so once for each reason, or for each call about many conversations."""
        new = refused.keys() - self.refused.keys()
        self.refused += refused
        count = sum(refused.values())
        told = "; ".join(f"{why} ({n})" for why, n in sorted(refused.items()))
        if 1 < asked == count:
            raise ConfigError(
                f"none of {asked} conversations can be trained on: {told}",
                remedy="leave `template` empty for palio's own, which keeps every turn",
            )
        if new or asked > 1:
            LOG.warning("%d of %d conversations are left out: %s", count, asked, told)

    def _encode(self, pieces: Sequence[Segment]) -> Encoded:
        made = Encoded([], [])
        for trained, run in groupby(pieces, key=lambda part: part.trained):
            texts = [part.text for part in run]
            # two assistant turns never touch, so a run of trained parts is one turn
            ids = self.encode("".join(texts))
            made.ids.extend(ids)
            made.trained.extend([trained] * len(ids))
        return made

    def segments(self, messages: Sequence[Message], tools: Sequence[Any]) -> Iterator[Segment]:
        """The pieces of a conversation that the model is to answer, as the template writes them."""
        if self._listing is None:
            return iter(prompt_segments(self.template, messages, tools, self._marks))
        return tool_segments(messages, tools, self._listing)
