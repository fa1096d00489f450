"""What a judge quotes is looked up in the record: the words, in the step, at the time.

Both sides are cut into tokens by `palio.judging.words`: compatibility forms are resolved, case,
white space, punctuation and invisible characters do not count, 1,299.00 equals 1299. A quote occurs
where its tokens stand side by side, in order; an ellipsis inside it may leave tokens out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from palio.judging.citing import analyses, cites
from palio.judging.evidence import BYTES_PER_TOKEN, MIN_TOKENS
from palio.judging.seen import Seen
from palio.judging.thinking import Sentence, Thought, thought, written_text
from palio.judging.words import fold, lexicon, tokens
from palio.records.trajectory import DispatchEvent, InferenceEvent, Trajectory
from palio.world.arguments import CATALOGUE_TOOLS

MIN_QUOTE = 5
"""Letters and digits of a quote; "and" occurs everywhere and shows nothing."""
_ESCAPE = re.compile(r"\\u\{([0-9a-fA-F]{1,6})\}")
_ELLIPSIS = re.compile(r"\.{3,}|…|\[…\]|\[\.\.\.\]")
_BREAK = "\n"
"""Stands between texts of a result, so that no datum spans two of them."""


class Trace:
    """The record of one run; each part is read when something is first asked of it.

    Attributes:
        long: step of the first completion of 30 tokens or more, None if there is none.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._query = trajectory.query
        self.long = next(
            (
                event.seq
                for event in trajectory.events
                if isinstance(event, InferenceEvent)
                and event.completion is not None
                and len(written_text(event.completion).encode("utf-8", "replace"))
                >= MIN_TOKENS * BYTES_PER_TOKEN
            ),
            None,
        )

    @cached_property
    def _own(self) -> dict[int, list[str]]:
        """Step -> tokens of its thinking, without what was copied from a prompt."""
        found: dict[int, list[str]] = {}
        prompts: list[str] = []
        for event in self._trajectory.events:
            if not isinstance(event, InferenceEvent):
                continue
            prompts += [
                fold(text)
                for message in event.request
                if message.role != "tool"
                for text in (message.content, message.reasoning_content)
                if text
            ]
            if event.completion is not None:
                sentences = thought(event, prompts).sentences
                found[event.seq] = [token for one in sentences for token in one.tokens]
        return found

    @cached_property
    def _results(self) -> list[tuple[DispatchEvent, list[str], frozenset[str]]]:
        return [(event, *_texts(event)) for event in self._shown]

    @cached_property
    def _rows(self) -> list[tuple[DispatchEvent, list[tuple[str, list[str]]]]]:
        return [(event, _rows(event)) for event in self._shown]

    @cached_property
    def _shown(self) -> list[DispatchEvent]:
        return [one for one in self._trajectory.dispatches if one.tool in CATALOGUE_TOOLS]

    def step_of(self, quote: str, step: int | None) -> int | None:
        """The step whose own thinking holds a quote: the one named, else the first, else None.

        What was copied from a prompt is not the model's own.
        """
        parts = _parts(quote)
        if sum(len(token) for part in parts for token in part) < MIN_QUOTE:
            return None
        steps = [step, *self._own] if step is not None else list(self._own)
        return next((at for at in steps if _occurs(parts, self._own.get(at, []))), None)

    def thinks(self, step: int, datum: str) -> bool:
        """Whether the thinking of a step names a datum."""
        return _occurs(_parts(datum), self._own.get(step, []))

    def held(self, datum: str, before: int) -> bool:
        """Whether a result earlier than step `before` holds a datum."""
        parts = _parts(datum)
        for event, shown, names in self._results:
            if event.seq >= before:
                return False
            if _occurs(parts, shown) or _occurs(_unnamed(parts, names), shown):
                return True
        return False

    def owners(self, datum: str, before: int) -> set[str]:
        """Ids of the products that results before a step show with a datum."""
        parts = _parts(datum)
        return {
            product_id
            for event, rows in self._rows
            if event.seq < before
            for product_id, shown in rows
            if _occurs(parts, shown)
        }

    def results_before(self, step: int) -> bool:
        """Whether any catalogue result came before a step."""
        return any(event.seq < step for event in self._shown)

    def seen(self, step: int, mentioned: set[str]) -> Seen:
        """What the tools had shown before a step, of the tokens that are `mentioned`."""
        seen = Seen(self._query, mentioned)
        for event in self._shown:
            if event.seq < step:
                seen.add(event)
        return seen

    def told(self, quote: str, step: int) -> tuple[bool, bool]:
        """Whether a quote refers to earlier results, and whether it names a datum of theirs."""
        words = tokens(fold(quote))
        seen = self.seen(step, set(words))
        one = Thought(step, [Sentence(quote, words)])
        datum = cites(one, seen, lexicon()) is not None
        return datum or analyses(one, seen, lexicon()) is not None, datum

    def telling(self, datum: str) -> bool:
        """Whether a datum says anything: some token is neither the request's nor a generic word."""
        seen = Seen(self._query, set())
        return any(len(token) > 2 and seen.new(token) for token in tokens(fold(datum)))


def occurs(part: str, text: str) -> bool:
    """Whether a quote stands in a text."""
    return _occurs(_parts(part), tokens(fold(text)))


def _parts(quote: str) -> list[list[str]]:
    text = _ESCAPE.sub(lambda m: chr(min(int(m.group(1), 16), 0x10FFFF)), quote)
    found = [tokens(fold(part)) for part in _ELLIPSIS.split(text)]
    return [part for part in found if part]


def _unnamed(parts: list[list[str]], names: frozenset[str]) -> list[list[str]]:
    """Without the field name in front: `"price": 150` is the datum 150."""
    if len(parts) != 1:
        return []
    part = parts[0]
    at = 0
    while at < len(part) and part[at] in names:
        at += 1
    return [part[at:]] if 0 < at < len(part) else []


def _occurs(parts: list[list[str]], held: Sequence[str]) -> bool:
    """Whether the parts stand in `held`, one after the other."""
    if not parts:
        return False
    at = 0
    for part in parts:
        found = _find(part, held, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _find(part: list[str], held: Sequence[str], start: int) -> int:
    first, size = part[0], len(part)
    for at in range(start, len(held) - size + 1):
        if held[at] == first and list(held[at : at + size]) == part:
            return at
    return -1


def _texts(event: DispatchEvent) -> tuple[list[str], frozenset[str]]:
    """Tokens of what a result says, and of the names of its fields."""
    names: set[str] = set()
    shown = _tokens_of((*_leaves(_value(event), names), event.error, *event.warnings))
    return shown, frozenset(token for name in names for token in tokens(fold(name)))


def _rows(event: DispatchEvent) -> list[tuple[str, list[str]]]:
    """The products that a result shows: id, and tokens of all that it says of each."""
    found: list[tuple[str, list[str]]] = []
    waiting = [_value(event)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict) and "product_id" in one:
            found.append((fold(str(one["product_id"])), _tokens_of(_leaves(one, set()))))
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found


def _value(event: DispatchEvent) -> Any:
    try:
        return msgspec.json.decode(event.result)
    except (msgspec.DecodeError, RecursionError):
        return event.result


def _tokens_of(texts: Iterable[str]) -> list[str]:
    return [token for text in texts if text for token in (*tokens(fold(text)), _BREAK)]


def _leaves(value: Any, names: set[str]) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            names.update(one)
            waiting += reversed(one.values())
        elif isinstance(one, list):
            waiting += reversed(one)
        elif one is not None and not isinstance(one, bool):
            yield str(one)
