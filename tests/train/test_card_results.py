"""A card says of which problems its results are, and what nobody has looked at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from palio.cli.main import app
from palio.corpus.build import read_pools
from palio.records import ConfigError, InputError, Suite
from palio.suites.files import read_suite, write_suite
from palio.train.card import OUTSIDE, Measured, pool_told, renew_results, write_card
from palio.train.checkpoint import WEIGHTS, check_whole
from tests.environments.conftest import Made, made  # noqa: F401 - a fixture
from tests.train.test_audit import files, finished, run  # noqa: F401 - fixtures

HALF: dict[str, Any] = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 90}


def invoke(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def given(made: Made) -> list[object]:  # noqa: F811
    """Suite and catalogues, for an evaluation."""
    catalogues = [word for name in made.worlds for word in ("--catalogue", made.folder / name)]
    return ["--suite", made.folder / "suite.json", *catalogues]


def test_results_name_the_pool_of_their_problems(
    run: Path,  # noqa: F811
    made: Made,  # noqa: F811
    given: list[object],
    tmp_path: Path,
) -> None:
    corpus, suite = files(made)
    held, every = tmp_path / "held", tmp_path / "every"
    asked = [*given, "--checkpoint", run, "--max-tokens", 8]
    invoke("eval", "run", *asked, "--corpus", corpus, "--limit", 3, "--out", held)
    invoke("eval", "run", *asked, "--limit", 12, "--out", every)
    told = ["--evaluation", held, "--evaluation", every, "--suite", suite]
    invoke("train", "card", run, *told)
    card = (run / "teacher" / "checkpoint" / "README.md").read_text()
    rows = [line for line in card.splitlines() if line.startswith("| greedy ASR")]
    assert all(row.endswith("| not told |") for row in rows)
    assert "overall, small, 7 tools, titles by" in rows[0]
    assert "nobody has shown that training did not see the problems" in card
    assert "of the training pool**" not in card

    invoke("train", "card", run, *told, "--corpus", corpus)
    card = (run / "teacher" / "checkpoint" / "README.md").read_text()
    rows = [line for line in card.splitlines() if "overall" in line]
    assert rows[0].endswith("| 3 | heldout |")
    pools = read_pools(corpus)
    lines = (every / "greedy" / "rollouts.jsonl").read_text().splitlines()
    ran = {json.loads(line)["score"]["problem_id"] for line in lines}
    assert rows[1].endswith(f"| 12 | {pool_told(ran, pools)} |")
    assert {pools[one] for one in ran} > {"train"}
    assert "Some of these problems are of the training pool" in card
    assert "nobody has shown that training" not in card

    (tmp_path / "train.jsonl").write_bytes((corpus / "train.jsonl").read_bytes()[:-1])
    with pytest.raises(InputError, match="another corpus"):
        invoke("train", "card", run, *told, "--corpus", tmp_path)
    with pytest.raises(ConfigError, match="--suite"):
        invoke("train", "card", run, "--evaluation", held)
    first, *others = read_suite(suite).problems
    problems = (replace(first, query=f"{first.query} now"), *others)
    write_suite(Suite(suite_id="small", version="1", problems=problems), tmp_path / "other.json")
    told[-1] = tmp_path / "other.json"
    with pytest.raises(InputError, match="is another problem than that of the corpus"):
        invoke("train", "card", run, *told, "--corpus", corpus)


def test_a_checkpoint_without_its_run_gets_new_results_and_keeps_the_rest(
    run: Path,  # noqa: F811
    made: Made,  # noqa: F811
    given: list[object],
    tmp_path: Path,
) -> None:
    corpus, suite = files(made)
    lone, held = tmp_path / "lone", tmp_path / "held"
    old = Measured(measure="of long ago", **HALF)
    shutil.copytree(write_card(run, [old]).parent, lone)
    card = lone / "README.md"
    before = card.read_text()
    with pytest.raises(InputError, match="no result to tell"):
        invoke("train", "card", lone)
    invoke(
        "eval",
        "run",
        *given,
        "--checkpoint",
        lone,
        "--max-tokens",
        8,
        "--corpus",
        corpus,
        "--limit",
        3,
        "--out",
        held,
    )
    told = ["--evaluation", held, "--suite", suite]
    invoke("train", "card", lone, *told, "--corpus", corpus)
    head, rest = before.split("## Results\n")
    now_head, now_rest = card.read_text().split("## Results\n")
    assert now_head == head
    assert now_rest.split("## Use\n")[1] == rest.split("## Use\n")[1]
    assert "of long ago" not in now_rest
    assert "do not tell which weights" in rest
    assert "do not tell which weights" not in now_rest
    assert "| 3 | heldout |" in now_rest
    check_whole(lone)
    (tmp_path / "train.jsonl").write_bytes((corpus / "train.jsonl").read_bytes()[:-1])
    with pytest.raises(InputError, match="another corpus"):
        invoke("train", "card", lone, *told, "--corpus", tmp_path)


def test_a_card_of_other_weights_gets_no_results(run: Path, tmp_path: Path) -> None:  # noqa: F811
    lone, new = tmp_path / "lone", Measured(measure="greedy", **HALF)
    shutil.copytree(write_card(run, [new]).parent, lone)
    shutil.copy(write_card(run).parents[2] / "sft" / "checkpoint" / WEIGHTS, lone)
    with pytest.raises(InputError, match="the card is of other weights"):
        renew_results(lone, [new])
    (lone / "README.md").unlink()
    with pytest.raises(InputError, match="no card with results"):
        renew_results(lone, [new])


def test_a_pool_in_words() -> None:
    pools = {"a": "heldout", "b": "heldout", "c": "train"}
    assert pool_told("ab", pools) == "heldout"
    assert pool_told("abc", pools) == "heldout 2, train 1"
    assert pool_told("az", pools) == f"heldout 1, {OUTSIDE} 1"


def test_what_was_not_scored_is_told(run: Path) -> None:  # noqa: F811
    rate = {"measure": "greedy", "value": 0.5, "low": 0.4, "high": 0.6, "pool": "heldout"}
    whole, torn = Measured(**rate, n=90), Measured(**rate, n=85, unscored=5)
    assert "not scored" not in write_card(run, [whole]).read_text()
    card = write_card(run, [whole, torn]).read_text().splitlines()
    rows = [line for line in card if line.startswith("| greedy")]
    assert [row.endswith(end) for row, end in zip(rows, ("| 0 |", "| 5 |"), strict=True)] == [
        True
    ] * 2
    assert {row.count("|") for row in rows} == {7}
    assert any(line.startswith("What was not scored") for line in card)


def test_stages_that_nobody_audited_are_named(run: Path, made: Made) -> None:  # noqa: F811
    corpus, suite = files(made)
    assert "rollouts of sft, teacher against the pools" in write_card(run).read_text()
    invoke("train", "audit", run, "--corpus", corpus, "--suite", suite)
    assert "Not audited" not in write_card(run).read_text()
    audit = json.loads((run / "audit.json").read_bytes())
    (run / "audit.json").write_text(json.dumps({**audit, "stages": audit["stages"][:1]}))
    assert "rollouts of teacher against the pools" in write_card(run).read_text()
