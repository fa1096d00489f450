"""Dialogues and request logs: who emitted a call is decided by what was logged before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palio.corpus.readers.dialogue import NO_RECORD
from palio.corpus.readers.recording import UNLOGGED
from palio.judging import richness_verdict
from palio.records import Ending
from tests.readers.making import QUERY, asked, calls, codes, made, read, searched, step

SEARCH = {"q": "blue mug"}
ROWS = [{"product_id": "1", "title": "blue mug"}]


def envelope(*steps: Any, proxies: Any = None, **fields: Any) -> dict[str, Any]:
    if proxies is not None:
        steps[0]["extra_info"]["proxy_calls"] = proxies
    return {"problem_id": "p1", "status": "SUCCESS", "dialogue": list(steps), **fields}


def agentic_steps() -> tuple[dict[str, Any], ...]:
    return (
        step(1, made("find_product", SEARCH, ROWS), think="search"),
        step(2, made("recommend_product", {"product_ids": "1"}), think="1 is blue"),
    )


def test_a_logged_completion_that_asks_for_the_call_emitted_it(tmp_path: Path) -> None:
    proxies = [
        asked(500, ("find_product", SEARCH)),
        searched(600, {**SEARCH, "page": 1}),
        asked(1500, ("recommend_product", {"product_ids": "1"})),
    ]
    (found,) = read(tmp_path, envelope(*agentic_steps(), proxies=proxies))
    trajectory = found.trajectory
    assert [(d.tool, d.emitted_by) for d in trajectory.dispatches] == [
        ("find_product", 0),
        ("recommend_product", 2),
    ]
    assert richness_verdict(trajectory).axis == "agentic"
    assert trajectory.differences == ()
    assert codes(found) == ["result_claimed"]
    assert trajectory.problem_id == "p1"


def test_a_harness_that_searches_before_the_model_speaks_is_subtask(tmp_path: Path) -> None:
    proxies = [searched(500, SEARCH), searched(600, {"q": "mug"}), asked(900)]
    (found,) = read(tmp_path, envelope(*agentic_steps(), proxies=proxies))
    trajectory = found.trajectory
    assert richness_verdict(trajectory).richness == 0.0
    assert [(d.arguments, d.result) for d in trajectory.dispatches[:2]] == [
        ('{"q":"blue mug"}', json.dumps(ROWS, separators=(",", ":"))),
        ('{"q":"mug"}', '[{"product_id":"1"}]'),
    ]
    assert "result_reduced" in codes(found)


def test_a_completion_too_long_for_the_log_is_taken_from_its_step(tmp_path: Path) -> None:
    short = {"response": {"usage": {"completion_tokens": 99}}}
    proxies = [asked(500, **short), searched(600, SEARCH), asked(1500, **short)]
    (found,) = read(tmp_path, envelope(*agentic_steps(), proxies=proxies))
    assert [d.emitted_by for d in found.trajectory.dispatches] == [0, 2]
    assert codes(found).count("completion_claimed") == 2
    late = [searched(500, SEARCH), asked(600, **short)]
    (found,) = read(tmp_path, envelope(*agentic_steps(), proxies=late))
    assert found.trajectory.dispatches[0].emitted_by is None  # it came before the completion


def test_calls_and_results_that_no_request_made_are_differences(tmp_path: Path) -> None:
    forged = step(1, made("find_product", SEARCH, [{"product_id": "777"}]))
    proxies = [asked(500, ("find_product", SEARCH)), searched(600, SEARCH, ids=("1",))]
    (found,) = read(tmp_path, envelope(forged, proxies=proxies))
    assert "777" in found.trajectory.differences[0]
    invented = step(1, made("find_product", {"q": "other"}, ROWS))
    (found,) = read(tmp_path, envelope(invented, proxies=[asked(500)]))
    assert "not in the proxy's record" in found.trajectory.differences[0]
    assert not found.trajectory.dispatches
    assert calls(found.trajectory) == [("find_product", {"q": "other"})]  # and not lost


def test_a_request_belongs_to_the_first_step_not_before_it(tmp_path: Path) -> None:
    steps = [step(n, made("find_product", {"q": str(n)}, ROWS)) for n in (1, 2)]
    proxies = [
        asked(900, ("find_product", {"q": "1"})),
        searched(1000, {"q": "1"}),
        asked(1001, ("find_product", {"q": "2"})),
        searched(2500, {"q": "2"}),
        {"kind": "attempt", "path": "/inference/chat/completions", "timestamp": 1001},
        {"kind": "summary", "path": "/health", "timestamp": 1},
    ]
    (found,) = read(tmp_path, envelope(*steps, proxies=proxies))
    assert [(type(e).__name__, e.at_ms) for e in found.trajectory.events] == [
        ("InferenceEvent", 100.0),
        ("DispatchEvent", 200.0),
        ("InferenceEvent", 201.0),
        ("DispatchEvent", 1700.0),
    ]
    assert sorted(set(codes(found))) == [
        *("after_last_step", "attempt", "duplicate_call_id", "other_request", "result_claimed"),
    ]


def test_failed_requests_and_nonces(tmp_path: Path) -> None:
    proxies = [
        asked(100, status_code=429),
        asked(200, status_code=503),
        searched(300, SEARCH, status_code=500, nonce_status="valid"),
    ]
    (found,) = read(tmp_path, envelope(*agentic_steps(), proxies=proxies))
    events = found.trajectory.events
    assert [e.fault.code for e in events[:2] if e.fault] == [3003, 3002]
    assert found.trajectory.dispatches[0].error == "HTTP 500"
    assert "not_carried" in codes(found)


def test_a_dialogue_without_a_record_says_so(tmp_path: Path) -> None:
    steps = list(agentic_steps())
    artefact, bare = read(tmp_path, steps, {"problem_id": "p", "dialogue": steps})
    for found in (artefact, bare):
        assert calls(found.trajectory) == [
            ("find_product", SEARCH),
            ("recommend_product", {"product_ids": "1"}),
        ]
        assert found.trajectory.differences == (NO_RECORD,)
        assert codes(found) == []
    assert artefact.format == "arena-dialogue"
    steps[0]["completion"]["content"] = "I shall let the harness search."
    (found,) = read(tmp_path, steps)
    assert [d.emitted_by for d in found.trajectory.dispatches] == [None, 2]


def test_colliding_ids_of_equal_calls_are_made_unique(tmp_path: Path) -> None:
    twice = [made("find_product", SEARCH, [n], "same") for n in (1, 2)]
    (found,) = read(tmp_path, [step(1, *twice), step(2, made("find_product", SEARCH, [3], "same"))])
    ids = [c.id for m in found.trajectory.messages for c in m.tool_calls]
    assert ids == ["same", "same-2", "same-3"]
    assert [d.result for d in found.trajectory.dispatches] == ["[1]", "[2]", "[3]"]
    assert codes(found) == ["duplicate_call_id"] * 2


@pytest.mark.parametrize(
    ("result", "text"), [("ok", "ok"), (None, "null"), ([], "[]"), ({"é": 1.0}, '{"é":1.0}')]
)
def test_results_of_every_kind(tmp_path: Path, result: Any, text: str) -> None:
    (found,) = read(tmp_path, [step(1, made("find_product", SEARCH, result))])
    assert found.trajectory.messages[2].content == text


def test_an_unanswered_call_has_no_result(tmp_path: Path) -> None:
    call = made("find_product", SEARCH)
    del call["result"]
    (found,) = read(tmp_path, [step(1, call)])
    assert [m.role for m in found.trajectory.messages] == ["user", "assistant"]


def test_runs_without_a_dialogue_keep_their_fault(tmp_path: Path) -> None:
    error = {"type": "KeyError", "message": "'choices'"}
    row = {"problem_id": "p", "status": "FAILED", "error": error, "dialogue": None}
    (found,) = read(tmp_path, row)
    assert found.trajectory.ending is Ending.crashed
    assert found.trajectory.fault is not None
    assert found.trajectory.fault.what == "KeyError: 'choices'"


def test_upstream_rollouts_keep_prompts_and_pair_obs_by_id(tmp_path: Path) -> None:
    prompt = [{"role": "system", "content": "You shop."}, {"role": "user", "content": QUERY}]
    asked_for = [
        {"name": "find_product", "parameters": {"q": q}, "tool_call_id": q} for q in ("a", "b")
    ]
    steps = [
        {
            "prompt": prompt,
            "completion": {
                "reasoning_content": "",
                "content": f"<think>t</think><tool_call>{json.dumps(asked_for)}</tool_call>",
                "message": {
                    "think": "t",
                    "tool_call": asked_for,
                    "obs": [
                        {"tool_call_id": "b", "results": [2]},
                        {"tool_call_id": "a", "results": [1]},
                    ],
                    "response": "",
                },
            },
            "extra_info": {"step": 1, "query": QUERY, "timestamp": 1000},
        },
        {
            "prompt": [prompt[0], {"role": "user", "content": "history"}],
            "completion": {"content": "", "message": {"response": "done"}},
            "extra_info": {"step": 2, "query": QUERY, "timestamp": 2000},
        },
    ]
    (found,) = read(tmp_path, steps)
    trajectory = found.trajectory
    assert found.format == "upstream-rollout"
    assert trajectory.query == QUERY
    assert [(d.arguments, d.result) for d in trajectory.dispatches] == [
        ('{"q":"a"}', "[1]"),
        ('{"q":"b"}', "[2]"),
    ]
    assert [m.content for e in trajectory.inferences for m in e.request] == [
        *("You shop.", QUERY, "history"),
    ]
    assert [e.prefix for e in trajectory.inferences] == [0, 1]
    assert trajectory.messages[0].role == "system"


@pytest.mark.parametrize("named", [True, False])
def test_obs_of_calls_without_ids_and_of_the_step_before(tmp_path: Path, named: bool) -> None:
    """Ids by the arena's formula; the values were computed by the published function."""
    wanted = [
        {"name": "find_product", "parameters": {"q": "hosport waist bag", "price": "180-505"}}
    ]
    wanted.append({"name": "terminate", "parameters": {"status": "success"}})
    obs = [{"results": "bye"}, {"results": "found"}]
    if named:
        obs = [{"tool_call_id": "NR0gqQng", **obs[0]}, {"tool_call_id": "0F6wQPb_", **obs[1]}]
    first = step(1)
    first["prompt"] = [{"role": "user", "content": QUERY}]
    first["completion"]["message"] = {"tool_call": wanted, "obs": obs}
    (found,) = read(tmp_path, [first])
    results = ["found", "bye"] if named else ["bye", "found"]
    assert [d.result for d in found.trajectory.dispatches] == results
    asks = [{"name": "find_product", "parameters": SEARCH, "tool_call_id": "a"}]
    first["completion"]["message"] = {"tool_call": asks}
    second = step(2)
    second["completion"]["message"] = {
        "tool_call": [{**asks[0], "tool_call_id": "b"}, {"parameters": {}}],
        "obs": [{"tool_call_id": "a", "results": "late"}],
    }
    (found,) = read(tmp_path, [first, second])
    assert [m.role for m in found.trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert [d.result for d in found.trajectory.dispatches] == ["late"]
    assert codes(found) == ["call_shape"]


def test_a_request_log_alone_is_a_run(tmp_path: Path) -> None:
    from palio.corpus.readers.importing import TraceImport

    first = asked(500, ("find_product", SEARCH))
    tool = {"type": "function", "function": {"name": "find_product", "parameters": {}}}
    first["json_data"] = {
        "model": "m",
        "messages": [{"role": "user", "content": QUERY}],
        "tools": [tool],
    }
    rows = [
        first,
        searched(600, SEARCH),
        asked(900, response={"usage": {}}),
        searched(950, {"q": "x"}),
    ]
    path = tmp_path / "request_log_p7.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    (found,) = TraceImport([path])
    trajectory = found.trajectory
    assert (trajectory.problem_id, trajectory.query) == ("p7", QUERY)
    assert [m.role for m in trajectory.messages[:3]] == ["user", "assistant", "tool"]
    assert trajectory.tools == (tool,)
    assert trajectory.agent.model == "m"
    assert [d.emitted_by for d in trajectory.dispatches] == [0, None]
    assert trajectory.differences == (UNLOGGED,)


def test_what_a_step_says_twice_or_differently_is_listed(tmp_path: Path) -> None:
    first = step(1, think="a")
    first["completion"]["reasoning_content"] = "b"
    second = step(2, response="bye")
    second["extra_info"]["query"] = "another"
    second["mood"] = 1
    (found,) = read(tmp_path, [first, second])
    assert found.trajectory.messages[1].reasoning_content == "b\n\na"
    assert [(loss.code, loss.where) for loss in found.losses] == [
        ("joined_reasoning", "[0]"),
        ("unknown_key", "[1].mood"),
        ("query_changed", "[1].extra_info.query"),
    ]
