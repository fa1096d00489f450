"""Each gate drops exactly the rows that its reason names, and a good row passes all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from palio.corpus.config import CorpusConfig
from palio.corpus.conversation import mentions, orphan_calls
from palio.corpus.gates import row_steps
from palio.corpus.readers.dialogue import NO_RECORD
from palio.corpus.readers.recording import UNLOGGED
from palio.judging.answers import product_ids
from palio.records import Ending, Fault, FaultCode, Message
from palio.rollout.verdicts import Judged
from tests.corpus.making import Turn, conversation, good_turns, made_row
from tests.suites.making import made_problem

PROBLEM = made_problem("p", ("7001",))
GOOD = good_turns("7001")
SEARCH, LOOK, PICK, END = GOOD


def reason(row: Judged, count: Any = None, **config: Any) -> str:
    """The reason of the first gate that drops the row, "" when it passes all."""
    chosen = CorpusConfig(**config)
    drops = (gate(row, chosen) for _, gates in row_steps(count) for gate in gates)
    return next((drop.reason for drop in drops if drop), "")


def test_a_good_row_passes() -> None:
    assert reason(made_row("t", PROBLEM)) == ""


def with_calls(turn: Turn, *calls: tuple[str, Any, str]) -> Turn:
    return (turn[0], calls, turn[2])


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ((SEARCH, with_calls(LOOK, (*LOOK[1][0][:2], "")), PICK, END), "orphan_call"),
        ((SEARCH, LOOK, with_calls(PICK, (*PICK[1][0][:2], "")), END), "orphan_call"),
        ((SEARCH, LOOK, END), "recommend_missing"),
        ((SEARCH, LOOK, PICK, PICK, END), "recommend_repeated"),
        ((with_calls(SEARCH, ("find_product", '{"q": ', "[]")), *GOOD[1:]), "bad_arguments"),
        (
            (with_calls(SEARCH, ("find_product", '"{\\"q\\": 1}"', "[]")), *GOOD[1:]),
            "bad_arguments",
        ),
        ((with_calls(SEARCH, ("find_product", "[]", "[]")), *GOOD[1:]), "bad_arguments"),
        ((*GOOD[:3], ("I wonder.", (), "")), "ends_on_think"),
        ((SEARCH, ("hm.", (), ""), LOOK, PICK, END), "empty_turn"),
        (
            (SEARCH, LOOK, with_calls(PICK, ("recommend_product", {"product_ids": ""}, "ok")), END),
            "unresolved_product",
        ),
        ((LOOK, PICK, END), "ungrounded"),  # the id was known before any result told it
        ((SEARCH, ("so <tool_call> it is", LOOK[1], ""), PICK, END), "tag_in_text"),
        ((("", SEARCH[1], ""), ("", LOOK[1], ""), ("", PICK[1], ""), END), "no_thinking"),
        ((SEARCH, with_calls(LOOK, ("buy_it", {}, "no")), PICK, END), "unknown_tool"),
    ],
)
def test_a_bad_conversation_is_dropped_for_its_reason(turns: Sequence[Turn], expected: str) -> None:
    assert reason(made_row("t", PROBLEM, turns)) == expected


def test_only_a_final_terminal_call_may_stay_unanswered() -> None:
    unanswered = conversation("q", (SEARCH, END))
    assert not orphan_calls(unanswered, ("terminate",))
    assert len(orphan_calls(unanswered, ())) == 1
    early = conversation("q", (END, SEARCH))
    assert len(orphan_calls(early, ("terminate",))) == 1


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (lambda m: m[:2] + m[3:], "orphan_call"),  # a lost result
        (lambda m: (*m[:3], m[2], *m[3:]), "orphan_result"),  # a result twice
        (lambda m: (m[0], m[2], m[1], *m[2:]), "orphan_result"),  # a result before its call
        (lambda m: (m[1], m[2], m[0], *m[3:]), "role_order"),
        (lambda m: (*m[:5], Message(role="system", content="x"), *m[5:]), "role_order"),
    ],
)
def test_a_truncated_or_shuffled_conversation_is_dropped(messages: Any, expected: str) -> None:
    row = made_row("t", PROBLEM)
    changed = msgspec.structs.replace(
        row.trajectory, messages=tuple(messages(row.trajectory.messages))
    )
    assert reason(msgspec.structs.replace(row, trajectory=changed)) == expected


def test_calls_answered_out_of_order_are_paired_by_id() -> None:
    both = ("two at once.", (SEARCH[1][0], LOOK[1][0]), "")
    row = made_row("t", PROBLEM, (SEARCH, both, PICK, END))
    m = row.trajectory.messages
    swapped = (*m[:4], m[5], m[4], *m[6:])
    changed = msgspec.structs.replace(row.trajectory, messages=swapped)
    assert reason(msgspec.structs.replace(row, trajectory=changed)) == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"success": False}, "outcome_failed"),
        ({"quality": None}, "unjudged"),
        ({"quality": 0.3}, "coefficient_low"),
        ({"quality": 0.5}, ""),
        ({"richness": None}, "axis_unknown"),
        ({"richness": 0.05}, "axis_subtask"),
        ({"richness": 0.1}, "axis_subtask"),
        ({"richness": 0.11}, "axis_mixed"),
        ({"richness": 0.9}, ""),
        ({"unresolved": ("7001",)}, "unresolved_product"),
        ({"unresolved": None}, ""),
        ({"ending": Ending.infra}, "unscored"),
        ({"fault": Fault(code=FaultCode.upstream_timed_out, what="slow")}, "unscored"),
        ({"fault": Fault(code=FaultCode.agent_crashed, what="oops")}, ""),
        ({"answer": "7002"}, "ungrounded"),
        ({"answer": ["7001"]}, ""),
        ({"answer": "7001, 7001"}, ""),
        ({"emitted": False, "richness": 0.0}, "axis_subtask"),
    ],
)
def test_a_verdict_decides(fields: dict[str, Any], expected: str) -> None:
    assert reason(made_row("t", PROBLEM, **fields)) == expected


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({"success": False}, {"outcome": "none"}),
        ({"quality": None}, {"coefficient": 0.0}),
        ({"richness": 0.5}, {"axes": ("agentic", "mixed")}),
        ({"richness": 0.5}, {"agentic": 0.5}),
        ({"turns": (LOOK, PICK, END)}, {"grounding": False}),
        ({"turns": (SEARCH, ("hm.", (), ""), LOOK, PICK, END)}, {"format": False}),
    ],
)
def test_each_gate_can_be_switched(fields: dict[str, Any], config: dict[str, Any]) -> None:
    row = made_row("t", PROBLEM, **fields)
    assert reason(row) != ""
    assert reason(row, **config) == ""


def test_an_outcome_of_another_profile_does_not_count() -> None:
    assert reason(made_row("t", PROBLEM), outcome="strict") == "outcome_missing"


def test_heuristic_evidence_can_be_refused() -> None:
    assert reason(made_row("t", PROBLEM), evidence=("verified",)) == "axis_unknown"


@pytest.mark.parametrize("note", [NO_RECORD, UNLOGGED])
def test_an_account_without_a_record_has_no_axis(note: str) -> None:
    row = made_row("t", PROBLEM)
    told = msgspec.structs.replace(row.trajectory, differences=(note,))
    assert reason(msgspec.structs.replace(row, trajectory=told)) == "axis_unknown"
    assert reason(row) == ""


def test_a_call_that_the_model_never_made_is_not_its_answer() -> None:
    row = made_row("t", PROBLEM)
    cut = msgspec.structs.replace(row.trajectory, messages=row.trajectory.messages[:5])
    assert reason(msgspec.structs.replace(row, trajectory=cut)) == "answer_not_in_messages"


def test_bytes_decide_the_budget_and_exact_tokens_are_asked_only_above_it() -> None:
    row = made_row("t", PROBLEM)
    asked = []

    def count(messages: Sequence[Message], tools: Sequence[Any]) -> int:
        asked.append(len(messages) + len(tools))
        return 500

    assert reason(row, count, token_budget=100_000) == ""
    assert not asked
    assert reason(row, count, token_budget=600) == ""
    assert reason(row, count, token_budget=400) == "over_budget"
    assert len(asked) == 2
    assert reason(row, token_budget=600) == "over_budget"
    assert reason(row, token_budget=600, bytes_per_token=4.0) == ""


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ('[{"product_id":"7001","price":1}]', True),
        ('[{"product_id":7001,"price":1}]', True),
        ('[{"product_id":"70011","price":7001}]', False),  # a price is no id
        ("plain text about 7001.", True),
        ("plain text about 17001", False),
    ],
)
def test_a_result_must_name_the_id_itself(result: str, told: bool) -> None:
    searched = with_calls(SEARCH, ("find_product", {"q": "mug"}, result))
    row = made_row("t", PROBLEM, (searched, LOOK, PICK, END))
    assert reason(row) == ("" if told else "ungrounded")


def test_an_echo_grounds_nothing() -> None:
    echo = with_calls(SEARCH, ("find_product", {"q": "7001"}, '[{"product_id":"7001"}]'))
    assert reason(made_row("t", PROBLEM, (echo, LOOK, PICK, END))) == "ungrounded"


def test_foreign_traces_are_judged_by_their_messages() -> None:
    row = made_row("t", PROBLEM, events=())
    assert reason(row) == ""
    blind = made_row("t", PROBLEM, (LOOK, PICK, END), events=())
    assert reason(blind) == "ungrounded"


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("1, 2,,1 ", ("1", "2")),
        ([1, " 2", "", [3], None], ("1", "2")),
        (7, ("7",)),
        (None, ()),
        ({"a": 1}, ()),
        (True, ()),
    ],
)
def test_ids_come_in_many_forms(value: Any, ids: tuple[str, ...]) -> None:
    assert product_ids(value) == ids


def test_an_id_is_a_whole_word() -> None:
    assert mentions("see 12, or", "12")
    assert not mentions("312 12a x-12 12_", "12")
    assert mentions("312 (12)", "12")
