"""What an arena asks of a submission: numbers and names, each with the reason for its default."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from palio.arena.admission.findings import Severity
from palio.records import Record


class AdmissionConfig(Record, frozen=True, omit_defaults=False):
    """Limits of the static check.

    Attributes:
        max_bytes: largest file; the arena's 1 MB.
        max_pieces: words and signs of a file: 150,000 take 4 s and 230 MB to look through, the
            longest bundled agent has 1,500.
        extra_modules: may be imported beside the ones listed in ``rules.toml``.
        severity: rule -> another severity, or "off".
        table_ids: so many product ids in one literal are a table of answers.
        file_ids: so many in the whole file are; examples in a prompt have two or three.
        table_digests: so many hex digests in the file are a table.
        table_queries: so many long sentences as keys of a literal are a table.
        encoded_text: so many characters without a space are data, not text.
        number_list: so many integers in one literal are data.
        known_ids, known_texts: ids and queries of suites whose answers are public; two ids or one
            query in a file are an answer.
        similar, near_duplicate: share of one file's structure that stands in another's, from which
            it is a warning, and an error.
        shortest: structures below this many nodes say nothing of where they are from.
        require_licence: whether the file must have an SPDX-License-Identifier.
    """

    max_bytes: int = 1_000_000
    max_pieces: int = 150_000
    extra_modules: tuple[str, ...] = ()
    severity: dict[str, Severity | Literal["off"]] = {}
    table_ids: int = 8
    file_ids: int = 16
    table_digests: int = 4
    table_queries: int = 3
    encoded_text: int = 120
    number_list: int = 64
    known_ids: frozenset[str] = frozenset()
    known_texts: frozenset[str] = frozenset()
    similar: float = 0.6
    near_duplicate: float = 0.85
    shortest: int = 120
    require_licence: bool = False


class Names(Record, frozen=True):
    """``rules.toml`` as sets."""

    allowed: frozenset[str]
    forbidden: frozenset[str]
    dynamic: frozenset[str]
    by_name: frozenset[str]
    reflective: frozenset[str]
    banned: frozenset[str]
    writing: frozenset[str]
    calendar: frozenset[str]
    machine: frozenset[str]
    hosts: frozenset[str]
    sharp: frozenset[str]
    injection: tuple[str, ...]
    restricted: dict[str, frozenset[str]]

    @property
    def telling(self) -> frozenset[str]:
        """Words that, put together from pieces, give away what they are for."""
        words = self.dynamic | self.forbidden | self.banned - {"Formatter"}
        return words | frozenset(name for name in self.reflective if name.startswith("_"))


@cache
def names() -> Names:
    """The names that the check knows."""
    text = resources.files("palio.arena.admission").joinpath("rules.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Names)


@cache
def injection() -> re.Pattern[str]:
    """Matches texts that speak to a judge."""
    return re.compile("|".join(f"(?:{each})" for each in names().injection), re.IGNORECASE)
