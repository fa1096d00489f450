"""Shards are resumable whatever kills them, and the same bytes whoever makes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
import zstandard
from msgspec.structs import replace

from palio.corpus.shards import ShardJob, ShardManifest, make_shard, plan, run
from palio.corpus.shards.screen import ShardReject
from palio.corpus.shards.shard import MANIFEST, REJECTS, ROWS, shard_name
from palio.records import ConfigError, InputError, IntegrityError, from_json
from palio.world.artefacts import file_digest
from tests.shards.making import LENIENT, chat_row, mixed_rows, write_rows


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def inputs(folder: Path, shards: int, rows: int = 30) -> list[str]:
    for number in range(shards):
        write_rows(folder / f"day-{number}.jsonl.zst", mixed_rows(rows, start=number * rows))
    return [str(folder)]


def rejects_of(path: Path) -> list[ShardReject]:
    data = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    return [from_json(line, ShardReject) for line in data.splitlines()]


def test_every_row_is_kept_or_rejected_with_its_place(tmp_path: Path) -> None:
    rows = mixed_rows(25)
    path = write_rows(tmp_path / "in" / "day.jsonl.zst", rows)
    out = tmp_path / "out"
    (manifest,) = run(plan([str(path)], LENIENT, str(out)), executor="inline").values()
    assert manifest.taken == len(rows) == manifest.kept + sum(manifest.rejected.values())
    assert manifest.input_sha256 == file_digest(path)
    assert manifest.input_bytes == path.stat().st_size
    assert manifest.outputs == {
        name: file_digest(out / name) for name in (manifest.name + ROWS, manifest.name + REJECTS)
    }
    table = pq.read_table(out / (manifest.name + ROWS))
    rejects = rejects_of(out / (manifest.name + REJECTS))
    places = sorted([*table["line"].to_pylist(), *(reject.line for reject in rejects)])
    assert places == list(range(1, len(rows) + 1))
    assert {reject.file for reject in rejects} == {str(path)}
    assert manifest.rejected == {
        "bad_arguments": 5,
        "orphan_result": 5,
        "recommend_missing": 5,
        "unreadable_json": 5,
    }


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    names = inputs(tmp_path / "in", 2)
    first = run(plan(names, LENIENT, str(tmp_path / "out")), executor="inline")
    before = files_of(tmp_path / "out")
    again = plan(names, LENIENT, str(tmp_path / "out"))
    assert not again.left
    assert run(again, executor="inline") == first
    assert files_of(tmp_path / "out") == before


def test_what_changed_is_made_again_and_nothing_else(tmp_path: Path) -> None:
    names = inputs(tmp_path / "in", 3)
    out = str(tmp_path / "out")
    made = run(plan(names, LENIENT, out), executor="inline")
    changed = tmp_path / "in" / "day-1.jsonl.zst"
    write_rows(changed, mixed_rows(30, start=500))
    todo = plan(names, LENIENT, out)
    assert [job.input for job in todo.left] == [str(changed)]
    again = run(todo, executor="inline")
    assert {name for name in made if again[name] != made[name]} == {shard_name(str(changed))}
    other = replace(LENIENT, corpus=replace(LENIENT.corpus, thinking=1.0))
    assert len(plan(names, other, out).left) == 3


@pytest.mark.parametrize("ending", [ROWS, REJECTS, MANIFEST])
@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_a_damaged_output_is_made_again(tmp_path: Path, ending: str, damage: str) -> None:
    names = inputs(tmp_path / "in", 2)
    run(plan(names, LENIENT, str(tmp_path / "out")), executor="inline")
    before = files_of(tmp_path / "out")
    victim = sorted((tmp_path / "out").glob(f"*{ending}"))[0]
    if damage == "removed":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-3])
    todo = plan(names, LENIENT, str(tmp_path / "out"))
    assert len(todo.left) == 1
    run(todo, executor="inline")
    assert files_of(tmp_path / "out") == before


def test_processes_make_the_same_bytes(tmp_path: Path) -> None:
    names = inputs(tmp_path / "in", 4)
    seen: list[ShardManifest] = []
    one = plan(names, LENIENT, str(tmp_path / "one"))
    other = plan(names, LENIENT, str(tmp_path / "two"))
    run(one, executor="inline")
    run(other, executor="processes", workers=2, progress=seen.append)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert {manifest.name for manifest in seen} == set(other.names)


def test_both_ways_make_the_same_bytes(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "day.jsonl", mixed_rows(60))
    for name, direct in (("direct", True), ("general", False)):
        make_shard(ShardJob("day", str(path), str(tmp_path / name), LENIENT, direct))
    assert files_of(tmp_path / "direct") == files_of(tmp_path / "general")


SCRIPT = """
import sys
from palio.corpus.shards import plan, run
from tests.shards.making import LENIENT
run(plan([sys.argv[1]], LENIENT, sys.argv[2]), executor=sys.argv[3], workers=2,
    progress=lambda m: print(m.name, flush=True))
