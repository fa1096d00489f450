"""Where a policy first leaves its teacher, found on the policy's own history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.agents.spec import policy_agent
from palio.evaluate.diagnosis import FOLLOWED, INVALID, NO_CALL, diagnose, difference
from palio.evaluate.policy import EvalSettings, Policy, evaluate_policy
from palio.evaluate.rollouts import read_rollouts
from palio.judging.encoders import default_encoder
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


def found_in(shop, folder, upstream):
    problems, world = shop
    policy = Policy("changed", policy_agent("changed", TEACHER), upstream)
    worlds = {world.catalogue.catalogue_id: world}
    settings = EvalSettings(threads=4)
    evaluate_policy(policy, problems, worlds, default_encoder(), out=folder, settings=settings)
    kinds = {problem.problem_id: problem.kind for problem in problems}
    return diagnose(
        read_rollouts(folder),
        kinds,
        ScriptedUpstream(),
        TEACHER,
        lambda _: Toolbox(world),
        policy="changed",
    )


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


def test_turns_of_another_size_or_tool(shop):
    toolbox = Toolbox(shop[1])
    view, search = ("view_product_information", {"product_ids": "1"}), ("find_product", {"q": "a"})
    assert (
        difference([view], [search], toolbox) == "view_product_information instead of find_product"
    )
    assert difference([view], [view, view], toolbox) == "fewer calls in a turn"
    assert difference([view, view], [view], toolbox) == "more calls in a turn"
    assert difference([view], [view], toolbox) == ""
