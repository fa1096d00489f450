"""What is broken is repaired and listed, or rejected; nothing crashes, all is accounted for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.corpus.readers.detect import FORMATS, read_record
from palio.corpus.readers.importing import TraceImport
from palio.corpus.readers.links import has_cycle, is_cyclic
from palio.corpus.readers.losses import UnreadableError
from palio.records import Trajectory, from_json, to_json
from tests.readers.making import QUERY, asked, calls, chat, codes, imported, made, searched, step


def one(tmp_path: Path, text: str | bytes) -> Any:
    data = text if isinstance(text, bytes) else text.encode()
    found, reader = imported(tmp_path / "t.jsonl", data)
    assert reader.records == 1
    return found[0] if found else reader.rejects[0]


@pytest.mark.parametrize(
    ("content", "text", "code"),
    [
        (b'"a\\u0000b"', "a\ufffdb", "nul"),
        (b'"a\x00b"', "a\ufffdb", "nul"),
        (b'"a\\ud800b"', "a\ufffdb", "surrogate"),
        (b'"a\\ud800\\u0000"', "a\ufffd\ufffd", "nul surrogate"),
        (b'"a\\ud83d\\ude00b"', "a\U0001f600b", None),
        (b'"a\xffb"', "a\ufffdb", "bad_utf8"),
        (b'"a\tb"', "a\tb", None),
    ],
)
def test_characters_that_nobody_takes(
    tmp_path: Path, content: bytes, text: str, code: str | None
) -> None:
    row = b'{"messages": [{"role": "user", "content": ' + content + b"}]}"
    found = one(tmp_path, row)
    assert found.trajectory.query == text
    assert codes(found) == (code.split() if code else [])
    assert from_json(to_json(found.trajectory), Trajectory) == found.trajectory


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    call = '{"name": "f", "arguments": {"a": NaN, "b": 1e999, "c": 123456789012345678901234}}'
    found = one(tmp_path, f'{{"messages": [{{"role": "assistant", "tool_calls": [{call}]}}]}}')
    assert calls(found.trajectory) == [
        ("f", {"a": "NaN", "b": "1e999", "c": 123456789012345678901234})
    ]
    assert codes(found) == ["not_finite", "not_finite"]


@pytest.mark.parametrize("depth", [50, 400, 900, 5_000, 500_000])
def test_deep_nesting_is_read_or_rejected(tmp_path: Path, depth: int) -> None:
    nest = "[" * depth + "]" * depth
    call = f'{{"name": "f", "arguments": {{"a": {nest}}}}}'
    text = f'{{"messages": [{{"role": "assistant", "tool_calls": [{call}]}}]}}'
    got = one(tmp_path, text)
    assert getattr(got, "reason", "too_deep") == "too_deep"
    if depth == 50:
        assert got.trajectory.messages[0].tool_calls[0].function.arguments == f'{{"a":{nest}}}'
    got = one(tmp_path, text.replace("arguments", "\\u0000"))
    assert getattr(got, "reason", "too_deep") == "too_deep"


def test_nested_subagents_to_any_depth(tmp_path: Path) -> None:
    doc: dict[str, Any] = {}
    for depth in range(150):
        doc = {
            "schema_version": "ATIF-v1.7",
            "trajectory_id": f"t{depth}",
            "agent": {"name": "a", "version": "1"},
            "steps": [{"step_id": 1, "source": "user", "message": "hi"}],
            "subagent_trajectories": [doc] if doc else [],
        }
    found, reader = imported(tmp_path / "t.json", json.dumps(doc).encode())
    assert len(found) == 150
    assert not reader.rejects


def test_objects_that_hold_themselves_are_refused() -> None:
    loop: dict[str, Any] = {"q": "mug"}
    loop["self"] = loop
    call = {"name": "f", "arguments": loop}
    row = chat()
    row["messages"].append({"role": "assistant", "tool_calls": [call]})
    with pytest.raises((UnreadableError, Exception), match="JSON form"):
        list(read_record(row, "test"))


def test_parents_in_a_circle_are_listed_and_the_order_stays(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "a", "id": "1", "parent_id": "2"},
        {"role": "assistant", "content": "b", "id": "2", "parent_id": "1"},
    ]
    found = one(tmp_path, json.dumps({"messages": messages}))
    assert codes(found)[0] == "cyclic_reference"
    assert [m.content for m in found.trajectory.messages] == ["a", "b"]
    assert not is_cyclic([{"id": "2", "parent_id": "1"}, {"id": "1"}])


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"))))
def test_cycles_are_found_as_by_exhaustive_search(links: dict[str, list[str]]) -> None:
    def reach(node: str, seen: frozenset[str]) -> bool:
        return any(n in seen or reach(n, seen | {n}) for n in links.get(node, ()))

    assert has_cycle(links) == any(reach(node, frozenset(node)) for node in links)


def test_a_long_chain_of_parents_needs_no_stack() -> None:
    assert not has_cycle({str(n): [str(n + 1)] for n in range(50_000)})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
SEEDS: list[Any] = [
    chat(tools=[{"type": "function", "name": "f"}], raw_text="<tool_call>{}</tool_call>"),
    {"problem_id": "p", "status": "SUCCESS", "error": None, "dialogue": [
        step(1, made("find_product", {"q": "a"}), think="t")]},
    [{**step(1, made("find_product", {"q": "a"}), obs=[{"tool_call_id": "i", "results": 1}]),
      "prompt": [{"role": "user", "content": QUERY}]}, step(2)],
    [{**step(1, made("find_product", {"q": "a"})), "extra_info": {"timestamp": 5, "proxy_calls": [
        asked(1, ("find_product", {"q": "a"})), searched(2, {"q": "a"})]}}],
    searched(2, {"q": "a"}),
    {"schema_version": "ATIF-v1.7", "agent": {"name": "a", "version": "1"}, "steps": [
        {"step_id": 1, "source": "agent", "message": "m", "timestamp": "2026-01-01T00:00:00Z",
         "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {}}],
         "observation": {"results": [{"source_call_id": "c", "content": "r"}]},
         "metrics": {"prompt_tokens": 1}, "extra": {"palio": {"content": None}}}],
     "extra": {"palio": {"kind": "product", "agent": {"kind": "agentic"}}}},
    {"conversations": [{"from": "function_call", "value": "{}"}, {"from": "human", "value": "v"}]},
    {"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"},
               {"type": "reasoning", "summary": [{"text": "t"}]}], "instructions": "i"},
    {"input": "<|im_start|>system\n# Tools\n<tools>{}</tools><|im_end|>", "output": "o"},
    {"name": "p-rollout-1", "query": "q", "latency_seconds": 1.0, "sample": {
        "output_tools": [{"function": {"name": "f", "arguments": {}}}], "terminated": True}},
    {"choices": [{"message": {"role": "assistant", "content": "c"}}], "request": {}},
    {"prompt": [{"role": "user", "content": "a"}], "completion": "b", "label": True},
    [{"role": "user", "content": "a"}],
]  # fmt: skip


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = list(value.items()) if isinstance(value, dict) else []
    inner = list(enumerate(value)) if isinstance(value, list) else inner
    return [at, *(path for key, item in inner for path in paths(item, (*at, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def test_every_format_has_a_seed() -> None:
    told = {known.name for seed in SEEDS for known in FORMATS if known.told(seed)}
    assert {known.name for known in FORMATS} - told == {"palio", "arena-step"}


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_part_may_be_anything(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Whatever replaces whichever part: no exception, and one trajectory or one reject."""
    seed = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(1, 2))):
        seed = replaced(seed, data.draw(st.sampled_from(paths(seed))), data.draw(JSON))
    path = tmp_path_factory.mktemp("fuzz") / "t.jsonl"
    path.write_text(json.dumps(seed), encoding="utf-8")
    reader = TraceImport([path])
    found = list(reader)
    assert found or reader.rejects or seed == ""
    assert not [reject for reject in reader.rejects if reject.reason == "unreadable"]
    for read in found:
        ids = [c.id for m in read.trajectory.messages for c in m.tool_calls]
        assert len(ids) == len(set(ids))
        assert from_json(to_json(read.trajectory), Trajectory) == read.trajectory


def test_many_equal_ids_cost_no_more_than_many_different_ones(tmp_path: Path) -> None:
    """20,000 calls, steps and rows with one id: quadratic work would take minutes."""
    many = 20_000
    call = {"id": "x", "function": {"name": "f", "arguments": "{}"}}
    row = chat()
    row["messages"].append({"role": "assistant", "content": None, "tool_calls": [call] * many})
    row["messages"] += [{"role": "tool", "tool_call_id": "x", "content": "r"}] * many
    run = [step(n, made("find_product", {"q": "a"}), at=n) for n in range(many // 10)]
    run[0]["extra_info"]["proxy_calls"] = [searched(n, {"q": "a"}) for n in range(many // 10)]
    lines = [json.dumps(row), json.dumps(run), *(json.dumps(chat(id="same")) for _ in range(many))]
    started = time.process_time()
    found, reader = imported(tmp_path / "t.jsonl", "\n".join(lines).encode())
    assert time.process_time() - started < 20
    assert len(found) == many + 2
    assert len(found[0].trajectory.dispatches) == many
    assert len({f.trajectory.trajectory_id for f in found}) == many + 2
    assert not reader.rejects
