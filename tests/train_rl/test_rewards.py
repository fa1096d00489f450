"""A step earns what an equivalent step of the teacher earns; cheap and wrong earns nothing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.agents.scripted import ScriptedUpstream
from palio.broker.upstream import RejectedError
from palio.judging.format import step_reward
from palio.judging.outcome import OutcomeScorer
from palio.records import Ending, FunctionCall, Message, OutcomeVerdict, ToolCall, UpstreamError
from palio.train.rl.audit import audit_of
from palio.train.rl.rewards import (
    TeacherPolicy,
    equivalent,
    on_policy_credits,
    outcome_reward,
    prefix_reward,
    step_credit,
    upstream_text,
)
from palio.world.tools import Toolbox
from tests.train_rl.conftest import Scene


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="c", function=FunctionCall(name=name, arguments=json.dumps(arguments)))


@pytest.fixture(scope="module")
def toolbox(scene: Scene) -> Toolbox:
    [world] = scene.ground.worlds.values()
    return Toolbox(world)


def test_calls_that_say_the_same_are_equivalent() -> None:
    find, view = "find_product", "view_product_information"
    assert equivalent(call(find, q="red jar", page=1), call(find, query="red jar"))
    assert equivalent(call(view, product_ids="1,2"), call(view, product_ids=["1", "2"]))
    assert not equivalent(call(find, q="red jar"), call(find, q="red jars"))
    assert not equivalent(call(find, q="1"), call(view, product_ids="1"))


def test_calls_that_find_the_same_are_equivalent(scene: Scene, toolbox: Toolbox) -> None:
    title = scene.ground.problems[0].rewards[0].title[0]
    one, turned = call("find_product", q=title), call("find_product", q=title.upper())
    assert not equivalent(one, turned)
    assert equivalent(one, turned, toolbox)
    nothing = call("find_product", q="zzzz qqqq"), call("find_product", q="qqqq vvvv")
    assert toolbox.call("find_product", nothing[0].function.arguments).result == "[]"
    assert not equivalent(*nothing, toolbox), "two searches that find nothing are not the same"


def test_answers_are_compared_by_what_they_say(toolbox: Toolbox) -> None:
    ids = [call("recommend_product", product_ids=one) for one in ("1", "2")]
    assert not equivalent(*ids, toolbox)
    broken = ToolCall(id="c", function=FunctionCall(name="find_product", arguments="{"))
    assert not equivalent(broken, broken, toolbox), "what cannot be read earns nothing"


def test_credit_is_matched_over_the_longer_turn() -> None:
    end, answer = call("terminate", status="success"), call("recommend_product", product_ids="1")
    assert step_credit([answer, end], [answer, end]) == 1.0
    assert step_credit([answer], [answer, end]) == 0.5
    assert step_credit([end, end], [answer, end]) == 0.5, "each call matches once"
    assert step_credit([], [end]) == step_credit([end], []) == step_credit([], []) == 0.0


def test_the_teacher_earns_full_credit_on_its_own_history(scene: Scene, toolbox: Toolbox) -> None:
    for talk in scene.talks[:10]:
        earned = on_policy_credits(talk, scene.teacher, toolbox)
        turns = sum(message.role == "assistant" for message in talk.messages)
        assert earned.earned == (1.0,) * turns
        assert earned.fault is None


def test_another_history_is_asked_about_as_it_is(scene: Scene, toolbox: Toolbox) -> None:
    """A wasted first step earns nothing, and the teacher then goes on from where the student is."""
    talk = scene.talks[0]
    wasted = Message(
        role="assistant", content="", tool_calls=(call("find_product", q="something else"),)
    )
    found = Message(role="tool", content="[]", tool_call_id="c")
    messages = (talk.messages[0], wasted, found, *talk.messages[1:])
    earned = on_policy_credits(
        msgspec.structs.replace(talk, messages=messages), scene.teacher, toolbox
    ).earned
    assert earned[0] == 0.0
    assert set(earned[1:]) == {1.0}


def test_stopping_at_once_earns_nothing(scene: Scene, toolbox: Toolbox) -> None:
    talk = scene.talks[0]
    quit_ = Message(role="assistant", tool_calls=(call("terminate", status="success"),))
    idle = Message(role="assistant", content="done")
    for lazy in (quit_, idle):
        cheap = msgspec.structs.replace(talk, messages=(talk.messages[0], lazy))
        assert on_policy_credits(cheap, scene.teacher, toolbox).earned == (0.0,)


def test_a_teacher_that_answers_garbage_is_an_upstream_error(scene: Scene) -> None:
    class Broken:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            return {"choices": [{"message": {"tool_calls": [{"id": 3}]}}]}

    with pytest.raises(UpstreamError, match="no completion") as caught:
        TeacherPolicy(Broken(), "m", where="http://t").next_calls(scene.talks[0].messages[:1], ())
    assert caught.value.where == "http://t"


# ---- ids that nothing has shown

VIEW = "view_product_information"


@pytest.fixture(scope="module")
def history(scene: Scene) -> tuple[Message, ...]:
    """A request and the results of a search for it."""
    talk = scene.talks[0]
    at = next(at for at, message in enumerate(talk.messages) if message.role == "tool")
    return talk.messages[: at + 1]


@pytest.fixture(scope="module")
def seen(history: tuple[Message, ...]) -> list[str]:
    rows = json.loads((history[-1].content or "").split("\n", 1)[0])
    assert len(rows) > 1
    return [row["product_id"] for row in rows]


def plain_calls(seen: list[str]) -> list[tuple[str, dict[str, Any]]]:
    voucher = {"voucher_type": "fixed", "discount_value": 5, "threshold": 1, "budget": 900}
    return [
        ("find_product", {"q": "red"}),
        (VIEW, {"product_ids": ",".join(seen[:2])}),
        ("recommend_product", {"product_ids": seen[0]}),
        ("terminate", {"status": "success"}),
        ("calculate_voucher", {"product_prices": "100,50", **voucher}),
        ("check_product_match", {"product_id": seen[0], "price": "1-9"}),
        ("find_products_in_same_shop", {"product_id": seen[0], "page": 1}),
    ]


def test_invented_ids_beside_the_right_one_earn_nothing(
    toolbox: Toolbox, history: tuple[Message, ...], seen: list[str]
) -> None:
    """The tool leaves them out with a warning, and its result is that of the teacher's call."""
    right = call(VIEW, product_ids=seen[0])
    padded = call(VIEW, product_ids=",".join([seen[0], *(str(888000000 + i) for i in range(42))]))
    results = [toolbox.call(VIEW, one.function.arguments).result for one in (right, padded)]
    assert results[0] == results[1]
    assert step_credit([right], [right], toolbox, history=history) == 1.0
    assert step_credit([padded], [right], toolbox, history=history) == 0.0
    assert step_credit([padded], [right], toolbox) == step_credit([padded], [right]) == 0.0
    assert step_credit([right], [padded], toolbox, history=history) == 0.0


