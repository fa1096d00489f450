from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pytest

from palio.agents.scripted import MODELS, ScriptedUpstream
from palio.agents.scripted.shopper import STYLES
from palio.broker.upstream import RejectedError
from palio.judging import OutcomeScorer, default_encoder
from palio.world.synthesis import compact_config, full_config, synthesise
from palio.world.tools import FOUR_TOOLS, Toolbox, tool_schemas
from palio.world.world import COMPACT, FULL, World
from tests.agents.conversing import answer_of, converse, turns_of


@cache
def made(world: str) -> tuple[Any, World]:
    if world == "compact":
        synthesis = synthesise(compact_config(3, products=900, problems=60))
        return synthesis, World.build(synthesis.catalogue, COMPACT)
    synthesis = synthesise(full_config(3, products=3000, problems=36))
    return synthesis, World.build(synthesis.catalogue, FULL)


def conversations(world: str, model: str, tools: Any = None) -> list[Any]:
    synthesis, built = made(world)
    system = "Shop well." if world == "full" else ""
    upstream, toolbox = ScriptedUpstream(0), Toolbox(built)
    return [
        (problem, converse(upstream, model, toolbox, problem.query, system=system, tools=tools))
        for problem in synthesis.problems
    ]


def success_by_kind(world: str, model: str) -> dict[str, float]:
    synthesis, _ = made(world)
    scorer = OutcomeScorer(synthesis.catalogue.products, default_encoder())
    won: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for problem, messages in conversations(world, model):
        count[problem.kind] += 1
        won[problem.kind] += scorer.score_answer(problem, answer_of(messages), "oro")[1]
    return {kind: won[kind] / n for kind, n in count.items()}


@pytest.mark.parametrize("world", ["compact", "full"])
@pytest.mark.parametrize("model", ["scripted-careful", "scripted-terse"])
def test_shoppers_that_check_solve_nearly_everything(world: str, model: str):
    assert all(share >= 0.95 for share in success_by_kind(world, model).values())


@pytest.mark.parametrize("world", ["compact", "full"])
def test_carelessness_costs_success(world: str):
    hasty = success_by_kind(world, "scripted-hasty")
    sloppy = success_by_kind(world, "scripted-sloppy")
    assert all(share <= 0.6 for share in hasty.values())
    assert sum(hasty.values()) < sum(sloppy.values()) < 0.9 * len(sloppy)


def test_compact_conversations_are_short_enough_to_learn():
    told = conversations("compact", "scripted-careful")
    turns = [turns_of(messages) for _, messages in told]
    words = [
        len(message["reasoning_content"].split())
        for _, messages in told
        for message in messages
        if message["role"] == "assistant"
    ]
    assert min(turns) >= 2
    assert sum(turns) / len(turns) <= 4.5
    assert sum(words) / len(words) <= 14
    assert max(words) <= 60


