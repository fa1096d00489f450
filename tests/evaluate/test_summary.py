"""summary.json has the promised keys, plain numbers, and an n beside each; the table agrees."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from palio.cli.eval_output import tell_faults
from palio.evaluate.report import render_report
from palio.evaluate.report_data import StageResult
from palio.evaluate.results import summarise
from palio.evaluate.summary import (
    Summary,
    floor_summary,
    make_summary,
    stage_summary,
    write_summary,
)
from palio.evaluate.tables import (
    behaviour_table,
    comparison_table,
    groups_table,
    results_table,
)
from palio.records import from_json
from tests.evaluate.sample import PROBLEMS, ReportData, report_data, score


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


def printed(*tables: object, width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()


def broken() -> StageResult:
    """Every tenth problem is unscored; easy problems succeed, hard ones do not."""
    scores = [
        score(
            p.problem_id, 0, p.difficulty == "easy", status="unscored" if n % 10 == 0 else "scored"
        )
        for n, p in enumerate(PROBLEMS)
    ]
    greedy = summarise(scores, PROBLEMS, name="p", samples=1, temperature=0.0, seed=0)
    return StageResult(name="p", greedy=greedy)


def test_the_table_shows_car_and_unscored_and_is_never_cut_at_120_columns(data: ReportData) -> None:
    stages = [*data.stages, broken(), msgspec.structs.replace(data.stages[0], floor=True)]
    longest = msgspec.structs.replace(data.stages[0], name="a name that is as long as a name is")
    text = printed(results_table([*stages, longest], data.floors))
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert all(len(line) <= 120 for line in text.splitlines())
    assert "CAR" in text
    greedy = data.stages[1].greedy
    assert greedy is not None
    car = greedy.overall.car
    assert car.value is not None
    assert f"{100 * car.value:.1f}" in text
    assert f"{100 * car.low:.1f}\N{EN DASH}{100 * car.high:.1f}" in text
    row = text.splitlines()[[line.split()[:1] for line in text.splitlines()].index(["p"]) :]
    assert row[0].split()[-1] == "6"
    assert row[1].split()[-2:] == ["of", "60"]
    assert "base (floor)" in text
    assert "pass@8" in text
    bare = [msgspec.structs.replace(stage, sampled=None) for stage in data.stages]
    assert "pass@" not in printed(results_table(bare)).split("rate, 95 %")[0]


def test_how_a_policy_behaved_stands_beside_how_it_did(data: ReportData, summary: Summary) -> None:
    greedy = data.stages[1].greedy
    assert greedy is not None
    whole, told = greedy.overall, summary.stages[1].intents["overall"].behaviour
    assert told is not None
    assert told.valid_turns.value == whole.valid_turns.value
    assert told.refused_calls.ci_high == whole.refused_calls.high
    assert told.inventing.n == whole.inventing.n
    assert (told.invented_ids, told.turns) == (whole.invented_ids, whole.turns.mean)
    assert told.completion_tokens == whole.completion_tokens.mean
    assert summary.floors[0].intents["overall"].behaviour is None, "a floor has no rollouts"
    text = printed(behaviour_table(data.stages))
    assert all(len(line) <= 120 for line in text.splitlines())
    lines = [line.split() for line in text.splitlines()]
    row = next(line for line in lines if line[:2] == ["after", "SFT"])
    assert row[2] == f"{100 * (whole.valid_turns.value or 0):.1f}"
    assert row[4] == f"{100 * (whole.inventing.value or 0):.1f}"
    assert row[5] == f"{whole.turns.mean:,.1f}"


def test_a_policy_is_shown_by_intent_and_by_difficulty() -> None:
    text = printed(groups_table(broken()))
    lines = {line.split()[0]: line.split() for line in text.splitlines() if " n " in line}
    assert list(lines) == ["product", "shop", "voucher", "easy", "hard"]
    assert lines["easy"] == [
        "easy",
        "100.0",
        "n",
        "24",
        "100.0",
        "n",
        "24",
        "100.0",
        "n",
        "24",
        "6",
    ]
    assert lines["hard"] == ["hard", "0.0", "n", "30", "0.0", "n", "30", "40.0", "n", "30", "0"]


def test_json_has_every_group_with_its_n(data: ReportData, summary: Summary) -> None:
    told = stage_summary(broken()).difficulties
    assert list(told) == ["easy", "hard"]
    easy = told["easy"]
    assert (easy.problems, easy.unscored, easy.rollouts) == (30, 6, 30)
    assert easy.asr is not None
    assert (easy.asr.asr, easy.asr.n) == (1.0, 24)
    assert (easy.car.value, easy.car.n) == (1.0, 24)
    assert told["hard"].car.value == pytest.approx(0.4)
    for stage in summary.stages:
        assert set(stage.intents) == {"overall", "product", "shop", "voucher"}
        assert stage.intents["overall"].car.value == stage.car
        for group in stage.intents.values():
            assert group.pass_at["8"].n == group.problems
            assert group.rollouts == 9 * group.problems


def test_json_has_both_intervals_and_both_worst_cases(data: ReportData, summary: Summary) -> None:
    for stage, told in zip(data.stages, summary.stages, strict=True):
        assert stage.greedy is not None
        assert stage.sampled is not None
        over = stage.greedy.intents["shop"].asr_clustered["oro"]
        shown = told.intents["shop"].asr_clustered
        assert shown is not None
        assert (shown.value, shown.n, shown.clusters) == (over.value, 20, over.clusters)
        assert (shown.ci_low, shown.ci_high) == (over.low, over.high)
        assert told.intents["shop"].strict_clustered is not None
        worst = stage.sampled.overall.pass_at_1_worst
        assert worst is not None
        assert told.pass_at_1_worst == worst.value
    assert (
        stage_summary(msgspec.structs.replace(data.stages[0], sampled=None)).pass_at_1_worst is None
    )


def test_a_ceiling_is_no_floor_in_json_either(data: ReportData) -> None:
    reader = msgspec.structs.replace(data.floors[0], name="reader")
    assert floor_summary(data.floors[0]).kind == "floor"
    assert floor_summary(reader).kind == "ceiling"


def test_tables_show_the_intervals_over_clusters(data: ReportData) -> None:
    greedy = data.stages[1].greedy
    assert greedy is not None
    over = greedy.overall.asr_clustered["oro"]
    text = " ".join(printed(groups_table(data.stages[1])).split())
    assert f"after SFT {100 * over.low:.1f}\N{EN DASH}{100 * over.high:.1f}" in text
    assert "(30 clusters of 60 problems)" in text
    row = data.comparisons[0]
    text = printed(comparison_table(data.comparisons))
    assert f"clustered ({100 * row.clustered.low:+.1f} to {100 * row.clustered.high:+.1f})" in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def late() -> StageResult:
    """Three rollouts of sixty met the wall clock."""
    scores = [score(p.problem_id, 0, n >= 3) for n, p in enumerate(PROBLEMS)]
    behaviour = msgspec.structs.replace(scores[0].behaviour, timed_out=True)
    for place in range(3):
        scores[place] = msgspec.structs.replace(scores[place], behaviour=behaviour)
    greedy = summarise(scores, PROBLEMS, name="p", samples=1, temperature=0.0, seed=0)
    return StageResult(name="p", greedy=greedy)


def test_failures_by_the_wall_clock_are_counted_everywhere(
    data: ReportData, capsys: pytest.CaptureFixture[str]
) -> None:
    told = stage_summary(late()).intents
    assert [told[name].timed_out for name in ("overall", "product", "shop", "voucher")] == [
        3,
        1,
        1,
        1,
    ]
    page = render_report(msgspec.structs.replace(data, stages=(late(),)))
    assert "p, greedy: 0 of 60, and 3 that the wall clock stopped are failures" in page
    tell_faults([late(), data.stages[0]])
    assert capsys.readouterr().err.count("3 rollouts were stopped by the wall clock") == 1


def test_json_has_of_a_floor_what_the_table_shows(data: ReportData) -> None:
    floor = data.floors[0]
    told = floor_summary(floor).intents["overall"]
    rate, car = floor.rates["overall"]["strict"], floor.car["overall"]
    assert told.strict is not None
    assert (told.strict.asr, told.strict.n, told.strict.ci_low) == (rate.value, rate.n, rate.low)
    assert (told.car.value, told.car.n) == (car.value, 60)
    assert (told.car.ci_low, told.car.ci_high) == (car.low, car.high)
    text = printed(results_table([], data.floors))
    assert f"{100 * told.car.ci_low:.1f}\N{EN DASH}{100 * told.car.ci_high:.1f}" in text
