"""`palio corpus export` writes what trainers load, from a finished corpus or from bare traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import Result
from typer.testing import CliRunner

from palio.cli.corpus import app
from palio.corpus.build import build
from palio.corpus.config import POOLS, CorpusConfig
from palio.corpus.lineage import read_lineage
from palio.corpus.readers.importing import TraceImport
from palio.corpus.rows import read_rows
from palio.corpus.writers.export import ExportConfig, export
from palio.records import ConfigError, Provenance, from_json, to_json
from palio.rollout.verdicts import Judged
from tests.corpus.making import made_problems, made_row, made_trajectory

PROBLEMS = made_problems(30)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: Any) -> Path:
    """60 successes and 30 failures of 30 problems, built."""
    folder: Path = tmp_path_factory.mktemp("corpus")
    judged: list[Judged] = []
    for problem in PROBLEMS:
        judged += [made_row(f"{problem.problem_id}-{n}", problem) for n in range(2)]
        judged.append(made_row(f"{problem.problem_id}-bad", problem, success=False))
    funnel = build(judged, PROBLEMS, CorpusConfig(coefficient=0.3), folder)
    assert funnel.kept == 60
    return folder


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("to", ["hf", "hf-flat", "kto", "grpo", "atif"])
def test_every_pool_stays_apart_and_is_read_back(corpus: Path, tmp_path: Path, to: str) -> None:
    result = run("export", corpus, "--to", to, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    for pool in POOLS:
        names = {row.trajectory_id for row in read_rows(corpus / f"{pool}.jsonl")}
        found = rows(tmp_path / f"{pool}.jsonl")
        bad = {row["trajectory_id"] for row in found if row["trajectory_id"].endswith("-bad")}
        assert {row["trajectory_id"] for row in found} - bad == names
        assert bool(bad) == (to == "kto" and bool(names))
        assert len(found) == report["rows"][pool]
        if to == "atif":
            assert not (tmp_path / f"{pool}.parquet").exists()
        else:
            assert pq.ParquetFile(tmp_path / f"{pool}.parquet").metadata.num_rows == len(found)
    manifest = from_json((tmp_path / "manifest.json").read_bytes(), Provenance)
    assert manifest.kind == "export"
    assert set(manifest.outputs) >= {"README.md", "train.jsonl", "losses.jsonl.zst"}
    if to in ("hf", "hf-flat", "atif"):
        # the parquet files are the same rows, so only one of the two is read
        again = TraceImport([tmp_path / f"{pool}.jsonl" for pool in POOLS])
        assert len(list(again)) == 60
        assert not again.rejects
        assert report["losses"] == {}


def test_kto_labels_are_the_verdicts(corpus: Path, tmp_path: Path) -> None:
    report = export(corpus, ExportConfig(to="kto"), tmp_path)
    assert sum(report.rows.values()) == 90
    good = {line.trajectory_id for line in read_lineage(corpus) if line.success("oro")}
    for pool in POOLS:
        for row in rows(tmp_path / f"{pool}.jsonl"):
            assert row["label"] is (row["trajectory_id"] in good)


def test_another_export_replaces_the_files_of_the_first(corpus: Path, tmp_path: Path) -> None:
    export(corpus, ExportConfig(to="hf"), tmp_path)
    export(corpus, ExportConfig(to="atif"), tmp_path)
    assert not (tmp_path / "train.parquet").exists()
    first = (tmp_path / "manifest.json").read_bytes()
    export(corpus, ExportConfig(to="atif"), tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == first


def test_bare_traces_are_one_split(tmp_path: Path) -> None:
    source = tmp_path / "runs.jsonl"
    runs = [made_trajectory(f"t{n}", PROBLEMS[n]) for n in range(3)]
    source.write_bytes(b"".join(to_json(run) + b"\n" for run in runs) + b"not json\n")
    report = export(source, ExportConfig(to="hf", arguments="object"), tmp_path / "out")
    assert (report.rows, report.unread) == ({"train": 3}, 1)
    assert not (tmp_path / "out" / "train.parquet").exists()
    call = rows(tmp_path / "out" / "train.jsonl")[0]["messages"][1]["tool_calls"][0]
    assert call["function"]["arguments"] == {"q": "blue mug"}
    packed = zstandard.ZstdDecompressor().stream_reader(
        (tmp_path / "out" / "losses.jsonl.zst").read_bytes()
    )
    lost = [json.loads(line) for line in packed.read().splitlines()]
    assert [line["trajectory_id"] for line in lost] == ["t0", "t1", "t2"]
    assert report.losses["catalogue" if runs[0].catalogue else "agent.kind"] == 3


def test_refusals(tmp_path: Path, corpus: Path) -> None:
    source = tmp_path / "runs.jsonl"
    source.write_bytes(to_json(made_trajectory("t", PROBLEMS[0])))
    with pytest.raises(ConfigError, match="labelled"):
        export(source, ExportConfig(to="kto"), tmp_path / "out")
    with pytest.raises(ConfigError, match="one form"):
        export(corpus, ExportConfig(to="atif", arguments="object"), tmp_path / "out")
    result = run("export", corpus, "--to", "csv", "--out", tmp_path / "out")
    assert isinstance(result.exception, ConfigError)


def test_import_then_export_on_the_command_line(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(row)}\nbroken\n{json.dumps(row)}\n")
    out = tmp_path / "in" / "runs.jsonl.zst"
    result = run("import", tmp_path / "a.jsonl", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["records"], found["trajectories"]) == (3, 2)
    assert found["formats"] == {"chat": 2}
    assert found["losses"] == {"duplicate_id": 1}
    assert found["rejects"] == {"json": 1}
    rejects = rows(out.with_name("runs.rejects.jsonl"))
    assert [(r["line"], r["reason"]) for r in rejects] == [(2, "json")]
    manifest = from_json(out.with_name("runs.manifest.json").read_bytes(), Provenance)
    assert manifest.counts["records"] == 3
    assert len(list(TraceImport([out]))) == 2
    shown = run("import", tmp_path / "a.jsonl", "--out", tmp_path / "b.jsonl.gz")
    assert "3 records, 2 trajectories, 1 rejected" in shown.output.replace("\n", " ")
    result = run("export", out, "--to", "grpo", "--out", tmp_path / "grpo", "--json")
    assert json.loads(result.stdout)["skipped"] == {"no_call": 2}


def test_standard_input(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "q"}]}
    packed = zstandard.ZstdCompressor().compress(json.dumps(row).encode())
    words = ["import", "-", "--out", str(tmp_path / "o.jsonl"), "--json"]
    result = CliRunner().invoke(app, words, input=packed)
    assert json.loads(result.stdout)["formats"] == {"chat": 1}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("to", ["hf", "hf-flat", "kto", "grpo"])
def test_datasets_loads_what_is_written(
    corpus: Path, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way in gives the same rows, and no tool call gets another one's arguments."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    report = export(corpus, ExportConfig(to=to), tmp_path / "out")  # type: ignore[arg-type]
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=cache)
    assert {split: loaded[split].num_rows for split in loaded} == report.rows
    lines = datasets.load_dataset(
        "json", data_files=str(tmp_path / "out" / "train.jsonl"), split="train", cache_dir=cache
    )
    column = "messages" if to.startswith("hf") else "prompt"
    for data in (loaded["train"], lines):
        for row, wrote in zip(data, rows(tmp_path / "out" / "train.jsonl"), strict=True):
            held = row[column] + row.get("completion", [])
            meant = wrote[column] + wrote.get("completion", [])
            assert [without_nulls(m) for m in held] == [without_nulls(m) for m in meant]
            assert row["tools"] == wrote["tools"]
            assert json.loads(row["tools"])


def without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None}


def test_from_list_puts_nulls_into_objects_and_not_into_text(tmp_path: Path) -> None:
    """The trap that the text form avoids, on the installed version of `datasets`."""
    datasets = pytest.importorskip("datasets")
    calls = [{"arguments": {"q": "mug"}}, {"arguments": {"product_ids": "1"}}]
    trapped = datasets.Dataset.from_list(calls)[0]["arguments"]
    text = datasets.Dataset.from_list([{"arguments": json.dumps(c["arguments"])} for c in calls])
    assert trapped in ({"q": "mug", "product_ids": None}, {"product_ids": None, "q": "mug"})
    assert json.loads(text[0]["arguments"]) == {"q": "mug"}
