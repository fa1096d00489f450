"""What a reader of the main job's report must know; the words stand in statements.toml."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import msgspec

from palio.evaluate.report_data import Statement
from palio.records import Record


class Statements(Record, frozen=True):
    """Paragraphs that say what things are, and what must not be concluded."""

    statements: tuple[Statement, ...]
    caveats: tuple[str, ...]


def load_statements() -> Statements:
    """The statements; line breaks of the file are folded."""
    text = files(__package__).joinpath("statements.toml").read_text(encoding="utf-8")
    read = msgspec.convert(tomllib.loads(text), Statements)
    folded = tuple(
        Statement(heading=each.heading, text=" ".join(each.text.split()))
        for each in read.statements
    )
    return Statements(statements=folded, caveats=read.caveats)
