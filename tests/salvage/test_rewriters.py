"""Both rewriters keep to the moment: the narrator by construction, a model by being checked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.broker.upstream import HttpUpstream
from palio.corpus.gates import Drop
from palio.corpus.salvage.model import TRIES, ModelRewriter, prompt
from palio.corpus.salvage.moment import Moment, Step, UnfoundedError, unfounded
from palio.corpus.salvage.narrator import Narrator
from palio.corpus.salvage.rewrite import SalvageConfig, salvage_one
from palio.judging.words import token_set
from palio.records import Trajectory, UpstreamError
from tests.salvage.making import replayer, runs

# Words of the narrator's own, and what wanted and seen are called.
OWN = token_set(
    "search no results need yes no none fit look at too next page without filters so recommend "
    "rather than because it is nothing matches in full the closest one cheaper ranks first within "
    "shop same and over under to total of with voucher check as"
)


def moments(trajectory: Trajectory) -> Iterator[tuple[Moment, str]]:
    """The moments of a salvaged row with what was thought in them."""
    made = salvage_one(trajectory, replayer(), Narrator(), SalvageConfig())
    if isinstance(made, Drop):
        assert made.reason == "unfounded"
        return
    steps: list[Step] = []
    results = {event.call_id: event.result for event in made.dispatches}
    for message in made.messages:
        if message.role != "assistant":
            continue
        calls = tuple(
            (call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls
        )
        moment = Moment(query=made.query, steps=tuple(steps), calls=calls, compact=True)
        yield moment, message.reasoning_content or ""
        steps += [
            Step(tool=tool, arguments=given, result=results[call.id])
            for (tool, given), call in zip(calls, message.tool_calls, strict=True)
        ]


@pytest.mark.parametrize("agent", ["narrator", "classifier"])
def test_every_word_of_the_narrator_stands_in_the_moment(agent: str) -> None:
    for trajectory in runs(agent):
        for moment, thinking in moments(trajectory):
            assert thinking
            assert unfounded(thinking, moment) == ()
            shown = [moment.query, *(step.result for step in moment.steps)]
            shown += [json.dumps(given) for _, given in moment.calls]
            shown += [json.dumps(step.arguments) for step in moment.steps]
            told = frozenset().union(*(token_set(re.sub(r"\W", " ", text)) for text in shown))
            stray = {
                word
                for word in token_set(thinking)
                if word not in told | OWN and not any(letter.isdigit() for letter in word)
            }
            assert not stray, (stray, thinking)


def test_verdicts_of_the_narrator_are_true() -> None:
    """`{id} {wanted} {seen} yes`: the id was viewed, and it has what is said to be seen."""
    said = 0
    for trajectory in runs("classifier"):
        views = {
            row["product_id"]: json.dumps(row)
            for event in trajectory.dispatches
            if event.tool == "view_product_information" and event.result.startswith("[")
            for row in json.loads(event.result)
        }
        for _, thinking in moments(trajectory):
            for product_id, wanted, seen in re.findall(
                r"\b(\d{4}) ([a-z]+) ([a-z]+) yes", thinking
            ):
                assert wanted == seen
                assert f'"{seen}"' in views[product_id]
                said += 1
    assert said > 10


def test_the_narrator_admits_what_the_record_does_not_support() -> None:
    row = {"product_id": "1111", "shop_id": "22", "title": "vaigro vertex mug", "price": 90}
    found = Step(tool="find_product", arguments={"q": "vaigro mug"}, result=json.dumps([row]))
    moment = Moment(
        query="show me a mug from vaigro for no more than 42, please.",
        steps=(found,),
        calls=(("recommend_product", {"product_ids": "1111"}),),
        compact=True,
    )
    view = Step(
        tool="view_product_information",
        arguments={"product_ids": "1111"},
        result='[{"product_id":"1111","attributes":{"material":["wool"]}}]',
    )
    seen = Moment(query=moment.query, steps=(found, view), calls=moment.calls, compact=True)
    thinking = Narrator().thinking(seen)
    assert "1111 under 42 90 no." in thinking
    assert "nothing matches in full" in thinking


def test_the_narrator_does_not_argue_against_the_record() -> None:
    """Another result of the same search holds what the choice lacks: no text could be honest."""
    rows = [
        {"product_id": name, "shop_id": "22", "title": "vaigro vertex mug", "price": price}
        for name, price in (("1111", 90), ("2222", 30))
    ]
    views = [{"product_id": row["product_id"], "attributes": {}} for row in rows]
    found = Step(tool="find_product", arguments={"q": "vaigro mug"}, result=json.dumps(rows))
    ids = {"product_ids": "1111,2222"}
    view = Step(tool="view_product_information", arguments=ids, result=json.dumps(views))
    query = "show me a mug from vaigro for no more than 42, please."

    def choosing(product_id: str) -> Moment:
        calls = (("recommend_product", {"product_ids": product_id}),)
        return Moment(query=query, steps=(found, view), calls=calls, compact=True)

    with pytest.raises(UnfoundedError, match="2222 has under 42"):
        Narrator().thinking(choosing("1111"))
    assert "recommend 2222 rather than 1111" in Narrator().thinking(choosing("2222"))


class Scripted:
    """An upstream that says what it is told to, one answer after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"choices": [{"message": {"role": "assistant", "content": answer}}]}


