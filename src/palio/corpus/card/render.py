"""README.md, stats.json and the page are written from the same statistics; all text is escaped.

Agents, tools, sources and requests carry text that strangers wrote. In HTML jinja escapes it; in
Markdown it stands in code spans, where nothing is markup; in YAML it is a JSON string.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from palio.corpus.card.about import UNKNOWN, About
from palio.corpus.card.charts import charts
from palio.corpus.card.spread import Spread
from palio.corpus.card.stats import Stats
from palio.corpus.config import POOLS
from palio.corpus.rows import CorpusRow, read_rows
from palio.records import InputError, Record, to_json
from palio.world.artefacts import MANIFEST, file_digest, replacing

CARD, STATS, PAGE = "README.md", "stats.json", "report.html"
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
TAGS = ("agent", "tool-use", "function-calling", "trajectories", "reasoning", "shopping")
SHOWN_BYTES = 1_500
"""Longest text of an example on the page; a tool result of ten products has 2 KB."""


class Example(Record, frozen=True):
    """One row for the page."""

    pool: str
    row: CorpusRow


def examples(folder: Path, most: int = 3) -> tuple[Example, ...]:
    """The first training row of each kind of problem, then of the other pools."""
    found: dict[str, Example] = {}
    for pool in POOLS:
        for row in islice(read_rows(folder / f"{pool}.jsonl"), 2_000):
            found.setdefault(row.kind, Example(pool=pool, row=row))
    return tuple(found[kind] for kind in sorted(found))[:most]


def render_card(stats: Stats, about: About) -> str:
    """The data set card: YAML front matter and Markdown."""
    return (
        _environment(escaped=False)
        .get_template("README.md.j2")
        .render(
            stats=stats,
            about=about,
            licences=licences(stats, about),
            size=_size(stats.total.rows),
            tags=tuple(dict.fromkeys((*TAGS, *about.tags))),
            splits=[pool for pool in POOLS if stats.pools[pool].rows],
        )
    )


def render_page(stats: Stats, about: About, shown: Sequence[Example] = ()) -> str:
    """The page: one HTML document without script that loads nothing."""
    # Markup is right here: matplotlib escapes every text that it draws, `svg` its label
    drawn = {name: Markup(text) for name, text in charts(stats).items()}  # noqa: S704
    return (
        _environment(escaped=True)
        .get_template("page.html.j2")
        .render(
            stats=stats,
            about=about,
            charts=drawn,
            licences=licences(stats, about),
            examples=[(one.pool, one.row, list(_turns(one.row))) for one in shown],
        )
    )


def write_card(folder: Path, stats: Stats, about: About) -> tuple[Path, ...]:
    """Write card, statistics and page into the corpus folder, each whole or not at all.

    Raises:
        InputError: the statistics are those of another corpus.
    """
    if file_digest(folder / MANIFEST) != stats.manifest:
        raise InputError(
            "the statistics were measured on another corpus",
            where=str(folder),
            remedy="measure it again",
        )
    texts = {
        CARD: render_card(stats, about),
        STATS: msgspec.json.format(to_json(stats)).decode() + "\n",
        PAGE: render_page(stats, about, examples(folder)),
    }
    return tuple(write_text(folder / name, text) for name, text in texts.items())


def write_text(path: Path, text: str) -> Path:
    """Write a text whole or not at all; what UTF-8 cannot hold is written as its escape."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    return path


def licences(stats: Stats, about: About) -> tuple[str, ...]:
    """Different licences of the sources, those of most rows first."""
    found = [one.licence for one in stats.sources.values()]
    return tuple(dict.fromkeys(found)) or (about.licence or UNKNOWN,)


def _size(rows: int) -> str:
    return next((name for limit, name in SIZES if rows < limit), "1M<n<10M")


def _turns(row: CorpusRow) -> Iterator[dict[str, Any]]:
    for message in row.messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        yield {
            "role": message["role"],
            "thinking": message.get("reasoning_content") or "",
            "text": _cut(message.get("content") or ""),
            "calls": [(call["name"], _cut(call["arguments"])) for call in calls],
        }


def _cut(text: str) -> str:
    rest = len(text) - SHOWN_BYTES
    return text if rest <= 0 else f"{text[:SHOWN_BYTES]} ... ({rest:,} more characters)"


def _environment(*, escaped: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("palio.corpus.card", "templates"),
        autoescape=escaped,  # noqa: S701 - off for Markdown alone, where `code` does it
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        yaml=lambda value: json.dumps(str(value)),
        code=_code_span,
        n=lambda value: f"{value:,.0f}",
        percent=lambda value: f"{100 * value:.1f} %",
        decimal=lambda value, digits=2: "none" if value is None else f"{value:.{digits}f}",
        quantiles=_quantiles,
        plural=lambda count, one: f"{count:,} {one}" + ("" if count == 1 else "s"),
    )
    return environment


def _code_span(value: object) -> str:
    """A text as a Markdown code span that also fits a table cell: nothing in it is markup."""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    plain = plain.replace("`", "'").replace("|", "\\|").strip()
    return f"`{plain}`" if plain else "(empty)"


def _quantiles(held: Spread | None) -> str:
    if held is None or not held.n:
        return "none"
    shown = (held.least, held.median, held.p90, held.p99, held.most)
    return " / ".join(f"{value:,.0f}" for value in shown)
