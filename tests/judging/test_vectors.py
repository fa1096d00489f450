from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.cli.score import app
from palio.judging import OutcomeScorer, default_encoder
from palio.records import InputError
from palio.world import read_catalogue
from palio.world.importing import import_suite

RUNNER = CliRunner()


@pytest.mark.shared
def test_every_golden_row_agrees(shared_data: Path) -> None:
    result = RUNNER.invoke(app, ["vectors", str(shared_data / "scorer_vectors.jsonl")])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["upstream: 326/326", "oro: 326/326"]


def run(shared_data: Path, file: Path, *options: str) -> tuple[int, str]:
    names = ["--tasks", str(shared_data), "--catalogue", str(shared_data / "products_real.jsonl")]
    result = RUNNER.invoke(app, ["vectors", str(file), *names, *options])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.shared
def test_a_row_that_disagrees_is_shown_and_fails(shared_data: Path, tmp_path: Path) -> None:
    rows = (shared_data / "scorer_vectors.jsonl").read_text().splitlines()[:40]
    row = json.loads(rows[7])
    row["oro"]["rule"] = 0.123
    file = tmp_path / "vectors.jsonl"
    file.write_text("\n".join([*rows[:7], json.dumps(row), *rows[8:]]))
    code, output = run(shared_data, file)
    assert code == 1
    assert "upstream: 40/40" in output
    assert "oro: 39/40" in output
    assert f"{file}:8 oro rule: expected 0.123" in output
    code, output = run(shared_data, file, "--json")
    report = json.loads(output)
    assert code == 1
    assert report["agreed"] == {"upstream": 40, "oro": 39}
    assert report["total"] == 40
    assert report["disagreements"][0]["line"] == 8


@pytest.mark.shared
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{broken", "not a scorer vector"),
        ('{"kind": "other"}', "not a scorer vector"),
        (
            '{"kind":"traj","task":["product",9999],"title_sim":1,"upstream":{},"oro":{}}',
            "no task file",
        ),
        (
            '{"kind":"rule","task":["shop",0,9],"title_sim":1,"upstream":{},"oro":{}}',
            "no item",
        ),
        (
            '{"kind":"rule","task":["shop",0,0],"title_sim":1,"upstream":{},"oro":{},"product":{}}',
            "no product",
        ),
    ],
)
def test_a_bad_row_names_file_and_line(
    shared_data: Path, tmp_path: Path, line: str, what: str
) -> None:
    good = (shared_data / "scorer_vectors.jsonl").read_text().splitlines()[0]
    file = tmp_path / "vectors.jsonl"
    file.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(InputError, match=f"vectors.jsonl:3: .*{what}"):
        run(shared_data, file)


def test_missing_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["vectors", "none.jsonl"])
    assert isinstance(result.exception, InputError)
    (tmp_path / "some.jsonl").write_text("{}")
    result = RUNNER.invoke(app, ["vectors", "some.jsonl"])
    assert isinstance(result.exception, InputError)
    assert "--tasks" in str(result.exception)


@pytest.mark.shared
def test_the_truth_succeeds_on_all_900_real_tasks(shared_data: Path) -> None:
    suite, rejects = import_suite(*sorted(shared_data.glob("tasks_shoppingbench_*.jsonl")))
    assert not rejects
    catalogue, _ = read_catalogue(shared_data / "products_real.jsonl")
    scorer = OutcomeScorer(catalogue.products, default_encoder())
    answers = {
        task.problem_id: ",".join(reward.product_id for reward in task.rewards)
        for task in suite.problems
    }
    wins = [
        scorer.score_answer(task, answers[task.problem_id], "upstream")[1]
        for task in suite.problems
    ]
    assert (sum(wins), len(wins)) == (900, 900)
