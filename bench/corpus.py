"""Corpus: judged traces through every gate into JSONL and Parquet, beside plain json dictionaries.

The peer is what one writes first: `json.loads`, the same gates over dictionaries, `json.dumps`, and
`pyarrow.Table.from_pylist`. Both read the same file of judged traces and keep the same rows, which
is asserted. The cluster benchmark's peer takes the same keys and leaves the closure to scipy.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from bench import shards
from palio.corpus.build import build
from palio.corpus.config import POOLS, CorpusConfig
from palio.corpus.rows import SCHEMA, read_rows
from palio.corpus.separation import separate
from palio.records import (
    AgentRef,
    DispatchEvent,
    Ending,
    FunctionCall,
    InferenceEvent,
    JudgeId,
    Message,
    OutcomeVerdict,
    Problem,
    ReasoningVerdict,
    Reward,
    RichnessVerdict,
    ToolCall,
    Trajectory,
    to_json,
)
from palio.rollout.verdicts import Judged, Verdicts
from palio.suites import leak_clusters
from palio.suites.keys import keys_of
from palio.world.tools import tool_schemas

WORDS = ("blue", "red", "wool", "silk", "mug", "lamp", "scarf", "shelf", "solar", "lunar", "large")
JUDGE = JudgeId(name="bench", version="1")


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of the benchmark table."""
    return [
        gates_row(600 if quick else 6_000),
        clusters_row(5_000 if quick else 100_000),
        *shards.rows(quick),
    ]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def gates_row(count: int) -> dict[str, Any]:
    """Traces a CPU second from judged lines to a finished corpus folder."""
    problems = made_problems(count // 20)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [to_json(row) for row in made_rows(count, problems)]
        size = sum(len(line) for line in lines) / count
        (folder / "judged.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        del lines
        config = CorpusConfig(token_budget=20_000)
        seconds, _ = timed(
            lambda: build(judged_rows(folder / "judged.jsonl"), problems, config, folder / "ours")
        )
        peer_seconds, _ = timed(
            lambda: plain_build(folder / "judged.jsonl", problems, config, folder / "peer")
        )
        for pool in POOLS:
            ours = {row.trajectory_id for row in read_rows(folder / "ours" / f"{pool}.jsonl")}
            theirs = {row.trajectory_id for row in read_rows(folder / "peer" / f"{pool}.parquet")}
            assert ours == theirs, f"{pool}: the peer keeps other rows"
    return {
        "name": f"corpus: judged traces of {size / 1000:.0f} KB to gated, split JSONL and Parquet",
        "palio": count / seconds,
        "peer": count / peer_seconds,
        "peer_name": "json dictionaries",
        "unit": "traces/s a core",
        "target": ">= 5000",
    }


def judged_rows(path: Path) -> Iterator[Judged]:
    """The typed rows of a judged file."""
    decode = msgspec.json.Decoder(Judged).decode
    with path.open("rb") as file:
        for line in file:
            yield decode(line)


def made_problems(count: int) -> tuple[Problem, ...]:
    """Problems of which one in ten shares its product with another."""
    rng = random.Random(1)
    return tuple(
        Problem(
            problem_id=f"p{n}",
            kind="product",
            query=f"I want a {' '.join(rng.choices(WORDS, k=6))} number {n}.",
            rewards=(Reward(product_id=str(10**6 + n - n % 10 // 9), title=(f"thing {n}",)),),
            catalogue="bench",
        )
        for n in range(count)
    )


def made_rows(count: int, problems: tuple[Problem, ...]) -> Iterator[Judged]:
    """Traces of about 13 KB of messages and record; one in three fails a gate."""
    rng = random.Random(2)
    tools = tool_schemas()
    for number in range(count):
        problem = problems[number % len(problems)]
        trajectory = made_trace(f"{number:08x}", problem, rng, tools)
        ids = {
            "trajectory_id": trajectory.trajectory_id,
            "problem_id": problem.problem_id,
            "judge": JUDGE,
        }
        quality = rng.choice((0.9, 0.9, 0.9, 0.1))
        coefficient = 1.0 if quality > 0.8 else 0.3875
        yield Judged(
            trajectory=trajectory,
            verdicts=Verdicts(
                outcomes=(
                    OutcomeVerdict(
                        **ids, profile="oro", status="scored", success=rng.random() < 0.9
                    ),
                ),
                reasoning=ReasoningVerdict(
                    **ids, status="judged", quality=quality, coefficient=coefficient
                ),
                richness=RichnessVerdict(
                    **ids,
                    evidence="heuristic",
                    emitted=4,
                    dispatched=4,
                    richness=1.0,
                    axis="agentic",
                ),
                unresolved=(),
            ),
        )


def made_trace(name: str, problem: Problem, rng: random.Random, tools: Any) -> Trajectory:
    """Two searches, a look, a recommendation, the end."""
    product = problem.rewards[0].product_id
    found = [
        {"product_id": product if n == 3 else str(rng.randrange(10**6)), "shop_id": "7"}
        | {"title": " ".join(rng.choices(WORDS, k=8)), "price": rng.randrange(900)}
        for n in range(10)
    ]
    rows = json.dumps(found, separators=(",", ":"))
    seen = json.dumps([{"product_id": product, "attributes": {"colour": ["blue"]}}])
    script = (
        ("find_product", {"q": " ".join(rng.choices(WORDS, k=4))}, rows),
        ("find_product", {"q": " ".join(rng.choices(WORDS, k=5))}, rows),
        ("view_product_information", {"product_ids": product}, seen),
        ("recommend_product", {"product_ids": product}, '{"recommended":true}'),
        ("terminate", {"status": "success"}, '{"status":"success"}'),
    )
    messages = [Message(role="user", content=problem.query)]
    events: list[Any] = []
    for n, (tool, arguments, result) in enumerate(script):
        text = json.dumps(arguments, separators=(",", ":"))
        call = ToolCall(id=f"c{n}", function=FunctionCall(name=tool, arguments=text))
        thinking = " ".join(rng.choices(WORDS, k=25))
        said = Message(role="assistant", reasoning_content=thinking, tool_calls=(call,))
        at = {"at_ms": float(n), "duration_ms": 1.0}
        seq = len(events)
        events.append(InferenceEvent(seq=seq, **at, prefix=0, request=(), completion=said))
        events.append(
            DispatchEvent(
                seq=seq + 1,
                **at,
                tool=tool,
                arguments=text,
                result=result,
                call_id=call.id,
                emitted_by=seq,
            )
        )
        messages += [said, Message(role="tool", content=result, tool_call_id=call.id)]
    return Trajectory(
        trajectory_id=name,
        problem_id=problem.problem_id,
        query=problem.query,
        kind=problem.kind,
        agent=AgentRef(name="bench"),
        events=tuple(events),
        messages=tuple(messages),
        tools=tools,
        answer=product,
        ending=Ending.terminated,
        catalogue=problem.catalogue,
    )


def plain_build(
    path: Path, problems: tuple[Problem, ...], config: CorpusConfig, out: Path
) -> Counter[str]:
    """The peer: one pass over dictionaries that keeps survivors in memory."""
    out.mkdir()
    reasons: Counter[str] = Counter()
    survivors: dict[str, dict[str, Any]] = {}
    split = separate(problems, config)  # palio's own: the peer shows what rows cost
    pool_of = split.pool_of
    with (
        path.open(encoding="utf-8") as file,
        (out / "rejects.jsonl.zst").open("wb") as raw,
        zstandard.ZstdCompressor(level=1).stream_writer(raw) as rejects,
    ):
        for line in file:
            row = json.loads(line)
            reason = plain_reason(row, config)
            if not reason and row["trajectory"]["problem_id"] in split.quarantine:
                reason = "quarantined"
            key = plain_conversation(row["trajectory"]["messages"]) if not reason else ""
            if not reason and key in survivors:
                reason = "duplicate"
            if reason:
                reasons[reason] += 1
                rejects.write(json.dumps({"reason": reason, "judged": row}).encode() + b"\n")
            else:
                survivors[key] = row
    for pool in POOLS:
        mine = [
            plain_row(row["trajectory"])
            for row in survivors.values()
            if pool_of[row["trajectory"]["problem_id"]] == pool
        ]
        with (out / f"{pool}.jsonl").open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in mine)
        pq.write_table(
            pa.Table.from_pylist(mine, schema=SCHEMA), out / f"{pool}.parquet", compression="zstd"
        )
    return reasons


def plain_reason(row: dict[str, Any], config: CorpusConfig) -> str:
    """The gates over dictionaries, in palio's order."""
    trajectory, verdicts = row["trajectory"], row["verdicts"]
    messages = trajectory["messages"]
    asked = [call for message in messages for call in message.get("tool_calls", ())]
    answered = {m["tool_call_id"] for m in messages if m["role"] == "tool"}
    if any(call["id"] not in answered for call in asked):
        return "orphan_call"
    if answered - {call["id"] for call in asked}:
        return "orphan_result"
    events = [event for event in trajectory["events"] if event["type"] == "dispatch"]
    if sum(event["tool"] == "recommend_product" for event in events) != 1:
        return "recommend"
    try:
        arguments = [json.loads(call["function"]["arguments"]) for call in asked]
    except ValueError:
        return "bad_arguments"
    if not all(isinstance(one, dict) for one in arguments) or verdicts.get("unresolved"):
        return "bad_arguments"
    size = len(json.dumps(messages)) + len(json.dumps(trajectory["tools"]))
    if size / config.bytes_per_token > config.token_budget:
        return "over_budget"
    if verdicts["richness"]["richness"] < config.agentic:
        return "axis"
    if not any(v["profile"] == config.outcome and v.get("success") for v in verdicts["outcomes"]):
        return "outcome_failed"
    if verdicts["reasoning"]["coefficient"] < config.coefficient:
        return "coefficient_low"
    shown = [e["result"] for e in events if e["tool"].startswith("find")]
    wanted = trajectory["answer"].split(",")
    if not all(any(f'"product_id":"{one}"' in text for text in shown) for one in wanted):
        return "ungrounded"
    return plain_format(messages, trajectory["tools"])


TAGS = re.compile(r"</?(?:think|tool_call|tool_response|response|obs)>|<\|im_(?:start|end)\|>")


def plain_format(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    """The format gate over dictionaries."""
    names = {tool["function"]["name"] for tool in tools}
    for message in messages:
        if message["role"] != "assistant":
            continue
        calls = message.get("tool_calls", ())
        text = f"{message.get('content') or ''}\n{message.get('reasoning_content') or ''}"
        if TAGS.search(text) or not (calls or message.get("content")):
            return "format"
        if any(call["function"]["name"] not in names for call in calls):
            return "unknown_tool"
    return ""


def plain_conversation(messages: list[dict[str, Any]]) -> str:
    """Digest of a conversation without its call ids."""
    plain = [
        [m["role"], m.get("content"), m.get("reasoning_content")]
        + [json.loads(call["function"]["arguments"]) for call in m.get("tool_calls", ())]
        for m in messages
    ]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def plain_row(trajectory: dict[str, Any]) -> dict[str, Any]:
    """The columns of a corpus row."""
    return {
        "messages": trajectory["messages"],
        "tools": json.dumps(trajectory["tools"]),
        "trajectory_id": trajectory["trajectory_id"],
        "problem_id": trajectory["problem_id"],
        "cluster_id": "",
        "agent": trajectory["agent"]["name"],
        "kind": trajectory["kind"],
    }


def clusters_row(count: int) -> dict[str, Any]:
    """Seconds to cluster problems by all three exact edges."""
    problems = made_problems(count)
    seconds, clustering = timed(lambda: leak_clusters(problems))
    peer_seconds, components = timed(lambda: scipy_components(problems))
    assert components == len(clustering.members), "the peer finds other clusters"
    return {
        "name": f"leak clusters of {count:,} problems, edges product, spec, text",
        "palio": seconds,
        "peer": peer_seconds,
        "peer_name": "same keys, scipy connected_components",
        "unit": "s",
        "target": "<= 60",
    }


def scipy_components(problems: tuple[Problem, ...]) -> int:
    """Components of the bipartite graph of problems and keys."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    numbers: dict[tuple[str, str], int] = {}
    rows, columns = [], []
    for row, problem in enumerate(problems):
        for rule in ("product", "spec", "text"):
            for key in keys_of(problem, rule):
                rows.append(row)
                place = numbers.setdefault((rule, key), len(numbers))
                columns.append(len(problems) + place)
    size = len(problems) + len(numbers)
    graph = coo_matrix(([1] * len(rows), (rows, columns)), shape=(size, size))
    return int(connected_components(graph, directed=False)[0])


__all__ = ["run"]
