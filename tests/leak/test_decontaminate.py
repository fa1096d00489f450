"""What an external benchmark holds is found in a corpus, exactly or nearly, and taken out."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from palio.cli.corpus import app
from palio.corpus.config import NEVER
from palio.corpus.decontaminate import cleaned, contamination
from palio.corpus.verify import verify
from palio.records import InputError, Problem, Suite
from palio.suites import write_suite
from palio.suites.registry import entry_of
from tests.leak.making import CONFIG, corpus, lines, people, wish
from tests.suites.making import made_problem

PROBLEMS = people(40)


def held(folder: Path) -> set[str]:
    return {row["problem_id"] for p in CONFIG.fractions for row in lines(folder / f"{p}.jsonl")}


def task(number: int, query: str, product: str = "") -> Problem:
    name = f"task-{number}"
    return made_problem(
        name, (product or f"6{number}",), query=query, catalogue="", source="bench.jsonl"
    )


BENCHMARK = (
    task(0, PROBLEMS[0].query.upper() + "  "),
    task(1, " ".join(reversed(PROBLEMS[1].query.rstrip(".").split()))),
    task(2, wish(4000), product=PROBLEMS[2].rewards[0].product_id),
    task(3, wish(5000)),
)


def test_each_rule_finds_its_own(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    found = contamination(folder, {"bench": BENCHMARK}, registry=())
    assert {(hit.problem_id, hit.rule, hit.task) for hit in found.hits} == {
        ("p000", "text", "task-0"),
        ("p000", "lexical", "task-0"),
        ("p000", "gram", "task-0"),
        ("p001", "lexical", "task-1"),
        ("p002", "product", "task-2"),
    }
    assert (found.problems, found.rows, found.rows_hit) == (40, 80, 6)
    assert all(hit.rows == 2 for hit in found.hits)


def test_hashes_alone_find_exact_keys(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    entry = entry_of(BENCHMARK, name="b", version="1", source="s", licence="MIT")
    found = contamination(folder, {}, registry=(entry,))
    assert {(hit.problem_id, hit.rule) for hit in found.hits} == {
        ("p000", "text"),
        ("p002", "product"),
    }


def test_what_is_cleaned_holds_none_of_it_and_is_certified(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    before = (folder / "train.jsonl").read_bytes()
    found = contamination(folder, {"bench": BENCHMARK}, registry=())
    funnel = cleaned(folder, found, tmp_path / "clean")
    assert funnel.kept == 74
    assert held(tmp_path / "clean") == held(folder) - {"p000", "p001", "p002"}
    assert contamination(tmp_path / "clean", {"bench": BENCHMARK}, registry=()).rows_hit == 0
    outcome = verify(tmp_path / "clean")
    assert outcome.good, outcome.findings
    assert (folder / "train.jsonl").read_bytes() == before


def test_what_cannot_be_cleaned_says_why(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    nothing = contamination(folder, {}, registry=())
    with pytest.raises(InputError, match="nothing to take out"):
        cleaned(folder, nothing, tmp_path / "clean")
    shares = {"train": 0.7, "heldout": 0.2, NEVER: 0.1}
    hidden = corpus(tmp_path / "n", PROBLEMS, msgspec.structs.replace(CONFIG, fractions=shares))
    query = lines(hidden / "train.jsonl")[0]["messages"][0]["content"]
    found = contamination(hidden, {"bench": (task(9, query),)}, registry=())
    assert found.rows_hit == 2
    with pytest.raises(InputError, match="never-touch"):
        cleaned(hidden, found, tmp_path / "clean")
    with pytest.raises(InputError, match="no problems here"):
        contamination(tmp_path, {})


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout


def test_the_commands_fail_on_what_they_find(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    code, text = run("verify", folder)
    assert (code, "leaks nothing" in text) == (0, True)
    write_suite(Suite(suite_id="b", version="1", problems=BENCHMARK), tmp_path / "bench.json")
    code, text = run("decontaminate", folder, "--against", tmp_path / "bench.json")
    assert code == 1
    assert "6 of 80 rows" in text
    code, text = run(
        *("decontaminate", folder, "--against", tmp_path / "bench.json"),
        *("--out", tmp_path / "clean", "--json"),
    )
    assert code == 0
    assert {hit["benchmark"] for hit in json.loads(text)["hits"]} == {"bench.json"}
    assert run("decontaminate", tmp_path / "clean", "--against", tmp_path / "bench.json")[0] == 0
    path = folder / "heldout.jsonl"
    path.write_bytes(path.read_bytes() + (folder / "train.jsonl").read_bytes())
    code, text = run("verify", folder, "--shown", 3)
    assert code == 1
    assert "train.jsonl:1" in text
    assert "more; --json prints all" in text
    code, text = run("verify", folder, "--json")
    assert code == 1
    assert not json.loads(text)["good"]


def test_rows_that_are_no_problems_are_told_and_are_not_clean(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "c", PROBLEMS)
    row = {"query": "a brass trumpet", "reward": {"product_id": "5", "title": ["trumpet"]}}
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps(row) + '\n{"query": 3}\n')
    done = CliRunner().invoke(app, ["decontaminate", str(folder), "--against", str(tasks)])
    assert done.exit_code == 3
    assert f"{tasks}:2: " in done.stderr
    assert "1 rows of task files are no problems and were left out" in done.stderr


def test_two_task_files_of_one_name_are_both_compared(tmp_path: Path) -> None:
    """The second took the place of the first."""
    folder = corpus(tmp_path / "c", PROBLEMS)
    for name, problems in (("a", BENCHMARK), ("b", BENCHMARK[3:])):
        (tmp_path / name).mkdir()
        suite = Suite(suite_id=name, version="1", problems=problems)
        write_suite(suite, tmp_path / name / "suite.json")
    against = [word for n in "ab" for word in ("--against", tmp_path / n / "suite.json")]
    code, text = run("decontaminate", folder, *against, "--json")
    assert code == 1
    hit = {each["benchmark"] for each in json.loads(text)["hits"]}
    assert hit == {str(tmp_path / "a" / "suite.json")}
