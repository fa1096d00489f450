"""What people wrote about the runs, put where its readers look for it."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

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


def read_prose(text: str, plans: Collection[str]) -> Prose:
    """Part a Markdown text at its headings of the second level.

    Args:
        text: Markdown.
        plans: names of plans; a section with such a heading is about that plan.
    """
    lead, *parted = _HEADING.split(text)
    sections = list(zip(parted[::2], parted[1::2], strict=True))
    rest = [f"## {title}\n\n{_bare(body)}" for title, body in sections if title not in plans]
    readings = {title: _bare(body) for title, body in sections if title in plans}
    return Prose(_bare(lead), "\n\n".join(rest), readings)


def _bare(text: str) -> str:
    """Without empty lines around; four spaces that begin it are code."""
    return text.strip("\n").rstrip()
