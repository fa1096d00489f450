"""The corpus commands judge, build, count and show, from files to files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
import zstandard
from click.testing import Result
from typer.testing import CliRunner

from palio.cli.corpus import app
from palio.corpus.funnel_chart import draw_funnel
from palio.corpus.reading import TraceReader
from palio.records import ConfigError, InputError, Product, Suite, Trajectory, to_json
from palio.suites import write_suite
from palio.world.catalogue import Catalogue, write_catalogue
from tests.corpus.making import PROBLEMS, made_trajectory
from tests.suites.making import made_problem


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def lines_of(trajectories: Sequence[Trajectory]) -> bytes:
    return b"".join(to_json(trajectory) + b"\n" for trajectory in trajectories)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with a suite, its catalogue and two trajectory files, one of them compressed."""
    products = [
        Product(product_id=p.rewards[0].product_id, shop_id="s1", title="Blue mug", price=12.0)
        for p in PROBLEMS
    ]
    write_catalogue(Catalogue.from_products("compact-1", products), tmp_path / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=PROBLEMS), tmp_path / "suite.json")
    runs = [made_trajectory(f"t{n}", PROBLEMS[n % 5]) for n in range(20)]
    folder = tmp_path / "runs"
    folder.mkdir()
    broken = b'{"trajectory_id": 5}\nnot json\n\xff\xfe\n\n'
    (folder / "trajectories-0.jsonl").write_bytes(lines_of(runs[:10]) + broken)
    packed = zstandard.ZstdCompressor().compress(lines_of(runs[10:]))
    (folder / "trajectories-1.jsonl.zst").write_bytes(packed)
    (folder / "verdicts.jsonl").write_bytes(b"{}\n")
    (tmp_path / "corpus.toml").write_text("coefficient = 0.3\nper_problem = 3\n")
    return tmp_path


def built(folder: Path, *more: object) -> Result:
    return run(
        *("build", "--trajectories", folder / "runs", "--suite", folder / "suite.json"),
        *("--catalogue", folder / "catalogue", "--out", folder / "corpus", "--workers", 1, *more),
    )


def test_build_funnel_and_show(inputs: Path) -> None:
    result = built(inputs, "--config", inputs / "corpus.toml", "--json")
    assert result.exit_code == 0, result.output
    funnel = json.loads(result.stdout)
    assert funnel["steps"][0] == {
        "name": "read",
        "taken": 23,
        "kept": 20,
        "rejected": {"unreadable_json": 2, "unreadable_not_a_trace": 1},
    }
    assert funnel["steps"][-1]["kept"] == 15
    again = run("funnel", inputs / "corpus", "--json", "--chart", inputs / "f.svg")
    assert json.loads(again.stdout) == funnel
    assert (inputs / "f.svg").read_text().startswith("<?xml")
    assert "over_cap 5" in run("funnel", inputs / "corpus").stdout
    pool = next(name for name, count in funnel["pools"].items() if count["rows"])
    shown = json.loads(run("show", inputs / "corpus", "--pool", pool, "--json").stdout)
    assert shown["row"]["trajectory_id"] == shown["lineage"]["trajectory_id"]
    text = run("show", inputs / "corpus", "--pool", pool).stdout
    assert "find_product" in text
    assert "I want the thing called" in text
    beyond = run("show", inputs / "corpus", "--row", 999)
    assert isinstance(beyond.exception, InputError)


def test_without_the_catalogue_the_outcome_is_missing_not_failed(inputs: Path) -> None:
    result = run(
        *("build", "--trajectories", inputs / "runs", "--suite", inputs / "suite.json"),
        *("--out", inputs / "corpus", "--workers", 1, "--json"),
    )
    outcome = next(s for s in json.loads(result.stdout)["steps"] if s["name"] == "outcome")
    assert outcome["rejected"] == {"outcome_missing": 20}


