"""Which evaluated problems a model was trained on, and what it scores on the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

from palio.cli.eval import app
from palio.evaluate.behaviour import Behaviour
from palio.evaluate.contamination import contamination_report
from palio.evaluate.results import RolloutScore
from palio.evaluate.rollouts import ScoredRow
from palio.records import ConfigError, InputError, Suite, digest, to_json
from palio.suites import write_suite
from tests.leak.making import corpus
from tests.leak.test_decontaminate import BENCHMARK, PROBLEMS

ALL_POOLS = ("train", "development", "heldout")
NOTHING = Behaviour(
    turns=0,
    valid_turns=0,
    calls=0,
    refused_calls=0,
    named_ids=0,
    invented_ids=0,
    completion_tokens=None,
    terminated=True,
)


def score(problem_id: str, good: bool) -> RolloutScore:
    return RolloutScore(
        problem_id=problem_id,
        sample=0,
        attempt=0,
        trajectory_id=problem_id,
        status="scored",
        success={"oro": good},
        rule=0.0,
        behaviour=NOTHING,
    )


def test_every_form_of_a_leak_is_found_and_the_clean_rate_leaves_it_out(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    scores = [score(task.problem_id, task.problem_id != "task-3") for task in BENCHMARK]
    report = contamination_report(folder, BENCHMARK, scores, pools=ALL_POOLS)
    assert [each.problem_id for each in report.found] == ["task-0", "task-1", "task-2"]
    assert report.found[2].rules == ("product",)
    assert report.found[2].trained == ("p002",)
    assert report.found[0].rows == 2
    assert report.problems - len(report.found) == 1
    assert report.clean is not None
    assert (report.clean.successes, report.clean.n) == (0, 1)
    assert report.contaminated is not None
    assert (report.contaminated.successes, report.contaminated.n) == (3, 3)


def test_a_pool_that_was_not_trained_on_does_not_count(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    pools = json.loads((folder / "pools.json").read_bytes())
    report = contamination_report(folder, BENCHMARK, pools=("train",))
    trained = {name for name in ("p000", "p001", "p002") if pools[name] == "train"}
    assert {name for each in report.found for name in each.trained} == trained
    assert report.clean is None


def test_an_unknown_pool_is_refused(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    with pytest.raises(InputError, match="no pool 'tarin'"):
        contamination_report(folder, BENCHMARK, pools=("tarin",))


def test_the_command_names_problems_and_rules(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    suite = Suite(suite_id="bench", version="1", problems=BENCHMARK)
    write_suite(suite, tmp_path / "suite.json")
    options = [option for pool in ALL_POOLS for option in ("--pool", pool)]
    arguments = ["--corpus", str(folder), "--suite", str(tmp_path / "suite.json"), *options]
    result = CliRunner().invoke(app, ["contamination", *arguments])
    assert result.exit_code == 0, result.output
    assert "3 of 4 problems are in the training pool" in result.output
    assert "task-2: product with p002, 2 rows" in result.output


def test_problems_of_another_suite_are_never_clean(tmp_path: Path) -> None:
    """They would be: what the suite does not hold is found nowhere in the corpus."""
    folder = corpus(tmp_path / "c", PROBLEMS)
    scores = [score(task.problem_id, True) for task in BENCHMARK]
    with pytest.raises(InputError, match="does not have the evaluated problem 'elsewhere'"):
        contamination_report(folder, BENCHMARK, [*scores, score("elsewhere", True)])


def test_unscored_problems_are_counted_and_in_no_rate(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    scores = [score(task.problem_id, True) for task in BENCHMARK]
    scores[0] = structs.replace(scores[0], status="unscored")
    report = contamination_report(folder, BENCHMARK, scores, pools=ALL_POOLS)
    assert report.clean is not None
    assert report.contaminated is not None
    assert (report.clean.n, report.contaminated.n, report.unscored) == (1, 2, 1)


def test_an_evaluation_of_another_suite_is_refused(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    evaluation = tmp_path / "e"
    evaluation.mkdir()
    suite = Suite(suite_id="bench", version="1", problems=BENCHMARK)
    write_suite(suite, tmp_path / "suite.json")
    rows = [to_json(ScoredRow(sample=0, score=score(each.problem_id, True))) for each in BENCHMARK]
    (evaluation / "rollouts.jsonl").write_bytes(b"".join(row + b"\n" for row in rows))
    identity = {"policy": "p", "settings": {}, "worlds": {}, "encoder": ""}
    words = ["--corpus", str(folder), "--suite", str(tmp_path / "suite.json")]
    words += ["--evaluation", str(evaluation)]
    for problems, good in ((BENCHMARK, True), (BENCHMARK[1:], False)):
        told = {**identity, "problems": digest(list(problems))}
        (evaluation / "evaluation.json").write_text(json.dumps(told))
        done = CliRunner().invoke(app, ["contamination", *words])
        assert (done.exit_code == 0) == good, done.output
        if not good:
            assert isinstance(done.exception, InputError)
            assert "not those it was made on" in str(done.exception)


def test_samples_are_no_greedy_rate(tmp_path: Path) -> None:
    """The first sample of each problem was told as the success rate."""
    folder = corpus(tmp_path / "c", PROBLEMS)
    scores = [
        structs.replace(score(t.problem_id, True), sample=n) for t in BENCHMARK for n in (0, 1)
    ]
    with pytest.raises(InputError, match="rollouts are sampled"):
        contamination_report(folder, BENCHMARK, scores)
    evaluation = tmp_path / "e"
    evaluation.mkdir()
    write_suite(Suite(suite_id="b", version="1", problems=BENCHMARK), tmp_path / "suite.json")
    identity = {"policy": "p", "settings": {"temperature": 1.0}, "worlds": {}, "encoder": ""}
    told = {**identity, "problems": digest(list(BENCHMARK))}
    (evaluation / "evaluation.json").write_text(json.dumps(told))
    words = ["--corpus", str(folder), "--suite", str(tmp_path / "suite.json")]
    words += ["--evaluation", str(evaluation)]
    done = CliRunner().invoke(app, ["contamination", *words])
    assert isinstance(done.exception, ConfigError)
    assert "contamination splits greedy success" in str(done.exception)


def test_a_row_that_is_no_problem_is_told_and_ends_with_3(tmp_path: Path) -> None:
    """It was left out without a word, and nobody knew that it was compared with nothing."""
    folder = corpus(tmp_path / "c", PROBLEMS)
    row = {"query": PROBLEMS[0].query, "reward": {"product_id": "90000", "title": ["lamp"]}}
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps(row) + "\n" + '{"query": 3}\n')
    words = ["--corpus", str(folder), "--suite", str(tasks)]
    done = CliRunner().invoke(app, ["contamination", *words])
    assert done.exit_code == 3, done.output
    assert f"{tasks}:2: " in done.stderr
    assert "1 rows of task files are no problems" in done.stderr
    tasks.write_text(json.dumps(row) + "\n")
    assert CliRunner().invoke(app, ["contamination", *words]).exit_code == 0


def test_a_pool_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    once = contamination_report(folder, BENCHMARK, pools=ALL_POOLS)
    assert contamination_report(folder, BENCHMARK, pools=(*ALL_POOLS, "train")) == once


def test_every_form_of_one_training_problem_is_found(tmp_path: Path) -> None:
    """The first of them alone would leave its copies among the clean ones."""
    folder = corpus(tmp_path / "c", PROBLEMS)
    copies = [structs.replace(BENCHMARK[0], problem_id=f"copy-{n}") for n in range(3)]
    reworded = structs.replace(BENCHMARK[2], problem_id="again", query="something else entirely")
    suite = (*BENCHMARK, *copies, reworded)
    report = contamination_report(folder, suite, pools=ALL_POOLS)
    assert [each.problem_id for each in report.found] == [
        *("again", "copy-0", "copy-1", "copy-2", "task-0", "task-1", "task-2")
    ]


def test_a_product_of_a_synthetic_world_is_known_by_its_catalogue(tmp_path: Path) -> None:
    """Other words, another wish, the same target: a policy may remember its id."""
    families = ("nordvik scarf",)
    seen = tuple(
        structs.replace(each, catalogue="compact-7", families=families) for each in PROBLEMS
    )
    folder = corpus(tmp_path / "c", seen)
    target = structs.replace(BENCHMARK[3], rewards=seen[4].rewards, families=("other",))
    title = structs.replace(target.rewards[0], title=("another wish",))
    target = structs.replace(target, rewards=(title,))
    for catalogue, found in (("compact-7", 1), ("compact-8", 0)):
        here = structs.replace(target, catalogue=catalogue)
        report = contamination_report(folder, (here,), pools=ALL_POOLS)
        assert len(report.found) == found
        if found:
            assert (report.found[0].rules, report.found[0].trained) == (("product",), ("p004",))
