"""Whatever is in the files of a build, every record is kept or counted with its reason."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from typer.testing import CliRunner

from palio.cli.corpus import app
from palio.corpus.build import build
from palio.corpus.config import CorpusConfig
from palio.corpus.reading import TraceReader
from palio.corpus.writers.hugging_face import chat_row
from palio.records import to_json
from palio.rollout.verdicts import Panel, judge_all
from tests.corpus.making import PROBLEMS, made_trajectory

RUNS = [made_trajectory(f"t{n}", PROBLEMS[n % 5]) for n in range(6)]
OWN = [to_json(run) for run in RUNS]
OPEN = CorpusConfig(outcome="none", coefficient=0.0, thinking=0.0, oracle_search=False)


def chat(number: int, **more: Any) -> dict[str, Any]:
    return {**chat_row(RUNS[number]).rows[0], **more}


def changed(number: int, change: Callable[[list[dict[str, Any]]], Any]) -> bytes:
    """A chat row whose messages were changed."""
    row = json.loads(json.dumps(chat(number)))
    change(row["messages"])
    return json.dumps(row).encode()


def twice_encoded(messages: list[dict[str, Any]]) -> None:
    call = messages[1]["tool_calls"][0]["function"]
    call["arguments"] = json.dumps(call["arguments"])


def orphaned(messages: list[dict[str, Any]]) -> None:
    messages.insert(3, {"role": "tool", "tool_call_id": "nobody", "content": "x"})


def emptied(messages: list[dict[str, Any]]) -> None:
    messages[1]["content"] = None
    del messages[3]["content"]


def circular(messages: list[dict[str, Any]]) -> None:
    for at, message in enumerate(messages):
        message |= {"id": f"m{at}", "parent_id": f"m{(at + 1) % len(messages)}"}


# name -> (lines, rows kept, reasons of the read and known steps, losses that are counted)
CASES: dict[str, tuple[list[bytes], int, dict[str, int], set[str]]] = {
    "mixed formats": (
        [OWN[0], json.dumps(chat(1)).encode(), b'{"no": "trace"}', b"[1, 2"],
        2,
        {"unreadable_not_a_trace": 1, "unreadable_json": 1},
        set(),
    ),
    "deep nesting": (
        [OWN[0], b"[" * 200_000 + b"]" * 200_000],
        1,
        {"unreadable_too_deep": 1},
        set(),
    ),
    "a lone surrogate": (
        [OWN[0].replace(b"blue mug", rb"blue\ud800 mug", 1)],
        1,
        {},
        {"surrogate"},
    ),
    "NUL": ([OWN[0].replace(b"blue mug", rb"blue\u0000 mug", 1)], 1, {}, {"nul"}),
    "duplicate ids": ([OWN[0], OWN[0]], 1, {"repeated_id": 1}, set()),
    "duplicate ids of foreign rows": (
        [json.dumps(chat(0)).encode(), changed(0, lambda m: m[1].update(reasoning_content="hm"))],
        2,
        {},
        {"duplicate_id"},
    ),
    "orphan results": ([changed(0, orphaned), OWN[1]], 1, {}, {"orphan_result"}),
    "double-encoded arguments": ([changed(0, twice_encoded)], 1, {}, {"double_encoded"}),
    "null and missing content": ([changed(0, emptied)], 1, {}, set()),
    "cyclic references": ([changed(0, circular)], 1, {}, {"cyclic_reference"}),
    "bytes that are no text": (
        [OWN[0].replace(b"blue mug", b"blue \xff mug", 1), b"\xff\xfe"],
        1,
        {"unreadable_json": 1},
        {"bad_utf8"},
    ),
}


def built(tmp_path: Path, path: Path, **options: Any) -> tuple[Any, TraceReader]:
    reader = TraceReader([path], problems=PROBLEMS, **options)
    judged = judge_all(reader, Panel(PROBLEMS, {}))
    funnel = build(judged, PROBLEMS, OPEN, tmp_path / "out", unread=reader.rejects)
    rejected = (tmp_path / "out" / "rejects.jsonl.zst").read_bytes()
    unpacked = zstandard.ZstdDecompressor().stream_reader(rejected).read()
    assert len(unpacked.splitlines()) == funnel.taken - funnel.kept
    return funnel, reader


@pytest.mark.parametrize("name", CASES)
def test_every_record_is_kept_or_counted(tmp_path: Path, name: str) -> None:
    data, kept, reasons, losses = CASES[name]
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(data) + b"\n")
    funnel, reader = built(tmp_path, path)
    assert funnel.taken == len(data)
    counted = funnel.steps[0].rejected | funnel.steps[1].rejected
    assert counted == reasons
    assert losses <= set(reader.losses)
    later = sum(sum(step.rejected.values()) for step in funnel.steps[2:])
    assert funnel.kept == kept
    assert funnel.kept + later + sum(reasons.values()) == len(data)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_truncated_file_keeps_what_came_before_and_says_so(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    many = b"\n".join(
        to_json(made_trajectory(f"t{n}-{n * 7919 % 1013}", PROBLEMS[n % 5])) for n in range(300)
    )
    path = tmp_path / "in.jsonl.z"
    packed = pack(many)
    path.write_bytes(packed[: len(packed) * 2 // 3])
    funnel, _ = built(tmp_path, path)
    assert funnel.steps[0].rejected["unreadable_compression"] == 1
    assert 0 < funnel.kept < 300


def test_a_record_of_100_megabytes_is_a_reject_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b'{"trajectory_id": "')
        for _ in range(100):
            stream.write(b"x" * (1 << 20))
        stream.write(b'"}\n' + OWN[0] + b"\n")
    funnel, _ = built(tmp_path, path, max_bytes=64 << 20)
    assert funnel.steps[0].rejected == {"unreadable_too_long": 1}
    assert funnel.kept == 1


def test_an_import_of_what_cannot_be_read_fails(tmp_path: Path) -> None:
    def code(path: Path) -> int:
        words = ["import", str(path), "--out", str(tmp_path / "out.jsonl")]
        return CliRunner().invoke(app, words).exit_code

    good = tmp_path / "good.jsonl"
    good.write_bytes(OWN[0] + b"\nno trace\n")
    assert code(good) == 0
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b"\n".join(OWN))[:-20])
    assert code(cut) == 1
    assert (tmp_path / "out.jsonl").is_file()
    other = tmp_path / "other.jsonl"
    other.write_bytes(b'{"a": 1}\n')
    assert code(other) == 1
    table = tmp_path / "t.parquet"
    table.write_bytes(b"PAR1 is not all of it")
    assert code(table) == 1
