"""Every real rollout and arena sample is read with its calls, arguments and order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from palio.corpus.readers.importing import TraceImport
from tests.readers.making import calls, codes

pytestmark = pytest.mark.shared


def test_evaluation_rows_keep_every_call_in_order(shared_data: Path) -> None:
    path = shared_data / "real_rollouts_foundry.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    reader = TraceImport([path])
    found = list(reader)
    assert not reader.rejects
    assert len(found) == len(rows) == 15
    for read, row in zip(found, rows, strict=True):
        sample = row["sample"]
        given = [
            (i["function"]["name"], i["function"]["arguments"]) for i in sample["output_tools"]
        ]
        trajectory = read.trajectory
        assert calls(trajectory) == given
        assert trajectory.query == row["query"]
        assert trajectory.problem_id + f"-rollout-{trajectory.attempt}" == row["name"]
        assert trajectory.kind == sample["task"]
        assert (trajectory.ending == "terminated") is sample["terminated"]
        assert trajectory.answer == (",".join(sample["recommended_product_ids"]) or None)
        if sample["assistant_text"]:
            assert trajectory.messages[-1].content == sample["assistant_text"]
        assert not trajectory.dispatches  # nobody saw a result
        assert "absent_results" in codes(read)


def test_prefix_rows_read_the_models_raw_turn(shared_data: Path) -> None:
    reader = TraceImport([shared_data / "real_rollouts_oro_sft_prefix.jsonl"])
    found = list(reader)
    assert not reader.rejects
    assert [calls(read.trajectory) for read in found] == [
        [("find_product", {"q": "dental elastics", "price": "above:10", "service": "lazmall"})],
        [("find_product", {"q": "patch one size color family 3", "price": "104", "page": 1})],
        [("find_product", {"q": "patch", "page": 1, "price": "139.0-157.0"})],
    ]
    for read in found:
        last = read.trajectory.messages[-1]
        assert (last.reasoning_content or "").startswith("I need to find")
        assert last.content is None
        assert len(read.trajectory.tools) == 4
        assert set(codes(read)) == {"unknown_key"}


WANTED = [
    ("find_product", {"q": "hosport waist bag", "price": "180-505"}),
    ("recommend_product", {"product_ids": "5035687794"}),
    ("terminate", {"status": "success"}),
]


def test_arena_samples(shared_data: Path) -> None:
    reader = TraceImport([shared_data / "arena_samples"])
    found = {(Path(read.file).name, read.line): read for read in reader}
    returned = found["agent_return_value.json", 1].trajectory
    sandbox = [found["sandbox_output.jsonl", line].trajectory for line in (1, 2, 3)]
    assert calls(returned) == calls(sandbox[0]) == WANTED
    assert returned.query == sandbox[0].query
    roles = ["user", "assistant", "tool", "assistant", "tool", "tool"]
    assert [m.role for m in returned.messages] == roles
    assert returned.messages[3].content == "Recommended."
    assert [(d.tool, d.emitted_by) for d in sandbox[0].dispatches] == [
        ("find_product", 0),
        ("recommend_product", 2),
        ("terminate", 2),
    ]
    search = sandbox[0].dispatches[0]
    assert json.loads(search.arguments) == {
        "q": "hosport waist bag",
        "page": 1,
        "price": "180-505",
    }
    assert json.loads(search.result)[0]["product_id"] == "5035687794"
    assert (search.at_ms, search.duration_ms) == (4500.0, 350.2)
    assert [e.usage.completion_tokens for e in sandbox[0].inferences] == [96, 121]
    assert [(t.ending.value, t.fault and t.fault.code) for t in sandbox] == [
        ("terminated", None),
        ("crashed", 1001),
        ("timed_out", 1002),
    ]
    log = found["request_log_PROBLEMID.jsonl", 1]
    assert (log.format, log.trajectory.problem_id) == ("request-log", "PROBLEMID")
    assert [d.tool for d in log.trajectory.dispatches] == ["find_product"]
    nonces = found["inference_response_with_nonces.json", 1].trajectory
    assert calls(nonces) == WANTED[:1]
    assert {reject.reason for reject in reader.rejects} == {"not_a_trace"}
    assert reader.records == len(found) + len(reader.rejects)
