"""What stages logged is shown as tables, JSON and one picture, for every kind and several runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio import __version__
from palio.cli.train import app
from palio.records import ConfigError, InputError, Provenance, digest
from palio.train.curves import Curve, draw_curves, labels_of, read_curves, shown, smoothed
from palio.train.run import CHAIN
from palio.train.stage import append_metrics
from palio.world.artefacts import write_manifest

STAGES = (("sft", "sft"), ("prefer", "kto"), ("grpo", "grpo"), ("later", "teacher"))


def row_of(kind: str, step: int) -> dict[str, Any]:
    more: dict[str, dict[str, Any]] = {
        "sft": {"tokens": 900 * step, "loss": 3 / step, "rate": 1.0, "seconds": 2.0 * step},
        "kto": {"loss": 0.5, "rewards/margins": -0.1 + 0.1 * step, "kl": 0.01},
        "grpo": {
            "success": 0.1 * step,
            "reward": 0.1 * step,
            "groups/mixed": 0.5,
            "groups/all_fail": 0.5,
            "groups/all_success": 0.0,
            "calls/per_rollout": 4.2,
        },
    }
    return {"step": step, **more[kind]}


def run_at(folder: Path, steps: int = 4) -> Path:
    folder.mkdir(parents=True)
    config = {"stages": [{"name": name, "kind": kind} for name, kind in STAGES]}
    manifest = Provenance(
        kind="chain", tool_version=__version__, config=config, config_digest=digest(config)
    )
    write_manifest(manifest, folder / CHAIN)
    for name, kind in STAGES[:3]:
        (folder / name).mkdir()
        for step in range(1, steps + 1):
            append_metrics(folder / name, row_of(kind, step))
    return folder


def test_stages_come_in_order_and_show_what_they_have(tmp_path: Path) -> None:
    curves = read_curves(run_at(tmp_path / "a"))
    assert [(c.stage, c.kind) for c in curves] == list(STAGES[:3]), "a stage without rows is none"
    titles = {c.kind: [panel.title for panel in shown(c)] for c in curves}
    assert titles["sft"] == ["loss, nats a token"]
    assert "margin, right over wrong" in titles["kto"]
    assert "reward of right and wrong" not in titles["kto"], "nothing was logged for it"
    assert titles["grpo"] == ["success of rollouts", "groups by success", "calls a rollout"]


def test_a_stage_is_known_by_its_run_or_its_columns(tmp_path: Path) -> None:
    run = run_at(tmp_path / "a")
    assert [c.kind for c in read_curves(run / "prefer")] == ["kto"]
    (run / CHAIN).unlink()
    curves = [read_curves(run / name)[0] for name, _ in STAGES[:3]]
    assert [curve.kind for curve in curves] == ["sft", "kto", "grpo"]
    assert [curve.stage for curve in curves] == ["sft", "kto", "grpo"], "alike in another run"
    with pytest.raises(InputError, match="no learning curve"):
        read_curves(tmp_path)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_runs_share_one_picture(tmp_path: Path, ending: str) -> None:
    runs = labels_of([run_at(tmp_path / "x" / "run"), run_at(tmp_path / "y" / "run", 2)])
    assert list(runs) == ["x/run", "y/run"], "two runs of one name are told apart"
    target = draw_curves(runs, tmp_path / f"c.{ending}")
    assert target.stat().st_size > 10_000
    again = draw_curves(runs, tmp_path / f"d.{ending}")
    assert again.read_bytes() == target.read_bytes()
    with pytest.raises(ConfigError, match="ends in"):
        draw_curves(runs, tmp_path / "c.txt")
    full = tmp_path / f"full.{ending}"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        draw_curves(runs, full)
    assert error.value.filename == str(full)


def test_lines_are_the_values_that_were_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palio.train import curves

    kept: list[Any] = []
    monkeypatch.setattr(curves.pyplot, "close", kept.append)
    draw_curves(labels_of([run_at(tmp_path / "a"), run_at(tmp_path / "b", 2)]), tmp_path / "c.png")
    panels = {
        (axis.get_title("left"), axis.get_title("right")): axis
        for axis in kept[0].axes
        if axis.get_visible()
    }
    loss = panels["sft", "loss, nats a token"]
    assert loss.get_xlabel() == "tokens"
    first, mean, second, _ = loss.get_lines()
    assert list(first.get_xdata()) == [900, 1800, 2700, 3600]
    assert list(first.get_ydata()) == [3.0, 1.5, 1.0, 0.75]
    assert list(mean.get_ydata()) == pytest.approx(smoothed([3.0, 1.5, 1.0, 0.75], 5))
    assert len(second.get_xdata()) == 2
    assert first.get_color() != second.get_color()
    groups = panels["grpo", "groups by success"]
    texts = [text.get_text() for text in groups.get_legend().get_texts()]
    assert texts == ["mixed", "all_fail", "all_success"]
    curves.pyplot.rcdefaults()


def test_on_the_command_line(tmp_path: Path) -> None:
    run, other = run_at(tmp_path / "a"), run_at(tmp_path / "b", 1)
    out = tmp_path / "c.png"
    made = CliRunner().invoke(app, ["curve", str(run), str(other), "--out", str(out)])
    assert made.exit_code == 0, made.output
    assert out.read_bytes()[:4] == b"\x89PNG"
    table = CliRunner().invoke(app, ["curve", str(run)]).output
    assert {"a:", "success", "rewards/margins", "0.75"} <= set(table.split())
    rows = json.loads(CliRunner().invoke(app, ["curve", str(run), "--json"]).stdout)
    assert len(rows) == 12
    assert {row["stage"] for row in rows} == {"sft", "prefer", "grpo"}
    assert rows[0] == {"run": "a", "stage": "sft", "kind": "sft", **row_of("sft", 1)}


def test_a_mean_of_what_was_there() -> None:
    assert smoothed([4.0, 2.0, 0.0], 2) == [4.0, 3.0, 1.0]
    assert shown(Curve("s", "sft", [{"step": 1}])) == []


def test_a_column_that_says_the_same_is_drawn_once() -> None:
    rows = [{"step": at, "success": at / 4, "reward": at / 4} for at in range(3)]
    (panel,) = shown(Curve("g", "grpo", rows))
    assert panel.names == ("success",)
    rows[0]["reward"] = 0.5
    assert shown(Curve("g", "grpo", rows))[0].names == ("success", "reward")
