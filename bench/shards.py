"""Raw traces to gated Parquet, beside datatrove and a pipeline of json and pydantic.

All three read the same `.jsonl.zst`, apply the same gates, keep the same rows (asserted) and write
zstd Parquet with the same columns of messages, and the rejects. Traces are of 13 KB, tool schemas
included, with real results of palio's own shopping world. Seconds are CPU seconds of one process.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import zstandard
from msgspec.structs import replace

from bench.shards_peers import datatrove_shard, pydantic_shard
from palio.corpus.config import CorpusConfig
from palio.corpus.readers.reading import RecordReader
from palio.corpus.readers.sources import RawRecord
from palio.corpus.shards import ShardConfig, ShardJob, make_shard
from palio.corpus.shards.shard import ROWS
from palio.records import Problem, to_json
from palio.suites.words import content_words
from palio.world.synthesis import full_config, synthesise
from palio.world.tools import Toolbox, tool_message, tool_schemas
from palio.world.world import World

ROUNDS = 3
"""Runs of each pipeline; the best counts."""
CONFIG = ShardConfig(corpus=CorpusConfig(token_budget=20_000))
NOTES = (
    "The user wants {q}. I will search for it first.",
    "Nothing fits all of it yet, so I search again with other words: {q}.",
    "Of these, {i} looks closest because its title names {q}; I check it before I decide.",
    "{i} has what was asked for, {q}, and its price is within the budget, so I recommend it.",
    "The recommendation is made, so I end here.",
)


def cpu_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


class Traces:
    """Makes chat rows over one synthetic world; one in six fails a gate."""

    def __init__(self, problems: int = 200) -> None:
        made = synthesise(full_config(7, products=3_000, problems=problems))
        self.problems: tuple[Problem, ...] = made.problems
        self._box = Toolbox(World.build(made.catalogue))
        self._tools = json.loads(msgspec.json.encode(tool_schemas()))
        self._results: dict[tuple[str, str], str] = {}
        self._rng = random.Random(3)

    def lines(self, count: int) -> Iterator[bytes]:
        """`count` JSON lines."""
        for number in range(count):
            yield json.dumps(self._row(number)).encode() + b"\n"

    def _row(self, number: int) -> dict[str, Any]:
        rng = self._rng
        problem = self.problems[number % len(self.problems)]
        target = problem.rewards[0].product_id
        asked = list(dict.fromkeys(content_words(problem.query)))
        messages: list[dict[str, Any]] = [{"role": "user", "content": problem.query}]
        seen: list[str] = []
        query = ""

        def act(name: str, arguments: dict[str, Any], note: str) -> str:
            text = json.dumps(arguments)
            result = self._result(name, text)
            call = {"id": f"call_{number:x}_{len(messages) // 2}", "type": "function"}
            call["function"] = {"name": name, "arguments": text}  # type: ignore[assignment]
            said = {"role": "assistant", "content": None, "reasoning_content": note}
            messages.append({**said, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            return result

        for turn in range(rng.choice((2, 2, 3))):
            query = " ".join(rng.sample(asked, min(len(asked), rng.choice((2, 3, 4)))))
            result = act("find_product", {"q": query}, NOTES[min(turn, 1)].format(q=query))
            found = json.loads(result.partition("\n")[0])
            seen += [row["product_id"] for row in found]
        pick = target if target in seen else (seen or [target])[0]
        about = {"i": pick, "q": query}
        act("view_product_information", {"product_ids": pick}, NOTES[2].format(**about))
        if number % 6:
            act("recommend_product", {"product_ids": pick}, NOTES[3].format(**about))
        act("terminate", {"status": "success"}, NOTES[4])
        ids = {"id": f"t{number:07}", "problem_id": problem.problem_id}
        return {**ids, "messages": messages, "tools": self._tools}

    def _result(self, name: str, arguments: str) -> str:
        known = self._results.get((name, arguments))
        if known is None:
            known = tool_message(self._box.call(name, arguments))
            self._results[name, arguments] = known
        return known


def write_traces(path: Path, lines: Iterator[bytes]) -> tuple[int, int]:
    """Write a .jsonl.zst; gives (lines, bytes before packing)."""
    count = size = 0
    with path.open("wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as packed:
        for line in lines:
            packed.write(line)
            count += 1
            size += len(line)
    return count, size


def kept_ids(path: Path) -> list[str]:
    """The ids of a Parquet file's rows."""
    found: list[str] = pq.read_table(path, columns=["trajectory_id"])["trajectory_id"].to_pylist()
    return found


