"""However a file is shared out, its rows and rejects are those of the file as a whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from palio.corpus.shards import ShardConfig, plan, run
from palio.corpus.shards.columns import SCHEMA
from palio.corpus.shards.shard import MANIFEST, REJECTS, ROWS, read_manifest, shard_name
from palio.corpus.shards.spans import spans_of
from palio.corpus.shards.storage import Folder
from palio.records import ConfigError
from tests.shards.making import LENIENT, chat_row, mixed_rows, write_rows
from tests.shards.test_engine import files_of, rejects_of

WHOLE = replace(LENIENT, split=0)


def log_line(problem: str, number: int) -> dict[str, Any]:
    """One line of a request log; those of one problem that follow each other are one run."""
    return {
        "problem_id": problem,
        "service": "search",
        "method": "GET",
        "path": "/search/find_product",
        "query_params": {"q": f"blue mug {number}"},
        "request_body": None,
        "response_status": 200,
        "response_body": [],
        "duration_ms": 1.0,
        "timestamp": f"2026-01-01T00:00:{number:02}Z",
    }


def awkward_lines() -> list[bytes]:
    """Everything that a line may be: rows, faults, blanks, runs of logs, carriage returns."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in mixed_rows(12)]
    log = [json.dumps(log_line(f"p{n // 5}", n)).encode() for n in range(10)]
    lines[5:5] = log
    lines[9:9] = [b"broken {", b""]  # inside a run
    lines += [b"", b"  ", json.dumps(chat_row(50)).encode() + b"\r", b"[]", b"7", b"null"]
    lines += [b"\xef\xbb\xbf" + json.dumps(chat_row(51)).encode(), b'"' + b"x" * 9_000 + b'"']
    lines += [*log[:3], json.dumps([chat_row(52), chat_row(53)]).encode(), log[4], b"\x1f\x8b{"]
    return lines


def read(out: Path, names: tuple[str, ...]) -> tuple[Any, Any]:
    """(rows, rejects) of shards in order, in comparable form."""
    tables = [pq.read_table(out / (name + ROWS)).select(SCHEMA.names) for name in names]
    rejects = [reject for name in names for reject in rejects_of(out / (name + REJECTS))]
    return [row for table in tables for row in table.to_pylist()], rejects


