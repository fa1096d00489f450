"""The leak commands read suites and public task files, print JSON, and fail on a leak."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.cli.leak import app
from palio.records import IntegrityError, Suite
from palio.suites import write_suite
from tests.suites.making import made_problem


@pytest.mark.shared
def test_880_clusters_under_the_product_edge_alone(shared_data: Path) -> None:
    files = sorted(str(path) for path in shared_data.glob("tasks_shoppingbench_*.jsonl"))
    result = CliRunner().invoke(app, ["clusters", *files, "--edges", "product", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["problems"], found["clusters"], found["rejected_rows"]) == (900, 880, 0)
    assert len(found["joined"]) == 19
    assert sum(len(row["problems"]) - 1 for row in found["joined"]) == 20
    assert all(edge["rule"] == "product" for row in found["joined"] for edge in row["edges"])


@pytest.mark.shared
def test_arena_suites_join_the_tasks_that_they_were_drawn_from(shared_data: Path) -> None:
    files = [
        *sorted(str(path) for path in shared_data.glob("tasks_shoppingbench_*.jsonl")),
        *sorted(str(path) for path in shared_data.glob("oro_suite_v?.json")),
    ]
    found = json.loads(CliRunner().invoke(app, ["clusters", *files, "--json"]).stdout)
    assert (found["problems"], found["clusters"]) == (990, 880)
    assert found["edges"]["text"] == 90


def suite_file(path: Path, *products: str) -> str:
    problems = tuple(made_problem(f"p{n}", (product,)) for n, product in enumerate(products))
    renamed = tuple(
        made_problem(p.problem_id, (p.rewards[0].product_id,), query=f"{path.stem} {p.query}")
        for p in problems
    )
    write_suite(Suite(suite_id=path.stem, version="1", problems=renamed), path)
    return str(path)


def test_check_passes_and_names_a_leak(tmp_path: Path) -> None:
    one = suite_file(tmp_path / "one.json", "1", "2")
    clean = suite_file(tmp_path / "clean.json", "3")
    leaky = suite_file(tmp_path / "leaky.json", "9", "2")
    passed = CliRunner().invoke(app, ["check", one, clean, "--json"])
    assert json.loads(passed.stdout)["keys"]["product"] == 3
    failed = CliRunner().invoke(app, ["check", one, leaky])
    assert isinstance(failed.exception, IntegrityError)
    assert "share product 'compact-1/2'" in str(failed.exception)
    assert "'one/p1' and 'leaky/p1'" in str(failed.exception)


def test_the_table_names_the_edge(tmp_path: Path) -> None:
    path = suite_file(tmp_path / "s.json", "1", "1", "2")
    result = CliRunner().invoke(app, ["clusters", path])
    assert "3 problems in 2 clusters" in result.stdout
    assert "compact-1/1" in result.stdout


def test_a_file_without_problems_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("not json\n")
    result = CliRunner().invoke(app, ["clusters", str(path)])
    assert result.exit_code == 1
    assert "holds no problem; row 1" in str(result.exception)


@pytest.mark.shared
def test_similar_public_tasks_are_joined_or_listed(shared_data: Path) -> None:
    files = sorted(str(path) for path in shared_data.glob("tasks_shoppingbench_*.jsonl"))
    result = CliRunner().invoke(app, ["clusters", *files, "--similar", "--json"])
    found = json.loads(result.stdout)
    assert (found["clusters"], found["edges"]["lexical"]) == (878, 2)
    assert found["alarms"] == []
    assert 20 < len(found["suspicions"]) < 40


def test_links_and_alarms_are_shown(tmp_path: Path) -> None:
    chain = tuple(made_problem(f"c{n:02}", (str(n), str(n + 1))) for n in range(30))
    write_suite(Suite(suite_id="s", version="1", problems=chain), tmp_path / "s.json")
    (tmp_path / "links.toml").write_text('must = [["c00", "c29"]]')
    command = ["clusters", str(tmp_path / "s.json"), "--links", str(tmp_path / "links.toml")]
    result = CliRunner().invoke(app, command)
    assert "1 operator" in result.stdout
    assert "is large: 30 problems" in result.stdout
