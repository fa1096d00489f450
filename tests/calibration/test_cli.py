"""palio judge calibrate: tables for people, JSON for programs, drift against stored verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.cli.main import app
from palio.evaluate.calibration import LabelledRow, shipped_labels
from palio.records import JudgeId, ReasoningVerdict, Trajectory, to_json


def run(*words: object) -> str:
    result = CliRunner().invoke(app, ["judge", "calibrate", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every sixth row of the shipped set, as a file of somebody's own."""
    file = tmp_path_factory.mktemp("labels") / "mine.jsonl"
    rows = shipped_labels()[::6]
    file.write_bytes(b"".join(to_json(row) + b"\n" for row in rows))
    return file


def test_a_judge_is_measured_and_written(labels: Path, tmp_path: Path) -> None:
    shown = run(labels, "--out", tmp_path / "out", "--misses", 2)
    for text in ("weighted kappa", "Confusion", "population: trace", "4 comparison", "label 0."):
        assert text in shown
    written = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert written["overall"]["n"] == len(labels.read_bytes().splitlines())
    assert (tmp_path / "out" / "calibration.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "calibration.svg").read_text().startswith("<svg")


def test_stored_verdicts_are_measured_and_compared(labels: Path, tmp_path: Path) -> None:
    run(labels, "--out", tmp_path / "now")
    rows = [json.loads(line) for line in labels.read_bytes().splitlines()]
    older = tmp_path / "older.jsonl"
    older.write_bytes(
        b"".join(
            to_json(
                ReasoningVerdict(
                    trajectory_id=row["trajectory"]["trajectory_id"],
                    problem_id=row["trajectory"]["problem_id"],
                    judge=JudgeId(name="always", version="0"),
                    status="judged",
                    quality=0.5,
                )
            )
            + b"\n"
            for row in rows
        )
    )
    plain = json.loads(run(labels, "--verdicts", tmp_path / "now", "--against", older, "--json"))
    assert plain["judge"]["name"] == "evidence-v2"
    assert plain["drift"]["n"] == len(rows)
    assert plain["drift"]["accuracy"]["difference"] > 0
    shown = run(labels, "--verdicts", older)
    assert "always 0" in shown
    assert "McNemar" in run(labels, "--verdicts", tmp_path / "now", "--against", older)


def test_labels_alone_suffice_for_stored_verdicts(tmp_path: Path) -> None:
    """Labels of people may name trajectories that lie elsewhere."""
    labels, verdicts = tmp_path / "labels.jsonl", tmp_path / "v.jsonl"
    labels.write_bytes(
        b"".join(
            to_json(LabelledRow(label=label, trajectory_id=f"t{n}")) + b"\n"
            for n, label in enumerate((0.1, 0.5, 0.9))
        )
    )
    judge = JudgeId(name="j", version="1")
    verdicts.write_bytes(
        b"".join(
            to_json(
                ReasoningVerdict(
                    trajectory_id=f"t{n}", problem_id="p", judge=judge, status="judged", quality=q
                )
            )
            + b"\n"
            for n, q in enumerate((0.1, 0.7, 0.9))
        )
    )
    plain = json.loads(run(labels, "--verdicts", verdicts, "--json"))
    assert plain["overall"]["exact"]["value"] == pytest.approx(2 / 3)


def test_a_model_judge_is_asked_for_all_rows_at_once(
    labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palio.cli import judge_choice

    asked: list[int] = []

    class Model:
        def verdicts(self, runs: tuple[Trajectory, ...]) -> Iterator[ReasoningVerdict]:
            asked.append(len(runs))
            for place, run_ in enumerate(runs):
                yield ReasoningVerdict(
                    trajectory_id=run_.trajectory_id,
                    problem_id=run_.problem_id,
                    judge=JudgeId(name="model", version="1"),
                    status="judged" if place else "unjudged",
                    quality=0.5 if place else None,
                )

        verdict = None

    monkeypatch.setattr(judge_choice, "reasoning_judge", lambda *_: Model())
    monkeypatch.setattr(judge_choice, "as_llm", lambda judge: judge)
    plain = json.loads(run(labels, "--judge", "llm:any.toml", "--json"))
    assert asked == [plain["overall"]["n"] + 1]
    assert plain["overall"]["unjudged"] == 1
    assert plain["overall"]["kappa"]["value"] == 0


def test_one_split_alone(labels: Path) -> None:
    plain = json.loads(run(labels, "--split", "development", "--json"))
    assert set(plain["groups"]["split"]) == {"development"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--judge", "oracle"), "no judge is called 'oracle'"),
        (("--judge", "llm:nowhere.toml"), "nowhere.toml"),
        (("--split", "neither"), "no row is in split 'neither'"),
        (("--verdicts", "nowhere.jsonl"), "there is no such file"),
    ],
)
def test_mistakes_are_named(labels: Path, words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["judge", "calibrate", str(labels), *words])
    assert result.exit_code != 0
    assert message in str(result.exception)
