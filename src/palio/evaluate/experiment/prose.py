"""What people wrote about the runs, put where its readers look for it."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from palio.records import InputError

_HEADING = re.compile(r"^## +(.+?) *$", re.MULTILINE)


class Prose(NamedTuple):
    """A text in three parts.

    Attributes:
        lead: what stands before its first heading of the second level.
        rest: its other sections, with their headings, in its order.
        readings: plan -> the section that is called like it, without its heading.
    """

    lead: str
    rest: str
    readings: dict[str, str]


def read_intro(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: it is no text.
    """
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 text: {error.reason} at byte {error.start}",
            where=str(path),
            remedy="save it as UTF-8",
        ) from error


def read_prose(text: str, plans: Collection[str], *, where: str = "") -> Prose:
    """Part a Markdown text at its headings of the second level.

    Args:
        text: Markdown.
        plans: names of plans; a section with such a heading is about that plan.
        where: the file that it is of, for errors.

    Raises:
        InputError: a plan has two sections; names file and line of the second.
    """
    lines: dict[str, int] = {}
    for heading in _HEADING.finditer(text):
        title, line = heading[1], text.count("\n", 0, heading.start()) + 1
        if title in plans and title in lines:
            raise InputError(
                f"a second section is called {title!r}; the first begins in line {lines[title]}",
                where=f"{where}:{line}" if where else f"line {line}",
                remedy="put both under one heading",
            )
        lines[title] = line
    lead, *parted = _HEADING.split(text)
    sections = list(zip(parted[::2], parted[1::2], strict=True))
    rest = [f"## {title}\n\n{_bare(body)}" for title, body in sections if title not in plans]
    readings = {title: _bare(body) for title, body in sections if title in plans}
    return Prose(_bare(lead), "\n\n".join(rest), readings)


def _bare(text: str) -> str:
    """Without empty lines around; four spaces that begin it are code."""
    return text.strip("\n").rstrip()
