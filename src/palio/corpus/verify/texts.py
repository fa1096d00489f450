"""Keys, words and runs of a problem, written from their description in docs/leak-guard.md alone."""

from __future__ import annotations

import hashlib
import itertools
import json
import unicodedata
from collections.abc import Collection, Iterator

from palio.corpus.verify.shapes import Item, Task


def folded(text: str) -> str:
    """NFKC, lower case, no format characters, single spaces; repeated until nothing changes."""
    previous = None
    while text != previous:
        previous = text
        lowered = unicodedata.normalize("NFKC", text).lower()
        text = " ".join("".join(c for c in lowered if unicodedata.category(c) != "Cf").split())
    return text


def words(text: str) -> list[str]:
    """Runs of letters and digits of the folded text, without marks, look-alikes as ASCII."""
    runs = itertools.groupby(bare(folded(text)), str.isalnum)
    return ["".join(run) for letters, run in runs if letters]


LOOK_ALIKES = {
    "a": "\u0430\u03b1\u0251",
    "b": "\u0432",
    "c": "\u0441",
    "d": "\u0501\u0111",
    "e": "\u0435\u03b5",
    "g": "\u0261",
    "h": "\u04bb\u043d",
    "i": "\u0456\u03b9\u0131",
    "j": "\u0458",
    "k": "\u043a\u03ba",
    "l": "\u04cf\u0142",
    "m": "\u043c",
    "o": "\u043e\u03bf\u00f8",
    "p": "\u0440\u03c1",
    "q": "\u051b",
    "s": "\u0455",
    "t": "\u0442\u03c4",
    "v": "\u03bd",
    "w": "\u051d",
    "x": "\u0445\u03c7",
    "y": "\u0443\u03c5",
}
_PLAIN = {other: letter for letter, others in LOOK_ALIKES.items() for other in others}


def bare(text: str) -> str:
    """Letters without combining marks; those that look like an ASCII letter as that one."""
    if text.isascii():
        return text
    kept = (c for c in unicodedata.normalize("NFKD", text) if unicodedata.category(c) not in _MARKS)
    return "".join(_PLAIN.get(c, c) for c in kept)


_MARKS = ("Mn", "Me")


def content(text: str, request_words: Collection[str]) -> set[str]:
    """The words that carry content, each once, a plural "s" of more than three letters cut off."""
    kept = (word for word in words(text) if word not in request_words)
    return {
        word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word
        for word in kept
    }


def runs(text: str, request_words: Collection[str], length: int, least: int) -> Iterator[str]:
    """Runs of `length` words of which `least` are neither request words nor numbers."""
    every = words(text)
    marks = [0]
    for word in every:
        marks.append(marks[-1] + (word not in request_words and not word.isdigit()))
    for end in range(length, len(every) + 1):
        if marks[end] - marks[end - length] >= least:
            yield " ".join(every[end - length : end])


def keys(task: Task) -> dict[str, list[str]]:
    """Exact keys by rule: problem, product, spec, text and family."""
    prefix = f"{task.catalogue}/" if task.catalogue else ""
    ids = {item.product_id for item in task.rewards if item.product_id}
    families = {folded(family) for family in task.families if family}
    found = {
        "problem": [task.problem_id],
        "product": [prefix + product for product in sorted(ids)],
        "spec": [_spec(task)],
        "text": [folded(task.query)],
        "family": sorted(families),
    }
    return {rule: [key for key in named if key] for rule, named in found.items()}


def _spec(task: Task) -> str:
    """Digest of all items in canonical form, "" when one of them asks for nothing."""
    items = sorted(_canonical(item) for item in task.rewards)
    if not items or any(not any(item) for item in items):
        return ""
    text = json.dumps(items, ensure_ascii=False, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _canonical(item: Item) -> list[list[str]]:
    options = {
        f"{folded(name)}={folded(value)}" for sku in item.sku_options for name, value in sku.items()
    }
    attributes = {
        f"{folded(name)}={folded(value)}"
        for group in item.attributes
        for name, values in group.items()
        for value in values
    }
    bounds = {f"{_number(price.low)}..{_number(price.high)}" for price in item.price}
    return [
        sorted(map(folded, item.title)),
        sorted(options),
        sorted(attributes),
        sorted(map(folded, item.service)),
        sorted(bounds),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{float(value):.10g}"
