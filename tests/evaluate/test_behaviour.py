"""Invented ids and malformed turns are counted from the record, not from what the agent says."""

from __future__ import annotations

import pytest

from palio.evaluate.behaviour import behaviour_of, is_valid_turn, product_ids_in
from palio.records import Ending, FunctionCall, Message, ToolCall
from tests.evaluate.sample import dispatch, events, trajectory


def turn(*calls: tuple[str, str]) -> Message:
    made = tuple(
        ToolCall(id=str(i), function=FunctionCall(name=name, arguments=arguments))
        for i, (name, arguments) in enumerate(calls)
    )
    return Message(role="assistant", content="", tool_calls=made)


@pytest.mark.parametrize(
    ("message", "valid"),
    [
        (turn(("find_product", '{"q":"x"}')), True),
        (turn(("find_product", '{"q":"x"}'), ("terminate", "{}")), True),
        (turn(("find_product", '{"q":')), False),
        (turn(("find_product", '["x"]')), False),
        (turn(("buy_product", "{}")), False),
        (turn(), False),
        (None, False),
    ],
)
def test_a_valid_turn_makes_calls_that_can_be_carried_out(
    message: Message | None, valid: bool
) -> None:
    assert is_valid_turn(message, {"find_product", "terminate"}) is valid


def test_ids_count_as_shown_only_after_a_result_held_them() -> None:
    before = (dispatch(0, "view_product_information", '{"product_ids":"4821"}', "[]"),)
    early = behaviour_of(trajectory(events=before + events("")[1:2]))
    late = behaviour_of(trajectory(events=events("")))
    assert (early.named_ids, early.invented_ids) == (1, 1)
    assert (late.named_ids, late.invented_ids) == (1, 0)


def test_recommending_an_id_does_not_show_it() -> None:
    twice = (
        dispatch(0, "recommend_product", '{"product_ids":"99"}', '{"product_ids":"99"}'),
        dispatch(1, "recommend_product", '{"product_ids":["99", 98]}', "{}"),
    )
    assert behaviour_of(trajectory(events=twice)).invented_ids == 2


def test_counts_of_a_whole_run() -> None:
    made = behaviour_of(trajectory())
    assert (made.turns, made.valid_turns, made.calls, made.refused_calls) == (2, 2, 3, 0)
    assert made.completion_tokens is None
    assert made.terminated


def test_ids_are_found_at_any_depth() -> None:
    result = {"items": [{"product_id": 7, "like": [{"product_ids": ["8", "9"]}]}], "q": "10"}
    assert sorted(product_ids_in(result)) == ["7", "8", "9"]


def test_what_the_wall_clock_stopped_is_told_apart() -> None:
    assert behaviour_of(trajectory(ending=Ending.timed_out)).timed_out
    assert not behaviour_of(trajectory()).timed_out
