"""Rows whose agents told of what their records do not have are dropped, each with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.broker.claim import compare_claim, record_differences, shown_differences
from palio.corpus.claims import FORGED, INVENTED, departure
from palio.corpus.config import CorpusConfig
from palio.corpus.gates import true_to_record
from palio.corpus.readers.importing import TraceImport
from palio.corpus.readers.proxy import told_truly
from palio.records import DispatchEvent, InferenceEvent, Message, Trajectory
from palio.rollout.verdicts import Judged
from tests.corpus.making import PROBLEMS, made_trajectory
from tests.corpus.test_any_format import envelope

RUN = made_trajectory("t", PROBLEMS[0])
FOUND = next(event for event in RUN.events if isinstance(event, DispatchEvent))
ARGUMENTS = json.loads(FOUND.arguments)


def told(name: str, parameters: Any, result: Any = None) -> dict[str, Any]:
    return {"name": name, "parameters": parameters, "tool_call_id": "x", "result": result}


def claimed(*calls: dict[str, Any], answer: Any = None) -> tuple[str, ...]:
    """The broker's own sentences about a claim: the words that the gate has to know."""
    claim = [{"completion": {"message": {"tool_call": list(calls)}}, "extra_info": {}}]
    return compare_claim(claim, RUN.events, answer or RUN.answer).differences


def reason(differences: tuple[str, ...], **config: Any) -> str:
    run = msgspec.structs.replace(RUN, differences=differences)
    drop = true_to_record(Judged(trajectory=run), CorpusConfig(**config))
    return drop.reason if drop else ""


def test_a_forged_result_in_the_returned_dialogue() -> None:
    differences = claimed(told("find_product", ARGUMENTS, [{"product_id": "9"}]))
    assert reason(differences) == "forged_observation"
    assert reason(differences, claims=False) == ""


def test_a_call_that_never_happened_and_another_answer() -> None:
    assert reason(claimed(told("find_product", {"q": "never"}))) == "invented_call"
    named = told("recommend_product", {"product_ids": "4"})
    assert reason(claimed(named, answer="5")) == "invented_call"


def test_a_result_that_the_model_was_shown_and_no_tool_gave() -> None:
    shown = Message(role="tool", content='[{"product_id":"1","price":0.01}]', tool_call_id="a")
    dispatch = msgspec.structs.replace(FOUND, seq=0, call_id="a")
    inference = InferenceEvent(
        seq=1, at_ms=1, duration_ms=1, prefix=0, request=(shown,), completion=None
    )
    assert reason(shown_differences((dispatch, inference))) == "forged_observation"


@pytest.mark.parametrize(
    "differences",
    [
        (),
        compare_claim([], RUN.events, RUN.answer).differences,
        claimed(told("find_product", ARGUMENTS, json.loads(FOUND.result))),
        claimed(told("terminate", {"status": "failure"})),
        record_differences((), "5"),
    ],
)
def test_what_leaves_the_record_whole_drops_nothing(differences: tuple[str, ...]) -> None:
    assert reason(differences) == ""


def imported(tmp_path: Path, row: dict[str, Any]) -> Trajectory:
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(row))
    (found,) = TraceImport([path])
    return found.trajectory


def test_an_imported_dialogue_is_held_against_the_proxy_s_log(tmp_path: Path) -> None:
    honest = envelope(RUN)
    assert departure(imported(tmp_path, honest).differences) is None
    invented = json.loads(json.dumps(honest))
    call = told("find_product", {"q": "never asked"}, [{"product_id": "1"}])
    invented["dialogue"][0]["completion"]["message"]["tool_call"].append(call)
    found = departure(imported(tmp_path, invented).differences)
    assert found is not None
    assert found[0] == "invented_call"
    forged = json.loads(json.dumps(honest))
    first = forged["dialogue"][0]
    first["completion"]["message"]["tool_call"][0]["result"] = [{"product_id": "777"}]
    found = departure(imported(tmp_path, forged).differences)
    assert found is not None
    assert found[0] == "forged_observation"
    logged = first["extra_info"]["proxy_calls"][1]
    del logged["response"]
    logged |= {"response_truncated": True, "result_product_ids": ["1000"]}
    found = departure(imported(tmp_path, forged).differences)
    assert found is not None
    assert found[0] == "forged_observation"


def test_the_worst_departure_is_the_one_that_counts() -> None:
    both = (f"x {INVENTED[0]}", f"y {FORGED[0]} z")
    assert departure(both) == ("forged_observation", both[1])


@pytest.mark.parametrize(
    ("claimed_text", "logged", "true"),
    [
        ('[{"a":1}]', [{"a": 1}, {"a": 2}], True),
        ('[{"a":1}]', [{"a": 1, "b": 2}], True),
        ('{"result":[{"a":1}]}', [{"a": 1}], True),
        ('[{"a":3}]', [{"a": 1}], False),
        ('[{"a":1,"c":1}]', [{"a": 1}], False),
        ("found: blue", "found: blue mug", True),
        ("found: red", "found: blue mug", False),
        ('[{"a":1}]', '[{"a": 1}]', True),
        ("[]", [{"a": 1}], True),
        ('{"a":1}', [{"a": 1}], False),
    ],
)
def test_what_an_agent_may_leave_out_and_what_it_may_not_change(
    claimed_text: str, logged: Any, true: bool
) -> None:
    assert told_truly(claimed_text, logged) is true