def test_an_earlier_split_can_be_kept(inputs: Path) -> None:
    built(inputs)
    before = json.loads((inputs / "corpus" / "pools.json").read_text())
    (inputs / "salted.toml").write_text('salt = "another"\n')
    built(inputs, "--config", inputs / "salted.toml", "--keep-pools", inputs / "corpus")
    assert json.loads((inputs / "corpus" / "pools.json").read_text()) == before
    built(inputs, "--config", inputs / "salted.toml")
    assert json.loads((inputs / "corpus" / "pools.json").read_text()) != before


def test_the_manifest_names_the_input_files(inputs: Path) -> None:
    built(inputs)
    manifest = json.loads((inputs / "corpus" / "manifest.json").read_text())
    assert {name.split(":")[0] for name in manifest["inputs"]} >= {"suite", "catalogue"}
    assert "trajectories:runs/trajectories-1.jsonl.zst" in manifest["inputs"]
    assert manifest["outputs"]["train.parquet"].startswith("sha256:")


def test_the_reader_keeps_what_it_cannot_read(tmp_path: Path) -> None:
    good = made_trajectory("t", PROBLEMS[0])
    path = tmp_path / "trajectories.jsonl"
    deep = b"[" * 3000 + b"]" * 3000
    surrogate = to_json(good).replace(b'"t"', rb'"\ud800"', 1)
    path.write_bytes(
        b"\n".join([to_json(good), b'{"a": NaN}', deep, b"x" * 9000, surrogate, to_json(good)])
    )
    reader = TraceReader([tmp_path], max_bytes=8000)
    mended = msgspec.structs.replace(good, trajectory_id="\ufffd")
    assert list(reader) == [good, mended, good]
    assert reader.losses == {"surrogate": 1}
    assert [(r.line, r.reason) for r in reader.rejects] == [
        (2, "not_a_trace"),
        (3, "too_deep"),
        (4, "too_long"),
    ]
    assert all(reject.file == str(path) and reject.detail for reject in reader.rejects)


def test_a_damaged_record_is_not_taken_for_a_foreign_chat(tmp_path: Path) -> None:
    row = json.loads(to_json(made_trajectory("t", PROBLEMS[0])))
    path = tmp_path / "trajectories.jsonl"
    path.write_text(json.dumps({**row, "events": 5}))
    reader = TraceReader([path])
    assert list(reader) == []
    assert [(r.line, r.reason) for r in reader.rejects] == [(1, "type")]
    assert "events" in reader.rejects[0].detail


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_truncated_file_loses_nothing_silently(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    runs = [made_trajectory(f"t{n}-{Random(n).random()}", PROBLEMS[0]) for n in range(400)]
    packed = pack(lines_of(runs))
    path = tmp_path / "cut.jsonl.z"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    reader = TraceReader([path])
    read = list(reader)
    assert read == runs[: len(read)]
    assert 0 < len(read) < 400
    assert "compression" in [reject.reason for reject in reader.rejects]


def test_a_path_without_trajectories_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError):
            TraceReader([path])


def test_charts_are_drawn_from_any_funnel(tmp_path: Path) -> None:
    from palio.corpus.funnel import Funnel, FunnelStep, PoolCount

    steps = (FunnelStep(name="only $x_1$", taken=0, kept=0, rejected={}),)
    empty = Funnel(
        steps=steps, pools={"train": PoolCount(rows=0, problems=0, clusters=0, queries=0)}
    )
    for name in ("a.png", "b.svg"):
        assert draw_funnel(empty, tmp_path / name).stat().st_size > 1000
    assert (tmp_path / "a.png").read_bytes() == draw_funnel(empty, tmp_path / "c.png").read_bytes()
    with pytest.raises(ConfigError, match="pdf"):
        draw_funnel(empty, tmp_path / "a.pdf")


def test_a_problem_in_two_suites_is_refused(inputs: Path) -> None:
    more = Suite(suite_id="m", version="1", problems=(made_problem("p000", ("1000",)),))
    write_suite(more, inputs / "more.json")
    result = built(inputs, "--suite", inputs / "more.json")
    assert isinstance(result.exception, InputError)
    assert "occurs twice" in str(result.exception)
