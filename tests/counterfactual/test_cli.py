"""palio judge counterfactual: tables, files, and recorded runs with stored verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.cli.main import app
from palio.evaluate.counterfactual import measure, save_chart
from palio.judging.store import append_verdicts
from palio.records import ConfigError, JudgeId, ReasoningVerdict, to_json
from palio.world.catalogue import write_catalogue
from tests.counterfactual.small import forked, recorded, setting


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["judge", "counterfactual", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.stdout


def test_agents_are_run_forked_and_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = run(
        *("--problems", 3, "--products", 120, "--agent", "careful", "--agent", "hasty"),
        *("--out", out),
    )
    for text in ("decisive datum", "placebo", "By datum", "Kendall", "hasty"):
        assert text in shown
    written = json.loads((out / "counterfactual.json").read_text())
    assert written["runs"] == 6
    assert len((out / "forks.jsonl").read_text().splitlines()) == 6
    assert len((out / "trajectories.jsonl").read_text().splitlines()) == 6
    assert (out / "counterfactual.svg").read_text().startswith("<svg")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["kind"] == "counterfactual"
    assert manifest["counts"]["runs"] == 6


def test_recorded_runs_are_forked_beside_stored_verdicts(tmp_path: Path) -> None:
    runs = recorded("careful")[:4]
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "trajectories.jsonl").write_bytes(b"".join(to_json(one) + b"\n" for one in runs))
    judge = JudgeId(name="somebody", version="1")
    append_verdicts(
        folder / "verdicts.jsonl",
        [
            ReasoningVerdict(
                trajectory_id=one.trajectory_id,
                problem_id=one.problem_id,
                judge=judge,
                status="judged",
                quality=quality,
                coefficient=0.9,
            )
            for one, quality in zip(runs, (0.1, 0.3, 0.5, 0.9), strict=True)
        ],
    )
    write_catalogue(setting()[0].catalogue, tmp_path / "catalogue")
    found = json.loads(run(folder, "--catalogue", tmp_path / "catalogue", "--json"))
    assert found["unforkable"] == {}
    assert [check["judge"]["name"] for check in found["judges"]][1:] == ["somebody"]
    assert all(check["n"] == 4 for check in found["judges"])


def test_the_picture_is_the_same_for_the_same_numbers(tmp_path: Path) -> None:
    found = measure(forked("careful"))
    for name in ("x.svg", "again.svg", "x.png"):
        save_chart(found, tmp_path / name)
    assert (tmp_path / "x.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert (tmp_path / "x.png").stat().st_size > 5_000
    with pytest.raises(ConfigError, match="picture"):
        save_chart(found, tmp_path / "x.pdf")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "trajectories.jsonl").write_bytes(to_json(recorded("careful")[0]) + b"\n")
    for arguments, what in (
        ((folder,), "world of their catalogue"),
        (("--checkpoint", "somewhere"), "names no policy"),
        (("--agent", "nobody"), "no bundled agent is called 'nobody'"),
    ):
        found = CliRunner().invoke(app, ["judge", "counterfactual", *map(str, arguments)])
        assert found.exit_code != 0
        assert what in f"{found.output}{found.exception}"
