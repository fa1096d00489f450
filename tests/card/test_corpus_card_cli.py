"""The commands write cards, grow corpora, compare them and take sources down, file to file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from palio.cli.corpus import app
from palio.judging.store import append_verdicts
from palio.records import InputError, JudgeId, OutcomeVerdict, Product, ResumeError, Suite, to_json
from palio.suites import write_suite
from palio.world.catalogue import Catalogue, write_catalogue
from tests.corpus.making import PROBLEMS, made_trajectory


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """Suite, catalogue, two days of trajectories, and the corpus of the first day."""
    products = [
        Product(product_id=p.rewards[0].product_id, shop_id="s1", title="Blue mug", price=12.0)
        for p in PROBLEMS
    ]
    write_catalogue(Catalogue.from_products("compact-1", products), tmp_path / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=PROBLEMS), tmp_path / "suite.json")
    for day in range(2):
        folder = tmp_path / "runs" / f"day-{day}"
        folder.mkdir(parents=True)
        runs = [
            made_trajectory(f"d{day}-{n}", PROBLEMS[n % 5], agent=f"agent-{n % 3}")
            for n in range(10)
        ]
        lines = b"".join(to_json(run) + b"\n" for run in runs)
        (folder / "trajectories.jsonl").write_bytes(lines + b"broken\n")
    (tmp_path / "corpus.toml").write_text("coefficient = 0.3\nper_problem = 3\n")
    result = run("build", "--trajectories", tmp_path / "runs" / "day-0", *shared(tmp_path, "one"))
    assert result.exit_code == 0, result.output
    return tmp_path


def shared(folder: Path, out: str) -> tuple[object, ...]:
    return (
        *("--suite", folder / "suite.json", "--catalogue", folder / "catalogue", "--workers", 1),
        *("--config", folder / "corpus.toml", "--out", folder / out),
    )


def test_card_and_report(days: Path) -> None:
    (days / "about.toml").write_text('title = "Mugs"\nlicence = "cc-by-4.0"\n')
    result = run("card", days / "one", "--about", days / "about.toml", "--json")
    assert result.exit_code == 0, result.output
    stats = json.loads(result.stdout)
    assert stats["total"]["rows"] == 10
    assert stats["name"] == "Mugs"
    assert "# `Mugs`" in (days / "one" / "README.md").read_text()
    assert "wrote" in run("report", days / "one", "--out", days / "page.html").stdout
    assert (days / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert isinstance(run("card", days).exception, InputError)
    lost = run("card", days / "one", "--tokenizer", days / "none.json")
    assert isinstance(lost.exception, InputError)
    wrong = run("card", days / "one", "--tokenizer", days / "about.toml")
    assert isinstance(wrong.exception, InputError)
    assert "not a tokenizer" in str(wrong.exception)


def test_daily_equals_a_build_and_diff_tells_what_came(days: Path) -> None:
    words = ("daily", "--previous", days / "one", "--trajectories", days / "runs")
    result = run(*words, *shared(days, "two"), "--json")
    assert result.exit_code == 0, result.output
    assert "10 were known" in result.stderr
    whole = run("build", "--trajectories", days / "runs", *shared(days, "whole"), "--json")
    funnel = json.loads(result.stdout)
    assert funnel["pools"] == json.loads(whole.stdout)["pools"]
    for name in ("train.parquet", "train.jsonl", "heldout.jsonl", "provenance.jsonl"):
        assert (days / "two" / name).read_bytes() == (days / "whole" / name).read_bytes()
    found = json.loads(run("diff", days / "one", days / "two", "--json").stdout)
    assert found["tallies"]["added"]["reasons"] == {"new": found["tallies"]["added"]["rows"]}
    assert found["newer"]["rows"] == 15
    text = run("diff", days / "one", days / "two").stdout
    assert "one -> two: 10 rows -> 15 rows" in text
    assert json.loads(run("diff", days / "two", days / "whole", "--json").stdout)["changes"] == []
    (days / "other.toml").write_text("coefficient = 0.4\n")
    stopped = run(*words, *shared(days, "three"), "--config", days / "other.toml")
    assert isinstance(stopped.exception, ResumeError)


def test_validators_opinions_are_read(days: Path) -> None:
    opinion = OutcomeVerdict(
        trajectory_id="d1-0",
        problem_id=PROBLEMS[0].problem_id,
        judge=JudgeId(name="validator", version="1"),
        profile="oro",
        status="scored",
        success=False,
    )
    append_verdicts(days / "verdicts.jsonl", [opinion])
    (days / "corpus.toml").write_text("coefficient = 0.3\nper_problem = 3\nunanimous = true\n")
    run("build", "--trajectories", days / "runs" / "day-0", *shared(days, "one"))
    words = ("daily", "--previous", days / "one", "--trajectories", days / "runs")
    result = run(*words, *shared(days, "two"), "--verdicts", days / "verdicts.jsonl", "--json")
    assert result.exit_code == 0, result.output
    outcome = next(s for s in json.loads(result.stdout)["steps"] if s["name"] == "outcome")
    assert outcome["rejected"] == {"not_unanimous": 1}
    words = ("build", "--trajectories", days / "runs", "--verdicts", days / "verdicts.jsonl")
    assert run(*words, *shared(days, "whole")).exit_code == 0
    two, whole = ((days / name / "provenance.jsonl").read_bytes() for name in ("two", "whole"))
    assert two == whole


def test_takedown_by_agent_and_by_file(days: Path) -> None:
    result = run("takedown", days / "one", "--out", days / "less", "--agent", "agent-1", "--json")
    assert result.exit_code == 0, result.output
    notice = json.loads(result.stdout)
    assert (notice["rows"], notice["removed"]) == (3, ["d0-1", "d0-4", "d0-7"])
    assert b"agent-1" not in (days / "less" / "provenance.jsonl").read_bytes()
    assert b"agent-1" in (days / "one" / "provenance.jsonl").read_bytes()
    day = days / "runs" / "day-0" / "trajectories.jsonl"
    text = run("takedown", days / "one", "--out", days / "none", "--file", day).stdout
    assert "0 rows are left" in text
    assert isinstance(run("takedown", days / "one", "--out", days / "x").exception, InputError)
