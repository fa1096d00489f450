"""summary.json has the promised keys, plain numbers, and an n beside each; the table agrees."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from palio.evaluate.summary import Summary, make_summary, write_summary
from palio.evaluate.tables import comparison_table, results_table
from palio.records import from_json
from tests.evaluate.sample import ReportData, report_data


@pytest.fixture(scope="module")
def data() -> ReportData:
    return report_data()


@pytest.fixture(scope="module")
def summary(data: ReportData) -> Summary:
    return make_summary(
        data.stages,
        data.floors,
        data.comparisons,
        seconds=612.5,
        peak_rss_mb=1430.0,
        seeds={"world": 7},
        versions={"palio": "0.1.0"},
    )


def test_the_file_holds_what_the_issue_names(summary: Summary, tmp_path: Path) -> None:
    path = write_summary(summary, tmp_path / "summary.json")
    plain = json.loads(path.read_text())
    assert {"stages", "seconds", "peak_rss_mb", "seeds", "versions"} <= plain.keys()
    assert [stage["name"] for stage in plain["stages"]] == ["base", "after SFT"]
    for stage in plain["stages"]:
        assert set(stage["intent"]) == {"overall", "product", "shop", "voucher"}
        for numbers in stage["intent"].values():
            assert set(numbers) == {"asr", "n", "ci_low", "ci_high"}
            assert numbers["ci_low"] <= numbers["asr"] <= numbers["ci_high"]
        assert 0 <= stage["pass_at_1"] <= stage["pass_at_8"] <= 1
        assert stage["pass_at"]["8"]["samples"] == 480
    assert {floor["name"] for floor in plain["floors"]} == {"first-hit", "random-hit"}
    assert from_json(path.read_bytes(), Summary) == summary


def test_numbers_are_those_of_the_result(data: ReportData, summary: Summary) -> None:
    greedy = data.stages[1].greedy
    assert greedy is not None
    shop = greedy.intents["shop"].asr["oro"]
    assert summary.stages[1].intent["shop"].asr == shop.rate
    assert summary.stages[1].intent["shop"].n == shop.n


def test_a_stage_without_samples_says_null(data: ReportData) -> None:
    bare = msgspec.structs.replace(data.stages[0], sampled=None)
    made = make_summary([bare], [], [], seconds=1, peak_rss_mb=1, seeds={}, versions={})
    assert made.stages[0].pass_at_1 is None
    assert made.stages[0].pass_at == {}


def test_no_p_value_is_printed_as_zero(data: ReportData) -> None:
    row = data.comparisons[0]
    tiny = msgspec.structs.replace(row.test, p_value=3e-12)
    table = comparison_table([msgspec.structs.replace(row, test=tiny, p_holm=9e-12)])
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    assert text.count("< 0.0001") == 2
    assert "0.0000" not in text


def test_terminal_table_shows_interval_and_n(data: ReportData) -> None:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(results_table(data.stages, data.floors))
        console.print(comparison_table(data.comparisons))
        text = console.export_text()
    greedy = data.stages[1].greedy
    assert greedy is not None
    rate = greedy.overall.asr["oro"]
    assert rate.rate is not None
    assert f"{100 * rate.rate:.1f}" in text
    assert f"{100 * rate.low:.1f}\N{EN DASH}{100 * rate.high:.1f}" in text
    assert "n 60" in text
    assert "first-hit (floor)" in text
    assert "18 / 7" in text