@given(
    st.lists(st.integers(10**9, 10**12).map(str), min_size=1, max_size=3),
    st.sampled_from(
        ["product_ids", "product_id", "shop_id", "id", "item_ids", "shopIds", "sku-ID"]
    ),
    st.integers(0, 6),
    st.booleans(),
)
def test_whatever_names_an_invented_id_is_another_call(
    toolbox: Toolbox,
    history: tuple[Message, ...],
    seen: list[str],
    ids: list[str],
    name: str,
    which: int,
    listed: bool,
) -> None:
    """Under any name of an id, of any tool, beside what the teacher says."""
    tool, given_ = plain_calls(seen)[which]
    assert equivalent(call(tool, **given_), call(tool, **given_), toolbox, history=history)
    more: Any = ids if listed else ",".join(ids)
    if name in given_:
        more = [given_[name], *ids] if listed else f"{given_[name]},{more}"
    pair = call(tool, **{**given_, name: more}), call(tool, **given_)
    assert not equivalent(*pair, toolbox, history=history)
    assert not equivalent(pair[1], pair[0], toolbox, history=history)


def test_an_id_that_a_tool_does_not_look_at_is_read_all_the_same(
    toolbox: Toolbox, history: tuple[Message, ...], seen: list[str]
) -> None:
    right = call(VIEW, product_ids=seen[0])
    twice = f'{{"product_ids":"999999991","product_ids":"{seen[0]}"}}'
    for text in (twice, json.dumps(twice), f'{{"arguments":{twice}}}'):
        hidden = ToolCall(id="c", function=FunctionCall(name=VIEW, arguments=text))
        assert toolbox.call(VIEW, text) == toolbox.call(VIEW, right.function.arguments)
        assert not equivalent(hidden, right, toolbox, history=history)
    alias = call(VIEW, product_ids=seen[0], product_id=["999999991"])
    assert not equivalent(alias, right, toolbox, history=history)


