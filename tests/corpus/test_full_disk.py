"""A disk that fills up under a library's writes is told with the folder that was being written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from palio.corpus import build as building
from palio.corpus.writers.export import ExportConfig, export
from palio.corpus.writers.tables import SplitWriter
from tests.leak.making import corpus, people


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_build_names_its_folder_and_leaves_the_corpus_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpus(tmp_path / "c", people(12))
    before = (folder / "manifest.json").read_bytes()
    monkeypatch.setattr(building, "certify", full)
    with pytest.raises(OSError, match="No space left") as error:
        corpus(folder, people(13))
    assert error.value.filename == str(folder)
    assert (folder / "manifest.json").read_bytes() == before


def test_an_export_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = corpus(tmp_path / "c", people(12))
    monkeypatch.setattr(SplitWriter, "write", full)
    with pytest.raises(OSError, match="No space left") as error:
        export(folder, ExportConfig(to="hf"), tmp_path / "out")
    assert error.value.filename == str(tmp_path / "out")