def rows(quick: bool) -> list[dict[str, Any]]:
    """Rows of the benchmark table."""
    made = Traces(50 if quick else 200)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "traces.jsonl.zst"
        count, size = write_traces(path, made.lines(600 if quick else 6_000))
        write_traces(folder / "warm.jsonl.zst", made.lines(20))
        found = speed_rows(folder, path, count, size)
        found.append(own_row(folder, made.lines(count // 2)))
        day = 1_000 if quick else 27_000
        found += [
            day_row(folder / "chat", made.lines(day), made, day),
            day_row(folder / "palio's own", own_lines(made.lines(day)), made, day),
            memory_row(folder, path, 4 if quick else 33, count),
        ]
    return found


def speed_rows(folder: Path, path: Path, count: int, size: int) -> list[dict[str, Any]]:
    """Traces a CPU second, beside each peer."""
    job = ShardJob("ours", str(path), str(folder / "ours"), CONFIG)
    make_shard(job)  # imports and page faults of the first run
    found: list[dict[str, Any]] = []
    what = f"corpus shard: .jsonl.zst of {size / count / 1000:.1f} KB traces to gated Parquet"
    peers = {"datatrove": datatrove_shard, "json + pydantic": pydantic_shard}
    for name, work in peers.items():
        place = name.replace(" ", "")
        work(folder / "warm.jsonl.zst", folder / f"warm-{place}")  # imports
        runs, others = [], []
        for turn in range(ROUNDS):  # by turns, so that a busy machine is busy for both
            runs.append(cpu_of(lambda: make_shard(job)))
            others.append(cpu_of(partial(work, path, folder / f"{place}-{turn}")))
        seconds, manifest = min(runs, key=lambda run: run[0])
        peer_seconds, theirs = min(others, key=lambda run: run[0])
        assert manifest.taken == count
        ours = kept_ids(folder / "ours" / f"ours{ROWS}")
        if theirs is not None:
            assert kept_ids(theirs) == ours, f"{name} keeps other rows"
        found.append(
            {
                "name": what,
                "palio": count / seconds,
                "peer": count / peer_seconds if theirs is not None else None,
                "peer_name": name,
                "unit": "traces/s a core",
                "target": ">= 13000",
            }
        )
    ratio = found[0]["palio"] / found[0]["peer"] if found[0]["peer"] else None
    if ratio is not None:
        times = {"name": f"{what}, times datatrove", "palio": ratio, "peer": 1.0}
        found.append({**times, "peer_name": "datatrove", "unit": "x", "target": ">= 4"})
    return found


def own_lines(lines: Iterator[bytes], *, timed: bool = False) -> Iterator[bytes]:
    """The traces as palio records its own runs, events included.

    With times the events do not follow from the messages, and a shard has to keep them.
    """
    reader = RecordReader("chat", CONFIG.max_bytes)
    for number, line in enumerate(lines, start=1):
        for found in reader.read("day", RawRecord(number, line)):
            one = found.trajectory
            if timed:
                events = [replace(e, at_ms=e.seq + 0.5, duration_ms=0.25) for e in one.events]
                one = replace(one, events=tuple(events), source="rollout")
            yield to_json(one) + b"\n"


def own_row(folder: Path, lines: Iterator[bytes]) -> dict[str, Any]:
    """Traces a CPU second where palio's own runs, each with its record, are the input."""
    path = folder / "own.jsonl.zst"
    count, size = write_traces(path, own_lines(lines, timed=True))
    job = ShardJob("own", str(path), str(folder / "own"), CONFIG)
    runs = [cpu_of(lambda: make_shard(job))[0] for _ in range(ROUNDS)]
    return {
        "name": f"corpus shard: .jsonl.zst of {size / count / 1000:.1f} KB runs of palio's own, "
        "events kept, to gated Parquet",
        "palio": count / min(runs),
        "peer": None,
        "unit": "traces/s a core",
        "target": "",
    }


def day_row(folder: Path, lines: Iterator[bytes], made: Traces, count: int) -> dict[str, Any]:
    """Wall seconds of a day: raw traces to a certified corpus, two processes."""
    from palio.corpus.shards import plan, run
    from palio.corpus.shards.assembly import assemble

    source = folder / "day"
    source.mkdir(parents=True)
    for part in range(4):
        batch = islice(lines, -(-count // 4))
        write_traces(source / f"{part}.jsonl.zst", batch)
    start, cpu = time.monotonic(), time.process_time()
    run(plan([str(source)], CONFIG, str(folder / "shards")), workers=2)
    shards = time.monotonic() - start
    config = replace(CONFIG.corpus, outcome="none", coefficient=0.0)
    funnel = assemble(folder / "shards", made.problems, config, folder / "corpus")
    seconds = time.monotonic() - start
    own = time.process_time() - cpu
    return {
        "name": f"corpus: a day of {count:,} traces ({folder.name}) through filter, clusters, "
        "split, certificate "
        f"({funnel.kept:,} kept; shards {shards:.1f} s on 2 processes, the rest {own:.1f} CPU s)",
        "palio": seconds,
        "peer": None,
        "unit": "s",
        "target": "<= 10",
    }


MEASURE = r"""
import re, sys
from pathlib import Path
from bench.shards import CONFIG
from palio.corpus.shards import ShardJob, make_shard
for _ in range(int(sys.argv[3])):
    make_shard(ShardJob("m", sys.argv[1], sys.argv[2], CONFIG))
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""
"""Not `ru_maxrss`: a child starts with its parent's."""


def memory_row(folder: Path, path: Path, times: int, count: int) -> dict[str, Any]:
    """Peak memory of a process of its own that reads the traces many times over."""
    command = [sys.executable, "-c", MEASURE, str(path), str(folder / "memory"), str(times)]
    ended = subprocess.run(command, capture_output=True, check=True, text=True)
    return {
        "name": f"corpus shard: peak memory over {times * count:,} traces",
        "palio": int(ended.stdout) / 1024,
        "peer": None,
        "unit": "MiB",
        "target": "<= 1536",
    }