def test_ids_of_the_world_count_once_they_were_shown(
    toolbox: Toolbox, history: tuple[Message, ...], seen: list[str]
) -> None:
    """What differs in ids alone and finds the same is the same only with ids of the history."""
    unseen = sorted(set(toolbox.world.catalogue.products) - set(seen))[0]
    assert unseen not in (history[0].content or "") + (history[1].content or "")
    right = call("find_product", q="red")
    for one, same in ((seen[-1], True), (unseen, False)):
        noted = call("find_product", q="red", product_ids=one)
        assert equivalent(noted, right, toolbox, history=history) is same
        assert equivalent(noted, right, toolbox), "where no history is given the world decides"
    asked = Message(role="user", content=f"is {unseen} in stock?")
    noted = call("find_product", q="red", product_ids=unseen)
    assert equivalent(noted, right, toolbox, history=[asked])
    assert not equivalent(
        noted, right, toolbox, history=[Message(role="user", content=f"{unseen}0")]
    )
    answer = Message(role="tool", content=f'{{"recommended":["{unseen}"]}}', tool_call_id="c")
    assert not equivalent(noted, right, toolbox, history=[*history, answer]), (
        "its own word shows nothing"
    )


def test_a_longer_a_repeated_or_a_turned_list_is_another_list(
    toolbox: Toolbox, history: tuple[Message, ...], seen: list[str]
) -> None:
    right = ",".join(seen[:2])
    for other in (",".join(seen[:3]), seen[0], f"{right},{seen[1]}", f"{seen[1]},{seen[0]}"):
        assert not equivalent(
            call(VIEW, product_ids=other), call(VIEW, product_ids=right), toolbox, history=history
        )
    many = ",".join([seen[0]] * 100)
    longer = [call(VIEW, product_ids=text) for text in (many, f"{many},{seen[1]}")]
    results = {toolbox.call(VIEW, one.function.arguments).result for one in longer}
    assert len(results) == 1, "a tool looks at a hundred"
    assert not equivalent(longer[0], longer[1], toolbox, history=history)


def test_a_rollout_is_held_to_what_it_had_been_shown_by_then(
    scene: Scene, toolbox: Toolbox, history: tuple[Message, ...], seen: list[str]
) -> None:
    """A guess before the first result is none after it; the teacher says the same both times."""
    right = call("find_product", q="red")

    class Same:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            del body
            return {"choices": [{"message": {"tool_calls": [msgspec.to_builtins(right)]}}]}

    noted = call("find_product", q="red", product_ids=seen[0])
    turn = Message(role="assistant", tool_calls=(noted,))
    talk = msgspec.structs.replace(scene.talks[0], messages=(history[0], turn, history[-1], turn))
    assert on_policy_credits(talk, TeacherPolicy(Same(), "m"), toolbox).earned == (0.0, 1.0)


@pytest.mark.parametrize("refused", [False, True])
def test_a_teacher_that_does_not_answer_earns_the_student_no_zero(
    scene: Scene, toolbox: Toolbox, refused: bool
) -> None:
    """What was answered before keeps its credit, a turn without a call is worth 0 in any case."""

    class Failing:
        asked = 0

        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            self.asked += 1
            if self.asked == 2:
                raise RejectedError("too long") if refused else UpstreamError("down", code=3001)
            return ScriptedUpstream(0).complete(body)

    talk = next(each for each in scene.talks if len(each.messages) > 5)
    idle = Message(role="assistant", content="done")
    longer = msgspec.structs.replace(talk, messages=(*talk.messages, idle))
    upstream = Failing()
    found = on_policy_credits(longer, TeacherPolicy(upstream, "scripted-careful"), toolbox)
    turns = sum(message.role == "assistant" for message in talk.messages)
    assert turns > 2
    assert found.earned == (1.0, *[None] * (turns - 1), 0.0)
    assert found.asked == turns
    assert found.fault is not None
    assert upstream.asked == 2, "nor is it asked again about this rollout"


# ---- the formula of ShoppingBench

TEACHER = Message(
    role="assistant",
    reasoning_content="search",
    tool_calls=(call("find_product", q="red wool jar", page=2),),
)