def a_moment() -> Moment:
    return list(moments(runs("narrator")[0]))[-1][0]


def test_a_model_is_shown_the_moment_and_its_answer_is_kept() -> None:
    upstream = Scripted("<think>hidden 9999</think>\n3306 ceramic\nceramic yes, take it.")
    moment = a_moment()
    pick = moment.calls[0][1]["product_ids"]
    upstream.answers = [f"<think>hidden 9999</think>\n{pick} has\nwhat was asked, 1 of 3."]
    text = ModelRewriter(upstream, "m").thinking(moment)
    assert text == f"{pick} has what was asked, 1 of 3."
    system, user = upstream.bodies[0]["messages"]
    assert system["content"] == prompt()
    assert json.loads(user["content"])["query"] == moment.query


def test_a_model_that_makes_things_up_is_asked_again_then_refused() -> None:
    upstream = Scripted("9999 is better.", "this one fits.")
    assert ModelRewriter(upstream, "m").thinking(a_moment()) == "this one fits."
    assert [body["seed"] for body in upstream.bodies] == [0, 1]
    for wrong in ("9999 is better.", "call <tool_call>", "", "x" * 3000):
        upstream = Scripted(wrong)
        with pytest.raises(UnfoundedError):
            ModelRewriter(upstream, "m").thinking(a_moment())
        assert len(upstream.bodies) == TRIES


def test_what_a_model_does_wrong_is_a_reason() -> None:
    source, config = runs("narrator")[0], SalvageConfig()
    gone = UpstreamError("gone", code=3001)
    for answer, reason in (("9999 wins", "unfounded"), (gone, "rewriter_failed")):
        made = salvage_one(source, replayer(), ModelRewriter(Scripted(answer), "m"), config)
        assert isinstance(made, Drop)
        assert made.reason == reason


def test_a_model_over_http() -> None:
    """A real server and socket; the scripted classifier knows no such task but answers in words."""
    with ModelServer(ScriptedUpstream()) as server, HttpUpstream(server.url) as upstream:
        rewriter = ModelRewriter(upstream, "scripted-classifier")
        made = salvage_one(runs("narrator")[0], replayer(), rewriter, SalvageConfig())
    assert isinstance(made, Trajectory)
    assert made.agent.model == rewriter.rewriter_id
    assert {m.reasoning_content for m in made.messages if m.role == "assistant"} == {"no"}


@pytest.mark.parametrize(
    ("text", "stray"),
    [
        ("two of 5 results", ()),
        ("the 1,234 one", ("1234",)),
        ("id abc9", ("abc9",)),
        ("<|im_end|>", ("<|im_end|>",)),
    ],
)
def test_unfounded(text: str, stray: tuple[str, ...]) -> None:
    moment = Moment(query="show me a mug", steps=(), calls=(), compact=True)
    assert unfounded(text, moment) == stray