"""


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_killed_at_any_moment_nothing_is_lost_or_done_twice(tmp_path: Path, executor: str) -> None:
    names = inputs(tmp_path / "in", 8, rows=400)
    expected = tmp_path / "expected"
    run(plan(names, LENIENT, str(expected)), executor="inline")
    out = tmp_path / "out"
    command = [sys.executable, "-c", SCRIPT, names[0], str(out), executor]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    finished = [child.stdout.readline().decode().strip() for _ in range(2)]
    time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)  # the workers too
    child.wait()
    child.stdout.close()
    ages = {name: (out / (name + MANIFEST)).stat().st_mtime_ns for name in finished}
    todo = plan(names, LENIENT, str(out))
    assert set(finished) <= set(todo.done)
    made: list[str] = []
    run(todo, executor="inline", progress=lambda manifest: made.append(manifest.name))
    assert set(made) == {job.name for job in todo.left}
    assert not set(made) & set(finished)
    assert {name: (out / (name + MANIFEST)).stat().st_mtime_ns for name in finished} == ages
    assert not plan(names, LENIENT, str(out)).left  # clears away what was half written, too
    assert files_of(out) == files_of(expected)


def test_a_killed_worker_is_told_and_the_rest_can_be_done(tmp_path: Path) -> None:
    """The kernel kills workers that take too much memory: the run must end, and say what to do."""
    names = inputs(tmp_path / "in", 6, rows=400)
    out = tmp_path / "out"
    script = SCRIPT.replace("run(plan", "import multiprocessing as m, os, signal\nrun(plan", 1)
    script = script.replace(
        "print(m.name, flush=True)", "os.kill(m_.active_children()[0].pid, signal.SIGKILL)"
    ).replace("import multiprocessing as m,", "import multiprocessing as m_,")
    command = [sys.executable, "-c", script, names[0], str(out), "processes"]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert b"run the same command again" in ended.stderr
    run(plan(names, LENIENT, str(out)), executor="inline")
    assert not plan(names, LENIENT, str(out)).left
    assert len(list(out.glob(f"*{MANIFEST}"))) == 6
    assert not list(out.glob(".*"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_makes_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the cluster executor needs ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    names = inputs(tmp_path / "in", 4)
    run(plan(names, LENIENT, str(tmp_path / "here")), executor="inline")
    run(plan(names, LENIENT, str(tmp_path / "there")), executor="ray", workers=2)
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


def test_bad_files_are_counted_rejects(tmp_path: Path) -> None:
    packed = zstandard.compress(
        b"".join(msgspec.json.encode(chat_row(n)) + b"\n" for n in range(9))
    )
    (tmp_path / "cut.jsonl.zst").write_bytes(packed[:-20])
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "long.jsonl").write_bytes(
        b'"' + b"x" * 3000 + b'"\n' + json.dumps(chat_row(1)).encode()
    )
    config = replace(LENIENT, max_bytes=2_900)
    made = run(plan([str(tmp_path)], config, str(tmp_path / "out")), executor="inline")
    by_stem = {name.rsplit("-", 1)[0]: manifest for name, manifest in made.items()}
    assert by_stem["cut"].rejected == {"unreadable_compression": 1}
    assert by_stem["empty"].taken == 0
    assert by_stem["long"].rejected == {"unreadable_too_long": 1}
    assert by_stem["long"].kept == 1


def test_faults_have_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trace files"):
        plan([str(tmp_path / "nothing*")], LENIENT, str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="no format"):
        plan([str(tmp_path)], replace(LENIENT, format="x"), str(tmp_path / "out"))
    path = write_rows(tmp_path / "a.jsonl", [chat_row(0)])
    todo = plan([str(path)], LENIENT, str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="no executor"):
        run(todo, executor="cloud")  # type: ignore[arg-type]
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        run(todo, executor="inline")
    path = write_rows(tmp_path / "a.jsonl", [chat_row(0)])
    (made,) = run(todo, executor="inline").values()
    with pytest.raises(IntegrityError, match="1 rows in"):
        replace(made, kept=0).checked()