@pytest.mark.parametrize("world", ["compact", "full"])
@pytest.mark.parametrize("model", STYLES)
def test_a_model_is_a_pure_function_of_the_conversation(world: str, model: str):
    """Every turn can be asked for alone, in any order, of a fresh server."""
    tools = list(tool_schemas())
    asked = [
        (messages[:at], message)
        for _, messages in conversations(world, model)[::7]
        for at, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    random.Random(5).shuffle(asked)
    for prefix, message in asked:
        body = {"model": model, "messages": prefix, "tools": tools, "temperature": 1.0}
        again = ScriptedUpstream(0).complete(body)
        assert again["choices"][0]["message"] == message


def test_the_seed_decides_what_a_sloppy_model_drops():
    synthesis, built = made("compact")
    toolbox = Toolbox(built)
    answers = {
        seed: [
            answer_of(converse(ScriptedUpstream(seed), "scripted-sloppy", toolbox, problem.query))
            for problem in synthesis.problems
        ]
        for seed in (0, 1)
    }
    assert answers[0] != answers[1]


@pytest.mark.parametrize("first", ["scripted-hasty", "scripted-sloppy"])
def test_a_model_goes_on_from_a_conversation_that_another_began(first: str):
    synthesis, built = made("compact")
    upstream, toolbox = ScriptedUpstream(0), Toolbox(built)
    scorer = OutcomeScorer(synthesis.catalogue.products, default_encoder())
    won = 0
    for problem in synthesis.problems:
        begun = converse(upstream, first, toolbox, problem.query, steps=1)
        messages = converse(
            upstream, "scripted-careful", toolbox, problem.query, begun=begun, steps=10
        )
        won += scorer.score_answer(problem, answer_of(messages), "oro")[1]
    assert won >= 0.95 * len(synthesis.problems)


def test_call_ids_are_unique_and_count_on():
    for _, messages in conversations("compact", "scripted-careful"):
        ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        assert ids == [f"call_{n}" for n in range(1, len(ids) + 1)]


def test_careful_names_its_verdicts_and_says_why():
    told = conversations("compact", "scripted-careful")
    last = [messages for _, messages in told]
    finals = [
        next(m for m in reversed(messages) if m["role"] == "assistant")["reasoning_content"]
        for messages in last
    ]
    assert sum("rather than" in text and "because" in text for text in finals) >= 0.9 * len(finals)
    everything = " ".join(
        m["reasoning_content"] for messages in last for m in messages if m["role"] == "assistant"
    )
    assert " yes" in everything
    assert " no." in everything


def test_only_offered_tools_are_called():
    tools = list(tool_schemas(FOUR_TOOLS))
    for problem, messages in conversations("compact", "scripted-careful", tools):
        names = {c["function"]["name"] for m in messages for c in m.get("tool_calls", ())}
        assert names <= set(FOUR_TOOLS)
        if problem.kind == "voucher":
            assert answer_of(messages)


def test_a_finished_conversation_gets_no_more_calls():
    _, messages = conversations("compact", "scripted-careful")[0]
    answer = ScriptedUpstream().complete({"model": "scripted-careful", "messages": messages})
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in answer["choices"][0]["message"]


def test_usage_counts_bytes_over_four():
    body = {"model": "scripted-classifier", "messages": [{"role": "user", "content": "x" * 9}]}
    usage = ScriptedUpstream().complete(body)["usage"]
    assert usage["prompt_tokens"] == 3
    assert usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "gpt-4", "messages": [{"role": "user", "content": "hi"}]},
        {"model": "scripted-careful", "messages": []},
        {"model": "scripted-careful", "messages": "hi"},
        {"model": "scripted-careful", "messages": [{"role": "system", "content": "hi"}]},
        {"model": "scripted-careful"},
    ],
)
def test_bad_requests_are_refused(body: dict[str, Any]):
    with pytest.raises(RejectedError):
        ScriptedUpstream().complete(body)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "text", ["", "?", "hello", "x" * 5000, "\ud800 \x00", "(1) ; (2) ;", "budget 5 voucher"]
)
def test_no_request_breaks_a_model(model: str, text: str):
    messages = [{"role": "user", "content": text}]
    answer = ScriptedUpstream().complete(
        {"model": model, "messages": messages, "tools": list(tool_schemas())}
    )
    assert answer["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize("result", ["", "null", "[]", "{}", "[1,2]", '{"error":"no"}', "[{}]"])
def test_no_tool_result_breaks_a_model(result: str):
    class Broken:
        def call(self, name: str, arguments: str) -> Any:
            from palio.world.tools import ToolReply

            return ToolReply(result=result)

    problem = made("compact")[0].problems[0]
    for model in STYLES:
        messages = converse(ScriptedUpstream(), model, Broken(), problem.query)  # type: ignore[arg-type]
        assert turns_of(messages) <= 10
        assert messages[-1]["role"] == "tool"


def test_the_sub_task_models_say_what_they_are_shown():
    prompt = (
        "Request: a red acme mug\n"
        'Results: [{"product_id":"1234","title":"acme red mug","price":50},'
        '{"product_id":"5678","title":"apex blue hat","price":20}]\n'
        "Chosen: 1234\nExplain."
    )
    messages = [{"role": "user", "content": prompt}]
    told = ScriptedUpstream().complete({"model": "scripted-narrator", "messages": messages})
    thinking = told["choices"][0]["message"]["reasoning_content"]
    assert "1234" in thinking
    assert "5678" in thinking
    for title, verdict in (("acme red mug", "yes"), ("apex blue hat", "no")):
        prompt = f'Request: a red acme mug\nCandidate: {{"product_id":"1","title":"{title}"}}\n?'
        messages = [{"role": "user", "content": prompt}]
        said = ScriptedUpstream().complete({"model": "scripted-classifier", "messages": messages})
        assert said["choices"][0]["message"]["content"] == verdict
