"""ATIF 1.0 to 1.8: harness calls, copied context, observations, subagents, references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palio.judging import richness_verdict
from palio.records import DispatchEvent
from tests.readers.making import QUERY, calls, codes, imported, read


def document(*steps: dict[str, Any], version: str = "ATIF-v1.7", **more: Any) -> dict[str, Any]:
    numbered = [{"step_id": n, **step} for n, step in enumerate(steps, start=1)]
    agent = {"name": "a", "version": "2", "model_name": "m"}
    return {"schema_version": version, "session_id": "s", "agent": agent, "steps": numbered, **more}


def user(text: Any = QUERY, **more: Any) -> dict[str, Any]:
    return {"source": "user", "message": text, **more}


def agent(*names: str, results: bool = True, **more: Any) -> dict[str, Any]:
    """An agent step that calls tools `names`; arguments {"n": place}, ids = names."""
    made = [
        {"tool_call_id": name, "function_name": name, "arguments": {"n": n}}
        for n, name in enumerate(names)
    ]
    seen = [{"source_call_id": name, "content": f"{name} ok"} for name in reversed(names)]
    step: dict[str, Any] = {"source": "agent", "message": "", "tool_calls": made}
    return {**step, **({"observation": {"results": seen}} if results else {}), **more}


@pytest.mark.parametrize("minor", range(9))
def test_every_version_gives_calls_and_results_by_id(tmp_path: Path, minor: int) -> None:
    doc = document(
        {"source": "system", "message": "You shop."},
        user(),
        agent("find_product", "view_product_information", reasoning_content="look"),
        agent("terminate", results=False, message="done"),
        version=f"ATIF-v1.{minor}",
    )
    (found,) = read(tmp_path, doc)
    trajectory = found.trajectory
    assert calls(trajectory) == [
        ("find_product", {"n": 0}),
        ("view_product_information", {"n": 1}),
        ("terminate", {"n": 0}),
    ]
    assert [(d.tool, d.result, d.emitted_by) for d in trajectory.dispatches] == [
        ("find_product", "find_product ok", 0),
        ("view_product_information", "view_product_information ok", 0),
    ]
    assert (trajectory.trajectory_id, trajectory.query, trajectory.ending) == (
        *("s", QUERY, "terminated"),
    )
    assert (trajectory.agent.name, trajectory.agent.version, trajectory.agent.model) == (
        *("a", "2", "m"),
    )
    assert trajectory.messages[2].content is None
    assert trajectory.messages[2].reasoning_content == "look"
    assert trajectory.messages[5].content == "done"
    assert codes(found) == []


def test_a_step_without_an_inference_is_the_harness(tmp_path: Path) -> None:
    doc = document(
        user(),
        agent("find_product", llm_call_count=0),
        {"source": "agent", "message": "I would take 1.", "llm_call_count": 1},
    )
    (found,) = read(tmp_path, doc)
    assert [d.emitted_by for d in found.trajectory.dispatches] == [None]
    assert len(found.trajectory.inferences) == 1
    assert richness_verdict(found.trajectory).axis == "subtask"
    assert calls(found.trajectory) == [("find_product", {"n": 0})]


def test_copied_context_is_not_trained_on_twice(tmp_path: Path) -> None:
    doc = document(
        user(is_copied_context=True),
        agent("find_product", is_copied_context=True),
        agent("view_product_information"),
    )
    (found,) = read(tmp_path, doc)
    assert calls(found.trajectory) == [("view_product_information", {"n": 0})]
    assert found.trajectory.query == QUERY
    assert [(loss.code, loss.where) for loss in found.losses] == [("copied_context", "steps[1]")]


def test_times_metrics_and_what_has_no_place(tmp_path: Path) -> None:
    metrics = {"prompt_tokens": 7, "completion_tokens": 3, "cost_usd": 0.1, "logprobs": [0.1]}
    doc = document(
        user(timestamp="2026-01-01T00:00:00Z"),
        agent("f", timestamp="2026-01-01T00:00:01.5+00:00", metrics=metrics, model_name="big"),
        agent("f", timestamp="yesterday", extra={"a": 1}, reasoning_effort="low"),
        final_metrics={"total_steps": 3},
        notes="n",
        continued_trajectory_ref="next.json",
    )
    (found,) = read(tmp_path, doc)
    first, second = found.trajectory.inferences
    assert first.at_ms == 1500.0
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (7, 3)
    assert first.params == {"model": "big"}
    assert second.params == {"reasoning_effort": "low"}
    assert sorted((loss.code, loss.where) for loss in found.losses) == [
        ("duplicate_call_id", "steps[2]"),
        ("not_carried", "continued_trajectory_ref"),
        ("not_carried", "final_metrics"),
        ("not_carried", "notes"),
        ("not_carried", "steps[1].metrics.cost_usd"),
        ("not_carried", "steps[1].metrics.logprobs"),
        ("not_carried", "steps[2].extra.a"),
        ("timestamp", "steps[2]"),
    ]


def test_observations_of_all_kinds(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image", "source": {"path": "x.png"}}]
    by_position = agent("f", results=False)
    by_position["observation"] = {"results": [{"content": parts}]}
    orphan = agent("g", results=False)
    orphan["observation"] = {"results": [{"source_call_id": "other", "content": None}]}
    action = {
        "source": "agent",
        "message": "ls",
        "observation": {"results": [{"content": "files"}, 5]},
    }
    event = {"source": "system", "message": "", "observation": {"results": [{"content": "up"}]}}
    (found,) = read(tmp_path, document(user(parts), by_position, orphan, action, event))
    assert [(m.role, m.content) for m in found.trajectory.messages if m.role != "assistant"] == [
        ("user", "a"),
        ("tool", "a"),
        ("tool", ""),
        ("user", "files"),
        ("system", "up"),
    ]
    assert codes(found) == [
        *("content_part", "content_part", "paired_by_position", "null_content", "orphan_result"),
        *("result_shape", "observation_as_message", "observation_as_message"),
    ]
    assert [d.tool for d in found.trajectory.dispatches] == ["f"]


def test_subagents_are_trajectories_and_references_are_not_followed(tmp_path: Path) -> None:
    inner = document(user("sub"), agent("f"), trajectory_id="inner")
    ref = {"source_call_id": "f", "subagent_trajectory_ref": [{"trajectory_id": "inner"}]}
    inner["steps"][1]["observation"]["results"].append(
        {"content": "x", "subagent_trajectory_ref": [{"trajectory_id": "outer"}]}
    )
    outer_step = agent("f", results=False)
    outer_step["observation"] = {"results": [ref]}
    broken = {"schema_version": "ATIF-v1.7", "trajectory_id": "broken", "steps": [5]}
    doc = document(user(), outer_step, trajectory_id="outer", subagent_trajectories=[inner, broken])
    found, reader = imported(tmp_path / "t.json", json.dumps(doc, indent=2).encode())
    assert [f.trajectory.trajectory_id for f in found] == ["outer", "inner"]
    assert found[0].trajectory.messages[2].content == ""
    assert set(codes(found[0])) == {
        *("cyclic_reference", "not_carried", "absent_content", "subagent"),
    }
    assert (reader.records, reader.rejects) == (1, [])


def test_a_bare_step_is_a_reject(tmp_path: Path) -> None:
    _, reader = imported(tmp_path / "t", json.dumps(document({"source": "alien"})).encode())
    assert [r.reason for r in reader.rejects] == ["step"]


def test_events_stand_in_order(tmp_path: Path) -> None:
    (found,) = read(tmp_path, document(user(), agent("f"), agent("g", llm_call_count=0)))
    kinds = [(event.seq, isinstance(event, DispatchEvent)) for event in found.trajectory.events]
    assert kinds == [(0, False), (1, True), (2, True)]
