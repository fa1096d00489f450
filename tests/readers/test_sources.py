"""Files of every packing and layout, broken ones too: each record is read or rejected."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from palio.corpus.readers.importing import TraceImport
from palio.corpus.readers.sources import named_files, records_of
from palio.records import ConfigError, InputError
from tests.readers.making import QUERY, chat, codes, imported, lines, made, searched, step

ROWS = [chat(id=f"r{n}", note="x" * 50) for n in range(40)]


def packed(data: bytes, how: str) -> bytes:
    if how == "gz":
        return gzip.compress(data)
    if how == "gz members":
        return gzip.compress(data[:999]) + gzip.compress(data[999:]) + b"\0" * 512
    if how == "zst":
        return zstandard.ZstdCompressor().compress(data)
    if how == "zst frames":
        packer = zstandard.ZstdCompressor()
        return packer.compress(data[:999]) + packer.compress(data[999:])
    return b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")


@pytest.mark.parametrize("how", ["plain", "gz", "gz members", "zst", "zst frames"])
def test_every_packing_is_told_by_its_bytes(tmp_path: Path, how: str) -> None:
    found, reader = imported(tmp_path / "no-suffix", packed(lines(*ROWS), how))
    assert [f.trajectory.trajectory_id for f in found] == [row["id"] for row in ROWS]
    assert [f.line for f in found] == list(range(1, 41))
    assert not reader.rejects


@pytest.mark.parametrize("how", ["gz", "zst"])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_truncated_stream_keeps_what_came_before_it(
    tmp_path: Path, how: str, share: float
) -> None:
    rows = [chat(id=f"r{n}", note=str(n) * (n * 37 % 997)) for n in range(2000)]
    whole = packed(lines(*rows), how)
    found, reader = imported(tmp_path / "t", whole[: int(len(whole) * share)])
    assert [f.trajectory.trajectory_id for f in found] == [r["id"] for r in rows[: len(found)]]
    assert [(r.reason, r.line) for r in reader.rejects] == [("compression", len(found) + 1)]
    if how == "gz":
        assert len(found) > 2000 * share * 0.5
    assert reader.records == len(found) + 1


def test_garbage_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    whole = bytearray(packed(lines(*ROWS), "gz"))
    whole[len(whole) // 2] ^= 0xFF
    found, reader = imported(tmp_path / "t", bytes(whole))
    assert len(reader.rejects) >= 1
    assert reader.records == len(found) + len(reader.rejects)


def test_a_record_over_the_cap_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    """100 MB in one line, never held: the peak stays under a third of it."""
    import tracemalloc

    path = tmp_path / "big.jsonl"
    with path.open("wb") as file:
        file.write(lines(chat(id="a")) + b'{"messages": [{"role": "user", "content": "')
        for _ in range(100):
            file.write(b"x" * (1 << 20))
        file.write(b'"}]}\n' + lines(chat(id="b")))
    tracemalloc.start()
    reader = TraceImport([path], max_bytes=16 << 20)
    assert [f.trajectory.trajectory_id for f in reader] == ["a", "b"]
    assert tracemalloc.get_traced_memory()[1] < 33 << 20
    tracemalloc.stop()
    assert [(r.reason, r.line) for r in reader.rejects] == [("too_long", 2)]
    assert "104857" in reader.rejects[0].detail


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("count", [1, 3])
def test_documents_over_many_lines(tmp_path: Path, indent: int | None, count: int) -> None:
    docs = [[step(1, made("find_product", {"q": str(n)}, ["r"]))] for n in range(count)]
    text = "\n\n".join(json.dumps(doc, indent=indent) for doc in docs)
    found, reader = imported(tmp_path / "d.json", text.encode())
    assert [f.format for f in found] == ["arena-dialogue"] * count
    first = [f.line for f in found]
    assert first == sorted(set(first))
    assert not reader.rejects


def test_an_array_of_records_gives_each(tmp_path: Path) -> None:
    data = json.dumps([*ROWS, {"no": "trace"}], indent=1).encode()
    found, reader = imported(tmp_path / "a.json", data)
    assert len(found) == 40
    assert [(r.reason, r.detail.split(":")[0]) for r in reader.rejects] == [
        ("not_a_trace", "element 40")
    ]


def test_a_document_that_is_cut_off_is_one_reject(tmp_path: Path) -> None:
    data = json.dumps(ROWS, indent=1).encode()[:-100]
    found, reader = imported(tmp_path / "a.json", data)
    assert (found, [(r.reason, r.line) for r in reader.rejects]) == ([], [("json", 1)])
    found, reader = imported(
        tmp_path / "b.json", json.dumps(ROWS, indent=1).encode(), max_bytes=500
    )
    assert (found, [(r.reason, r.line) for r in reader.rejects]) == ([], [("too_long", 1)])


def test_lines_whose_first_is_broken_are_still_lines(tmp_path: Path) -> None:
    data = b'{"messages": [{"role"\n' + lines(*ROWS)
    found, reader = imported(tmp_path / "t.jsonl", data)
    assert len(found) == 40
    assert [(r.reason, r.line) for r in reader.rejects] == [("json", 1)]


def test_a_folder_of_ours_is_read_once_and_without_what_lies_beside(tmp_path: Path) -> None:
    for name in ("train.jsonl", "train.parquet", "alone.parquet"):
        (tmp_path / name).write_bytes(b"{}")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "trajectories.jsonl.zst", "verdicts.jsonl"):
        (run / name).write_bytes(b"{}")
    files, passed = named_files([str(tmp_path)])
    names = ["alone.parquet", "run/trajectories.jsonl.zst", "train.jsonl"]
    assert files == tuple(str(tmp_path / name) for name in names)
    assert [Path(name).name for name in passed] == ["run.json", "verdicts.jsonl", "train.parquet"]
    named = [str(run / "verdicts.jsonl")]
    assert named_files(named) == (tuple(named), ())


def test_folders_patterns_and_standard_input(tmp_path: Path) -> None:
    below = tmp_path / "runs" / "deep"
    below.mkdir(parents=True)
    (below / "b.jsonl.gz").write_bytes(gzip.compress(lines(ROWS[1])))
    (tmp_path / "runs" / "a.json").write_bytes(lines(ROWS[0]))
    (tmp_path / "runs" / "note.md").write_text("no trace")
    (tmp_path / "runs" / ".hidden.jsonl").write_bytes(lines(ROWS[2]))
    folder = TraceImport([tmp_path / "runs"])
    assert [f.trajectory.trajectory_id for f in folder] == ["r0", "r1"]
    assert [Path(name).name for name in folder.skipped] == [".hidden.jsonl", "note.md"]
    pattern = TraceImport([str(tmp_path / "runs" / "**" / "*.gz")])
    assert [f.trajectory.trajectory_id for f in pattern] == ["r1"]
    piped = TraceImport(["-"], stdin=io.BytesIO(packed(lines(*ROWS), "zst")))
    assert len(list(piped)) == 40
    with pytest.raises(InputError):
        TraceImport([str(tmp_path / "*.nothing")])
    with pytest.raises(InputError):
        TraceImport(["-"])
    with pytest.raises(ConfigError):
        TraceImport([tmp_path / "runs"], format="marvellous")


def test_mixed_formats_in_one_file(tmp_path: Path) -> None:
    rows: list[Any] = [
        chat(id="chat"),
        [step(1, made("find_product", {"q": "a"}))],
        {"conversations": [{"from": "human", "value": QUERY}, {"from": "gpt", "value": "hi"}]},
        searched(5, {"q": "a"}),
        searched(6, {"q": "b"}),
        {"input": "asked", "output": "said", "score": 0.0, "step": 3},
        searched(7, {"q": "c"}, problem_id="other"),
        7,
        "text",
        None,
        {},
        [],
    ]
    found, reader = imported(tmp_path / "m.jsonl", lines(*rows) + b"not json\n\n")
    assert [(f.format, f.line) for f in found] == [
        ("chat", 1),
        ("arena-dialogue", 2),
        ("sharegpt", 3),
        ("request-log", 4),
        ("rl-dump", 6),
        ("request-log", 7),
    ]
    assert len(found[3].trajectory.dispatches) == 2
    assert [(r.reason, r.line) for r in reader.rejects] == [
        *(("not_a_trace", line) for line in range(8, 13)),
        ("json", 13),
    ]
    assert reader.records == len(found) + len(reader.rejects)


def test_a_named_format_rejects_the_others(tmp_path: Path) -> None:
    found, reader = imported(
        tmp_path / "m.jsonl", lines(chat(), [step(1)]), format="arena-dialogue"
    )
    assert [f.line for f in found] == [2]
    assert reader.rejects[0].reason == "not_a_trace"


def test_repeated_ids_are_numbered(tmp_path: Path) -> None:
    found, _ = imported(tmp_path / "t", lines(chat(id="a"), chat(id="a-2"), chat(id="a"), chat()))
    ids = [f.trajectory.trajectory_id for f in found]
    assert ids[:3] == ["a", "a-2", "a-3"]
    assert len(set(ids)) == 4
    assert codes(found[2]) == ["duplicate_id"]


@given(st.binary(max_size=300), st.integers(1, 40))
def test_any_bytes_are_accounted_for(data: bytes, cap: int) -> None:
    records = list(records_of(io.BytesIO(data), cap))
    assert all(bool(record.data) != bool(record.fault) for record in records)
    numbers = [record.line for record in records]
    assert numbers == sorted(numbers)
