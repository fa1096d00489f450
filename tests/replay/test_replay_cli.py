"""`palio replay` counts, names what is wrong, and says so by its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from palio.cli.replay import replay
from palio.records import ConfigError, Trajectory, to_json
from palio.world.catalogue import write_catalogue
from tests.replay.test_replay import altered
from tests.salvage.making import runs, world_and_problems


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogue")
    write_catalogue(world_and_problems()[0].catalogue, folder)
    return folder


def called(*words: object) -> Result:
    app = typer.Typer()
    app.command()(replay)
    return CliRunner().invoke(app, [str(word) for word in words])


def written(folder: Path, *trajectories: Trajectory) -> Path:
    path = folder / "trajectories.jsonl"
    path.write_bytes(b"".join(to_json(each) + b"\n" for each in trajectories))
    return path


def test_all_match_is_exit_0(tmp_path: Path, catalogue: Path) -> None:
    result = called(written(tmp_path, *runs("narrator")), "--catalogue", catalogue, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["worst"] == {"match": len(runs("narrator")), "drift": 0, "forged": 0}
    assert found["replays"][0]["observations"][0]["status"] == "match"


def test_a_forgery_is_named_and_exit_1(tmp_path: Path, catalogue: Path) -> None:
    forged = altered(runs("narrator")[0], 0, result="[]")
    path = written(tmp_path, runs("narrator")[1], forged)
    result = called(path, "--catalogue", catalogue)
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "forged" in said
    assert forged.trajectory_id in said
    assert "observation 0" in said


def test_what_cannot_be_replayed_is_not_passed_over(tmp_path: Path, catalogue: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_bytes(b"no json\n")
    assert called(path, "--catalogue", catalogue).exit_code == 1
    stranger = msgspec.structs.replace(runs("narrator")[0], catalogue="elsewhere")
    other = tmp_path / "other"
    catalogue_of = world_and_problems()[0].catalogue
    write_catalogue(type(catalogue_of)("b", catalogue_of.products), other)
    path = written(tmp_path, stranger)
    result = called(path, "--catalogue", catalogue, "--catalogue", other, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["catalogue_missing"] == {"elsewhere": 1}


def test_an_unknown_world_is_refused(tmp_path: Path, catalogue: Path) -> None:
    result = called(written(tmp_path), "--catalogue", catalogue, "--world", "huge")
    assert isinstance(result.exception, ConfigError)
