"""What an agent wrote can only ever be quoted: no text of it reaches a judge outside a quotation.

Two things are done to it, and each is enough for most attacks:

- Every line of it starts with a mark that is computed from the content and occurs nowhere in it,
  so no text can close its own quotation.
- Characters that cannot be seen (zero width, bidirectional controls, tags, fillers), and strings
  that chat templates read as control tokens, are written out as visible text.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Protocol

MARK_DIGITS = 12
"""Hexadecimal digits of a mark: 48 bits, and it is checked not to occur."""

_BLANK = frozenset({0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x034F})
"""Letters and marks that show nothing: Hangul and Khmer fillers, the empty braille cell, the
grapheme joiner."""
_UNSEEN = frozenset({"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"})
_TEMPLATE = re.compile(r"\[(?=/?[A-Z_]{3,}\])")
_LINES = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_OPEN, _CLOSE = "\u2039", "\u203a"
_ANGLES = {"<": _OPEN, ">": _CLOSE}


class Quoting(Protocol):
    """How untrusted text is put into a prompt."""

    def mark(self, texts: Iterable[str]) -> str:
        """The mark of a prompt that will quote `texts`."""
        ...

    def block(self, mark: str, head: str, text: str) -> str:
        """One quotation with its head."""
        ...


class Delimited:
    """The quoting of this module."""

    def mark(self, texts: Iterable[str]) -> str:
        """A mark that depends on the content alone and occurs nowhere in it.

        The same content gives the same mark, so prompts can be cached and replayed; whoever writes
        the content cannot know it, since writing it there would change it.
        """
        held = list(texts)
        running = hashlib.sha256()
        for text in held:
            data = text.encode("utf-8", "surrogatepass")
            running.update(len(data).to_bytes(8, "big"))
            running.update(data)
        seed = running.digest()
        while True:
            found = hashlib.sha256(seed).hexdigest()[:MARK_DIGITS]
            if not any(found in text.casefold() for text in held):
                return found
            seed = hashlib.sha256(seed).digest()

    def block(self, mark: str, head: str, text: str) -> str:
        """The quotation: a BEGIN line, each line of the text behind the mark, an END line."""
        lines = [f"{mark}| {escaped(line)}" for line in _LINES.split(text)]
        return "\n".join([f"{mark} BEGIN {head}", *lines, f"{mark} END"])


def escaped(text: str) -> str:
    r"""One line of text with nothing in it that is unseen or that a machine takes for its own.

    `\u{2066}` stands for the character with that number; a `\u{` of the text itself becomes
    `\u{5c}u{`, so that nothing can pass for an escape. Angle brackets become single angle
    quotation marks, which no chat template reads.
    """
    if text.isascii() and text.isprintable():
        return _plain(text)
    return "".join(map(_shown, _plain(text)))


def _plain(text: str) -> str:
    text = text.replace("\\u{", "\\u{5c}u{").replace("<", _OPEN).replace(">", _CLOSE)
    return _TEMPLATE.sub(r"\\u{5b}", text)


def _shown(char: str) -> str:
    if char.isascii():
        return char if char.isprintable() else f"\\u{{{ord(char):x}}}"
    code = ord(char)
    variation = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
    if variation or code in _BLANK or unicodedata.category(char) in _UNSEEN:
        return f"\\u{{{code:x}}}"
    folded = unicodedata.normalize("NFKC", char)
    return _ANGLES.get(folded, char)
