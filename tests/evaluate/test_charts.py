"""Pictures are valid, deterministic, follow the theme, and draw hostile names as text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from palio.corpus.funnel import Funnel
from palio.evaluate.charts import (
    RateSeries,
    asr_chart,
    curve_chart,
    funnel_chart,
    paired_chart,
    pass_chart,
    standings_chart,
)
from palio.evaluate.figure import COLOURS, clipped
from palio.evaluate.results import Rate
from palio.evaluate.tables import floor_series
from tests.evaluate.sample import HOSTILE, ReportData, report_data


@pytest.fixture(scope="module")
def data() -> ReportData:
    return report_data()


def all_charts(data: ReportData) -> dict[str, str]:
    series = [one for stage in data.stages if (one := stage.rate_series())]
    assert data.funnel is not None
    return {
        "asr": asr_chart([*series, *(floor_series(floor) for floor in data.floors)]),
        "standings": standings_chart(data.standings),
        "funnel": funnel_chart(data.funnel),
        "curve": curve_chart(data.curve),
        "passk": pass_chart([pair for stage in data.stages if (pair := stage.pass_pair())]),
        "paired": paired_chart(data.comparisons),
    }


@pytest.fixture(scope="module")
def charts(data: ReportData) -> dict[str, str]:
    return all_charts(data)


def test_each_picture_is_well_formed_and_labelled(charts: dict[str, str]) -> None:
    for name, text in charts.items():
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img", name
        assert root.get("viewBox")
        assert root[0].tag.endswith("title")
        assert root[0].text


def test_pictures_are_the_same_bytes_each_time(data: ReportData, charts: dict[str, str]) -> None:
    assert all_charts(data) == charts


def test_ids_are_unique_on_one_page_and_references_resolve(charts: dict[str, str]) -> None:
    page = "".join(charts.values())
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)
    assert {a or b for a, b in used} <= set(ids)


def test_no_colour_escapes_the_theme(charts: dict[str, str]) -> None:
    for text in charts.values():
        bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", text)
        assert not re.findall(r"#[0-9a-f]{6}\b", bare)
        assert "var(--ink" in text
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_nothing_is_fetched_or_run(charts: dict[str, str]) -> None:
    for text in charts.values():
        assert "<script" not in text
        assert not re.search(r'(href|src)="(?!#)', text)
        assert "<!--" not in text


def test_hostile_and_mathematical_names_are_plain_text(charts: dict[str, str]) -> None:
    root = ElementTree.fromstring(charts["standings"])
    words = "".join(root.itertext())
    assert HOSTILE[:20] in words
    assert "$crash_x^2$" in words


def test_numbers_stand_in_the_picture_with_their_n(charts: dict[str, str]) -> None:
    words = "".join(ElementTree.fromstring(charts["asr"]).itertext())
    assert "n = 60" in words
    assert "first-hit" in words
    assert "12,400" in charts["funnel"]
    assert "3,900 failed" in charts["funnel"]


def test_empty_and_degenerate_input_still_draws() -> None:
    nothing = Rate(value=None, n=0, low=0.0, high=1.0, method="wilson")
    assert "<svg" in asr_chart([RateSeries(name="base", rates={"overall": nothing})])
    assert "<svg" in standings_chart([])
    assert "<svg" in funnel_chart(Funnel(steps=()))
    assert "<svg" in curve_chart([])
    assert "<svg" in pass_chart([])
    assert "<svg" in paired_chart([])


def test_labels_are_cut_and_cleaned() -> None:
    assert clipped("a" * 40) == "a" * 27 + "…"
    assert "\x00" not in clipped("a\x00b")