@pytest.mark.parametrize(
    ("written", "correctness"),
    [
        ([call("find_product", q="red wool jar", page=2)], 3.0),
        # names 1, keys 1/2, q 1 of L = 1 + 1 + 2: 6 * 2.5 / 4 - 3
        ([call("find_product", q="red wool jar")], 0.75),
        # names 1, keys 1, q 2/3, page 0: 6 * (8/3) / 4 - 3
        ([call("find_product", q="red jar", page=1)], 1.0),
        ([call("view_product_information", product_ids="1")], -3.0),
    ],
)
def test_prefix_reward_is_the_formula(written: list[ToolCall], correctness: float) -> None:
    step = Message(role="assistant", reasoning_content="x", tool_calls=tuple(written))
    assert prefix_reward(step, TEACHER) == pytest.approx(1.0 + correctness)


def test_a_step_without_a_readable_call_scores_worst() -> None:
    assert prefix_reward(Message(role="assistant", content="no call"), TEACHER) == -3.0
    torn = Message(role="assistant", content='<tool_call>\n{"name": "find_product", "arg')
    assert prefix_reward(torn, TEACHER) == -3.0
    said = Message(role="assistant", reasoning_content="x", content="no call")
    assert prefix_reward(said, TEACHER) == -2.0, "well formed, and wrong"


@pytest.mark.parametrize(
    "content", ["<think>again</think>", "<think>plan", "a <think> b</think><think>c</think>"]
)
def test_a_call_beside_a_second_thought_is_scored_as_the_call_that_it_is(content: str) -> None:
    """Its form is not what upstream wants, what it calls is right; a teacher's is no other call."""
    made = call("find_product", q="red wool jar", page=2)
    for thought in ("x", None):
        step = Message(
            role="assistant", reasoning_content=thought, content=content, tool_calls=(made,)
        )
        assert prefix_reward(step, TEACHER) in (3.0, 4.0)
    wrong = msgspec.structs.replace(step, tool_calls=(call("recommend_product", q="1"),))
    assert prefix_reward(wrong, TEACHER) < 0
    assert prefix_reward(wrong, step) < prefix_reward(step, step)


def test_the_text_is_what_the_upstream_scorer_reads(scene: Scene) -> None:
    for talk in scene.talks[:10]:
        for message in talk.messages:
            if message.role == "assistant":
                text = upstream_text(message)
                assert step_reward(text, text) == (1.0, 3.0)


# ---- outcome and audit


def test_wrong_but_cheap_earns_nothing(scene: Scene) -> None:
    problem, talk = scene.ground.problems[0], scene.talks[0]
    [world] = scene.ground.worlds.values()
    scorer = OutcomeScorer(world.catalogue.products, scene.ground.encoder)
    right = scorer.verdict(problem, talk, "strict")
    assert right.success
    assert outcome_reward(right, turns=4) == 1.0
    assert outcome_reward(right, turns=4, brevity=0.2) == pytest.approx(1.05)
    wrong = next(one for one in world.catalogue.products if one != problem.rewards[0].product_id)
    cheap = msgspec.structs.replace(talk, answer=wrong)
    for turns in (1, 10):
        verdict = scorer.verdict(problem, cheap, "strict")
        assert outcome_reward(verdict, turns=turns, brevity=1.0) == 0.0


def test_what_infrastructure_broke_is_no_failure(scene: Scene) -> None:
    problem, talk = scene.ground.problems[0], scene.talks[0]
    [world] = scene.ground.worlds.values()
    broken = msgspec.structs.replace(talk, ending=Ending.infra)
    scorer = OutcomeScorer(world.catalogue.products, scene.ground.encoder)
    verdict: OutcomeVerdict = scorer.verdict(problem, broken, "strict")
    assert outcome_reward(verdict, turns=3) is None


def test_audit_counts_what_a_cheat_would_do(scene: Scene) -> None:
    honest = audit_of(scene.talks[0], wanted=1)
    assert (honest.invented_ids, honest.long_lists, honest.blind_end) == (0, 0, False)
    assert honest.terminated
    assert honest.repeats == honest.errors == honest.no_call == 0
    first = scene.talks[0].dispatches[0]
    blind = msgspec.structs.replace(
        first,
        tool="recommend_product",
        arguments='{"product_ids":"91,92,93"}',
        result='{"recommended":["91","92","93"]}',
    )
    cheat = msgspec.structs.replace(scene.talks[0], events=(blind, blind))
    found = audit_of(cheat, wanted=1, cut=2)
    assert (found.invented_ids, found.named_ids, found.long_lists) == (3, 3, 2)
    assert (found.blind_end, found.repeats, found.cut) == (True, 1, 2)
