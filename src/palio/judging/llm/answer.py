"""A model's reply is read tolerantly in form and strictly in meaning; what is neither is a reason.

Tolerated: thinking tags, code fences, text around the object, trailing commas, Python's names for
JSON's constants, numbers in quotation marks. Not tolerated: a value that is no bin, gates out of
order, two objects that differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from palio.records.verdict import QUALITY_BINS

MAX_REPLY = 1_000_000
"""Characters; an answer has about 1,500, thinking of 128 k tokens about 500,000."""
MAX_QUOTE = 2_000
_THOUGHT = re.compile(
    r"<(think|thinking|reasoning|thought|analysis)>.*?</\1>", re.DOTALL | re.IGNORECASE
)
_CLOSED = re.compile(r"^.*</(?:think|thinking|reasoning|thought|analysis)>", re.DOTALL | re.I)
_OPENED = re.compile(r"<(?:think|thinking|reasoning|thought|analysis)>.*\Z", re.DOTALL | re.I)
_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMA = re.compile(rf"({_STRING})|,(\s*[}}\]])", re.DOTALL)
_NAMES = re.compile(rf"({_STRING})|\b(True|False|None)\b", re.DOTALL)
_JSON_NAMES = {"True": "true", "False": "false", "None": "null"}


class UnusableError(Exception):
    """A reply that gives no verdict; `reason` is a short name, the message one sentence."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason
        self.what = what


class Citation(NamedTuple):
    """One answered gate: whether it passed, and what is said to show it."""

    gate: int
    passed: bool
    step: int | None
    quote: str
    data: tuple[str, ...]


class Answer(NamedTuple):
    """A usable reply.

    Attributes:
        value: the bin that the model gave.
        gates: its answers, 1 up to the first that failed.
    """

    value: float
    gates: tuple[Citation, ...]
    explanation: str

    @property
    def by_gates(self) -> float:
        """The bin that its gates give."""
        return QUALITY_BINS[sum(one.passed for one in self.gates)]


def read_answer(content: str | None) -> Answer:
    """The answer that a reply holds.

    Raises:
        UnusableError: it holds none.
    """
    if content is None:
        raise UnusableError("null_reply", "the reply has no content")
    if not content.strip():
        raise UnusableError("empty_reply", "the reply is empty")
    if len(content) > MAX_REPLY:
        raise UnusableError("unreadable_reply", f"the reply has over {MAX_REPLY} characters")
    found = list(_objects(_without_thinking(content)))
    if not found and -1 < content.find("{") < content.find("<"):
        found = list(_objects(content))  # the tag stands in a quote
    if not found:
        start = " ".join(content.split())[:80]
        raise UnusableError("unreadable_reply", f"no verdict stands in the reply: {start!r}")
    answers = [_answer(one) for one in found]
    if any(one != answers[0] for one in answers):
        raise UnusableError("unreadable_reply", "the reply holds verdicts that differ")
    return answers[0]


def _without_thinking(content: str) -> str:
    text = _THOUGHT.sub(" ", content)
    text = _CLOSED.sub(" ", text)  # templates that open the tag in the prompt
    return _OPENED.sub(" ", text)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The verdicts of a text: JSON objects with gates that stand in no other."""
    decoder = json.JSONDecoder()
    for candidate in (text, _repaired(text)):
        at, found = 0, []
        while (at := candidate.find("{", at)) >= 0:
            try:
                value, at = decoder.raw_decode(candidate, at)
            except (ValueError, RecursionError):
                at += 1
                continue
            found.append(value)
        usable = [one for one in found if "gates" in one]
        if usable:
            yield from usable
            return


def _repaired(text: str) -> str:
    text = _NAMES.sub(lambda m: m.group(1) or _JSON_NAMES[m.group(2)], text)
    return _COMMA.sub(lambda m: m.group(1) or m.group(2), text)


def _answer(value: dict[str, Any]) -> Answer:
    stated = value.get("value")
    if isinstance(stated, str):
        try:
            stated = float(stated.strip())
        except ValueError:
            stated = None
    if not isinstance(stated, int | float) or isinstance(stated, bool):
        raise UnusableError("unreadable_reply", "the value is no number")
    if not any(abs(stated - one) < 1e-9 for one in QUALITY_BINS):
        allowed = ", ".join(f"{one:g}" for one in QUALITY_BINS)
        raise UnusableError("out_of_bin", f"the value {stated:g} is none of {allowed}")
    given = value["gates"]
    if not isinstance(given, list) or not given:
        raise UnusableError("unreadable_reply", "`gates` is no list of answers")
    gates = tuple(_citation(one, at) for at, one in enumerate(given[:4], start=1))
    first = next((at for at, one in enumerate(gates, start=1) if not one.passed), len(gates))
    gates = gates[:first]
    if gates[-1].passed and len(gates) < 4:
        raise UnusableError("inconsistent", f"gate {len(gates) + 1} is not answered")
    explanation = value.get("explanation")
    text = explanation if isinstance(explanation, str) else ""
    return Answer(round(float(stated), 1), gates, text[:MAX_QUOTE])


def _citation(value: Any, expected: int) -> Citation:
    if not isinstance(value, dict) or not isinstance(value.get("passed"), bool):
        raise UnusableError("unreadable_reply", f"gate {expected} has no `passed`")
    if value.get("gate", expected) != expected:
        raise UnusableError("inconsistent", f"gate {expected} is answered out of order")
    step = value.get("step")
    if isinstance(step, str) and step.strip().isdecimal():
        step = int(step)
    data = value.get("data")
    if isinstance(data, str):
        data = [data]
    words = [str(one)[:MAX_QUOTE] for one in data if one] if isinstance(data, list) else []
    quote = value.get("quote")
    return Citation(
        gate=expected,
        passed=value["passed"],
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
        quote=quote[:MAX_QUOTE] if isinstance(quote, str) else "",
        data=tuple(words[:16]),
    )
