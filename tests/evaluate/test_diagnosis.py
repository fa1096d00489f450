"""Where a policy first leaves its teacher, found on the policy's own history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.agents.spec import policy_agent
from palio.broker.upstream import RejectedError
from palio.evaluate.diagnosis import (
    FOLLOWED,
    INVALID,
    NO_CALL,
    TEACHER_REFUSED,
    diagnose,
    difference,
)
from palio.evaluate.policy import EvalSettings, Policy, evaluate_policy
from palio.evaluate.rollouts import read_rollouts
from palio.judging.encoders import default_encoder
from palio.records import UpstreamError
from palio.world.synthesis import compact_config, synthesise
from palio.world.tools import Toolbox
from palio.world.world import COMPACT, World

TEACHER = "scripted-careful"


@pytest.fixture(scope="module")
def shop():
    made = synthesise(compact_config(3, products=600, problems=24))
    world = World.build(made.catalogue, COMPACT)
    return made.problems, world


class Changed:
    """The careful model with one thing in its turns changed."""

    def __init__(self, change) -> None:
        self.inner, self.change = ScriptedUpstream(), change

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        reply = self.inner.complete({**body, "model": TEACHER})
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        self.change(turn, reply["choices"][0]["message"])
        return reply


def found_in(shop, folder, upstream, teacher=None):
    problems, world = shop
    policy = Policy("changed", policy_agent("changed", TEACHER), upstream)
    worlds = {world.catalogue.catalogue_id: world}
    settings = EvalSettings(threads=4)
    evaluate_policy(policy, problems, worlds, default_encoder(), out=folder, settings=settings)
    kinds = {problem.problem_id: problem.kind for problem in problems}
    return diagnose(
        read_rollouts(folder),
        kinds,
        teacher or ScriptedUpstream(),
        TEACHER,
        lambda _: Toolbox(world),
        policy="changed",
    )


def test_an_ending_in_words_that_the_teacher_says_too_is_no_departure(shop, tmp_path):
    def in_words(turn, message):
        calls = message.get("tool_calls", [])
        if any(call["function"]["name"] == "terminate" for call in calls):
            message.update(content="Done.", tool_calls=[])

    ending, _ = found_in(shop, tmp_path, Changed(in_words), Changed(in_words))
    assert [each.kind for each in ending.departures] == [FOLLOWED]
    alone, _ = found_in(shop, tmp_path, Changed(in_words))
    assert [each.kind for each in alone.departures] == [NO_CALL]


def call_of(message):
    return message["tool_calls"][0]["function"]


def test_the_teacher_itself_never_departs(shop, tmp_path):
    told, departures = found_in(shop, tmp_path, ScriptedUpstream())
    assert {each.kind for each in departures} == {FOLLOWED}
    assert told.n == len(shop[0])
    assert told.departures[0].succeeded == told.n - told.failed


def test_a_changed_search_is_named_by_what_it_changed(shop, tmp_path):
    def cheaper(turn, message):
        if turn == 0:
            arguments = json.loads(call_of(message)["arguments"])
            call_of(message)["arguments"] = json.dumps({**arguments, "price": "0-1"})

    told, departures = found_in(shop, tmp_path, Changed(cheaper))
    assert {(each.kind, each.turn) for each in departures} == {("search: price", 0)}
    only = told.departures[0]
    assert only.failed + only.succeeded == only.success.n == told.n
    assert sum(only.by_kind.values()) == only.failed == told.failed
    assert departures[0].asked[0][1]["price"] != departures[0].expected[0][1].get("price")


def test_other_words_for_the_same_page_are_no_departure(shop, tmp_path):
    def doubled(turn, message):
        if turn == 0:
            arguments = json.loads(call_of(message)["arguments"])
            arguments["q"] = arguments["q"].upper()
            call_of(message)["arguments"] = json.dumps(arguments)

    _, departures = found_in(shop, tmp_path, Changed(doubled))
    assert {each.kind for each in departures} == {FOLLOWED}


def test_the_first_departure_counts_though_later_turns_differ_too(shop, tmp_path):
    def wrong(turn, message):
        if turn >= 1 and call_of(message)["name"] == "recommend_product":
            call_of(message)["arguments"] = '{"product_ids": "1"}'

    told, departures = found_in(shop, tmp_path, Changed(wrong))
    kinds = {each.kind for each in departures}
    assert kinds == {"recommend_product: other arguments"}
    assert all(each.turn >= 1 for each in departures)
    assert told.departures[0].success.rate == 0


def test_silence_and_garbage_have_names_of_their_own(shop, tmp_path):
    def silent(turn, message):
        if turn == 1:
            message.pop("tool_calls")
            message["content"] = "Hm."

    def garbled(turn, message):
        if turn == 1:
            call_of(message)["arguments"] = "{"

    for change, kind in ((silent, NO_CALL), (garbled, INVALID)):
        _, departures = found_in(shop, tmp_path / kind, Changed(change))
        assert {(each.kind, each.turn) for each in departures} == {(kind, 1)}


class Short:
    """The teacher behind a server that reads no more than some messages."""

    def __init__(self, most: int) -> None:
        self.inner, self.most = ScriptedUpstream(), most

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if len(body["messages"]) > self.most:
            raise RejectedError("maximum context length")
        return self.inner.complete(body)


def test_a_history_that_the_teacher_cannot_read_is_counted_as_that(shop, tmp_path):
    told, departures = found_in(shop, tmp_path, ScriptedUpstream(), Short(7))
    assert {each.kind for each in departures} == {FOLLOWED, TEACHER_REFUSED}
    assert told.n == len(shop[0]) == sum(row.failed + row.succeeded for row in told.departures)
    refused = [each for each in departures if each.kind == TEACHER_REFUSED]
    assert {each.turn for each in refused} == {4}, (
        "the request and three turns with their results were read"
    )
    assert all(each.asked and not each.expected for each in refused)


def test_a_teacher_that_refuses_first_turns_cannot_be_asked(shop, tmp_path):
    with pytest.raises(UpstreamError, match="first request of a conversation is refused"):
        found_in(shop, tmp_path, ScriptedUpstream(), Short(0))


class NoRole:
    """A teacher whose server does not say that the assistant speaks."""

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        reply = ScriptedUpstream().complete(body)
        reply["choices"][0]["message"].pop("role")
        return reply


def test_a_message_without_a_role_is_the_assistants_as_in_a_rollout(shop, tmp_path):
    _, departures = found_in(shop, tmp_path, NoRole(), NoRole())
    assert {each.kind for each in departures} == {FOLLOWED}


def test_turns_of_another_size_or_tool(shop):
    toolbox = Toolbox(shop[1])
    view, search = ("view_product_information", {"product_ids": "1"}), ("find_product", {"q": "a"})
    assert (
        difference([view], [search], toolbox) == "view_product_information instead of find_product"
    )
    assert difference([view], [view, view], toolbox) == "fewer calls in a turn"
    assert difference([view, view], [view], toolbox) == "more calls in a turn"
    assert difference([view], [view], toolbox) == ""