def made(path: Path, config: ShardConfig, out: Path) -> tuple[tuple[Any, Any], int]:
    """Rows and rejects of a file, and the number of its shards."""
    todo = plan([str(path)], config, str(out))
    manifests = run(todo, executor="inline")
    assert list(manifests) == list(todo.names) == sorted(todo.names)
    return read(out, todo.names), len(manifests)


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A file, and what it gives as a whole."""
    folder = tmp_path_factory.mktemp("spans")
    path = folder / "day.jsonl"
    path.write_bytes(b"\n".join(awkward_lines()))
    whole, shards = made(path, replace(WHOLE, max_bytes=8_000), folder / "whole")
    assert shards == 1
    assert len({reject.reason for reject in whole[1]}) > 5
    manifest = read_manifest(Folder(str(folder / "whole")), shard_name(str(path)))
    assert manifest is not None
    assert manifest.formats["request-log"] > 3
    return path, whole


@given(st.integers(1, 12_000))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_split_gives_the_same_rows(awkward: tuple[Path, Any], size: int) -> None:
    path, whole = awkward
    config = replace(LENIENT, split=size, max_bytes=8_000)
    parts, shards = made(path, config, path.parent / f"split-{size}")
    assert parts == whole
    assert shards > 1 or size > 9_000


def test_spans_are_the_file(awkward: tuple[Path, Any]) -> None:
    path, _ = awkward
    data = path.read_bytes()
    for size in (1, 100, 3_000, 10_000):
        spans = spans_of(str(path), size, 8_000)
        assert (spans[0].start, spans[0].line, spans[-1].end) == (0, 1, None)
        for before, span in pairwise(spans):
            assert before.end == span.start
            assert data[span.start - 1 : span.start] == b"\n"
            assert span.line == data.count(b"\n", 0, span.start) + 1


@pytest.mark.parametrize(
    "data",
    [
        zstandard.compress(b"\n".join(awkward_lines()), 3),
        json.dumps([chat_row(n) for n in range(9)], indent=1).encode(),
        b"\n".join(json.dumps(log_line("p", n)).encode() for n in range(40)),
        b"no json\n" + b"\n".join(awkward_lines()),
        b"",
    ],
    ids=["packed", "laid out", "a log", "unreadable", "empty"],
)
def test_what_cannot_be_entered_stays_whole(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "day.jsonl"
    path.write_bytes(data)
    assert spans_of(str(path), 500, 8_000) == ()
    parts, shards = made(path, replace(LENIENT, split=500), tmp_path / "parts")
    assert shards == 1
    assert parts == made(path, WHOLE, tmp_path / "whole")[0]


def test_a_file_that_grew_makes_its_end_again(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "day.jsonl", mixed_rows(40))
    config = replace(LENIENT, split=path.stat().st_size // 4)
    first = plan([str(path)], config, str(tmp_path / "out"))
    run(first, executor="inline")
    with path.open("ab") as file:
        file.write(json.dumps(chat_row(99)).encode() + b"\n")
    todo = plan([str(path)], config, str(tmp_path / "out"))
    assert [job.name for job in todo.left] == [todo.names[-1]]
    assert len(todo.done) >= 3
    run(todo, executor="inline")
    parts = read(tmp_path / "out", todo.names)
    assert parts == made(path, WHOLE, tmp_path / "whole")[0]


def test_a_line_more_before_makes_all_behind_it_again(tmp_path: Path) -> None:
    """The bytes of later parts are the same; the numbers of their lines are not."""
    rows = mixed_rows(40)
    path = write_rows(tmp_path / "day.jsonl", rows)
    config = replace(LENIENT, split=path.stat().st_size // 4)
    run(plan([str(path)], config, str(tmp_path / "out")), executor="inline")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'": ', b'":', 1).replace(b"\n", b"\n\n", 1))
    assert path.stat().st_size == len(data)
    todo = plan([str(path)], config, str(tmp_path / "out"))
    assert len(todo.left) == len(todo.names) > 3
    run(todo, executor="inline")
    assert read(tmp_path / "out", todo.names) == made(path, WHOLE, tmp_path / "whole")[0]


SCRIPT = """
import sys
from msgspec.structs import replace
from palio.corpus.shards import plan, run
from tests.shards.making import LENIENT
run(plan([sys.argv[1]], replace(LENIENT, split=int(sys.argv[3])), sys.argv[2]), workers=2,
    progress=lambda m: print(m.name, flush=True))
"""


def test_killed_amid_one_large_file_the_rest_is_done_later(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "day.jsonl", mixed_rows(3_000))
    config = replace(LENIENT, split=path.stat().st_size // 8)
    out = tmp_path / "out"
    command = [sys.executable, "-c", SCRIPT, str(path), str(out), str(config.split)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    finished = [child.stdout.readline().decode().strip() for _ in range(2)]
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    ages = {name: (out / (name + MANIFEST)).stat().st_mtime_ns for name in finished}
    todo = plan([str(path)], config, str(out))
    assert set(finished) <= set(todo.done)
    run(todo, executor="inline")
    assert {name: (out / (name + MANIFEST)).stat().st_mtime_ns for name in finished} == ages
    again = plan([str(path)], config, str(out))
    assert not again.left
    expected = tmp_path / "expected"
    run(plan([str(path)], config, str(expected)), executor="inline")
    assert files_of(out) == files_of(expected)
    whole = run(plan([str(path)], WHOLE, str(tmp_path / "whole")), executor="inline")
    assert read(out, again.names) == read(tmp_path / "whole", tuple(whole))


def test_names_and_faults(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "day.jsonl", mixed_rows(12))
    assert shard_name(str(path), 3) == f"{shard_name(str(path))}-00003"
    with pytest.raises(ConfigError, match="split not negative"):
        plan([str(path)], replace(LENIENT, split=-1), str(tmp_path / "out"))
