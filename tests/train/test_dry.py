"""A dry run reads no data of the user's, and says so instead of passing it over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio import __version__
from palio.cli.train import app
from palio.records import ConfigError, InputError, Provenance
from palio.train import dry
from palio.train.audit import audit_run
from palio.train.reading import read_recipe
from palio.train.run import CHAIN, Options
from palio.world.artefacts import write_manifest

RECIPE = {"name": "t", "stage": [{"kind": "sft"}]}


@pytest.mark.parametrize("option", ["--corpus", "--suite", "--catalogue", "--pools"])
def test_data_beside_a_dry_run_is_refused(option: str) -> None:
    found = CliRunner().invoke(app, ["demo", "--dry-run", option, "some"])
    assert isinstance(found.exception, ConfigError)
    assert f"reads no {option}" in found.exception.what
    assert "--dry-run" in found.exception.remedy


def test_every_option_is_found_from_the_help_of_the_noun() -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert "--dry-run" in text
    assert "palio train run --help" in text
    assert "--dry-run" in CliRunner().invoke(app, ["run", "--help"]).output


def test_a_kept_folder_can_be_done_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Options] = []

    def train(*_: Any, options: Options, **__: Any) -> None:
        given.append(options)

    monkeypatch.setattr(dry, "train", train)
    monkeypatch.setattr(dry, "_material", lambda *_: (tmp_path, None))
    for redo in (False, True):
        dry.dry_run(read_recipe(RECIPE), tmp_path, redo=redo)
    assert [each.redo for each in given] == [False, True]


def test_an_audit_says_what_a_dry_run_is(tmp_path: Path) -> None:
    small = dry.rehearsed(read_recipe(RECIPE))
    config = {"recipe": small.name, **small.prefix(1)}
    manifest = Provenance(kind="chain", tool_version=__version__, config=config)
    write_manifest(manifest, tmp_path / CHAIN)
    with pytest.raises(InputError, match="a dry run reads no corpus") as found:
        audit_run(tmp_path, tmp_path / "corpus", tmp_path / "suite.json")
    assert "--dry-run" in found.value.remedy
