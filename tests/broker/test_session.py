"""The record holds what happened, once, and links each call to the completion that asked for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.broker.conversation import build_messages
from palio.broker.limits import Limits
from palio.broker.refusals import RefusedError, RunOver
from palio.broker.session import Session
from palio.broker.upstream import RejectedError
from palio.records import (
    AgentRef,
    Ending,
    FaultCode,
    InferenceEvent,
    Message,
    UpstreamError,
    from_json,
    to_json,
)
from palio.records import Trajectory as Record
from tests.broker.conftest import PROBLEM, Clock, Replies, completion, tiny_world

Open = Callable[..., Session]
ASK = [{"role": "user", "content": "a red mug"}]
FIND = '{"q":"red mug"}'


def ask(session: Session, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    reply = session.complete({"model": "default", "messages": messages, **more})
    message: dict[str, Any] = reply["choices"][0]["message"]
    return message


def test_a_whole_episode(open_session: Open, clock: Clock) -> None:
    upstream = Replies(
        completion("", ("c1", "find_product", FIND), reasoning_content="look"),
        completion(
            "", ("c2", "recommend_product", '{"product_ids":"1"}'), ("c3", "terminate", "{}")
        ),
    )
    session = open_session(upstream)
    messages = list(ASK)
    messages.append(ask(session, messages, tools=[{"type": "function"}]))
    clock.now += 0.5
    reply = session.dispatch("find_product", FIND, "c1")
    messages.append({"role": "tool", "tool_call_id": "c1", "content": reply.result})
    messages.append(ask(session, messages))
    session.dispatch("recommend_product", '{"product_ids":"1"}', "c2")
    session.dispatch("terminate", "{}", "c3")
    run = session.close()

    assert [event.emitted_by for event in run.dispatches] == [0, 2, 2]
    assert [event.prefix for event in run.inferences] == [0, 2]
    assert [m.role for m in run.inferences[1].request] == ["tool"]
    roles = [message.role for message in run.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "tool"]
    assert [m.tool_call_id for m in run.messages if m.role == "tool"] == ["c1", "c2", "c3"]
    assert run.messages[2].content == reply.result
    assert (run.answer, run.ending, run.fault) == ("1", Ending.terminated, None)
    assert run.tools == ({"type": "function"},)
    assert run.events[1].at_ms == 500.0
    assert upstream.bodies[0]["model"] == "m1"
    assert upstream.bodies[0]["seed"] == 0
    assert from_json(to_json(run), Record) == run


def test_an_emitted_call_is_used_up(open_session: Open) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))))
    ask(session, ASK)
    session.dispatch("find_product", FIND, "c1")
    session.dispatch("find_product", FIND, "c1")
    session.dispatch("find_product", FIND)
    run = session.close()
    assert [event.emitted_by for event in run.dispatches] == [0, None, None]
    assert sum(message.role == "tool" for message in run.messages) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "call_id", "linked"),
    [
        ("find_product", FIND, "c1", True),
        ("find_product", FIND, "", True),
        ("find_product", '{ "query": "red mug", "page": 1 }', "", True),
        ("find_product", {"q": "red mug", "page": "1"}, "c1", True),
        ("find_product", '{"q":"blue mug"}', "c1", False),
        ("find_product", FIND, "other", False),
        ("view_product_information", FIND, "c1", False),
    ],
)
def test_linking_needs_id_tool_and_arguments(
    open_session: Open, tool: str, arguments: Any, call_id: str, linked: bool
) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))))
    ask(session, ASK)
    session.dispatch(tool, arguments, call_id)
    assert session.close().dispatches[0].emitted_by == (0 if linked else None)


def test_a_call_before_its_completion_is_the_harness_s(open_session: Open) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))))
    session.dispatch("find_product", FIND, "c1")
    ask(session, ASK)
    assert session.close().dispatches[0].emitted_by is None


def test_without_an_id_the_earliest_open_call_is_taken(open_session: Open) -> None:
    session = open_session(Replies(completion("", ("c", "find_product", FIND))))
    ask(session, ASK)
    ask(session, ASK)
    for _ in range(3):
        session.dispatch("find_product", FIND)
    run = session.close()
    assert [event.emitted_by for event in run.dispatches] == [0, 1, None]
    ids = [call.id for message in run.messages for call in message.tool_calls]
    assert ids == ["c", "c-2"]
    assert [m.tool_call_id for m in run.messages if m.role == "tool"] == ["c", "c-2"]


def test_calls_in_tags_are_linked_and_made_structured(open_session: Open) -> None:
    asked = f'{{"name":"find_product","arguments":{FIND}}}'
    text = f"<think>look</think>\n<tool_call>\n{asked}\n</tool_call>"
    session = open_session(Replies(completion(text)))
    ask(session, ASK)
    session.dispatch("find_product", FIND, "an-id-of-the-harness")
    run = session.close()
    assert run.dispatches[0].emitted_by == 0
    assert run.inferences[0].completion == Message(role="assistant", content=text)
    said = run.messages[1]
    assert (said.reasoning_content, said.content) == ("look", "")
    assert said.tool_calls[0].function.arguments == FIND
    assert run.messages[2].tool_call_id == said.tool_calls[0].id == "call-0-0"


def test_a_folded_chat_keeps_only_the_first_request(open_session: Open) -> None:
    session = open_session(Replies(completion("one"), completion("two")))
    system = {"role": "system", "content": "shop"}
    ask(session, [system, {"role": "user", "content": "q"}])
    ask(session, [system, {"role": "user", "content": "q, and so far: one"}])
    run = session.close()
    assert [m.content for m in run.messages] == ["shop", "q", "one", "two"]
    assert run.inferences[1].prefix == 1


def test_a_nudge_in_a_growing_chat_is_kept(open_session: Open) -> None:
    session = open_session(Replies(completion("one"), completion("two")))
    said = ask(session, ASK)
    ask(session, [*ASK, said, {"role": "user", "content": "go on"}])
    assert [m.content for m in session.close().messages] == ["a red mug", "one", "go on", "two"]


def test_changed_history_does_not_change_the_record(open_session: Open) -> None:
    session = open_session(Replies(completion("one"), completion("two")))
    messages = [dict(ASK[0])]
    ask(session, messages)
    messages[0]["content"] += " or a blue one"
    ask(session, messages)
    first, second = session.close().inferences
    assert first.request[0].content == "a red mug"
    assert (second.prefix, second.request[0].content) == (0, "a red mug or a blue one")


def test_thinking_written_after_the_fact_stays_marked() -> None:
    said = Message(role="assistant", content="x", reasoning_content="y", rationalised=True)
    event = InferenceEvent(
        seq=0, at_ms=0, duration_ms=0, prefix=0, request=(Message(role="user"),), completion=said
    )
    assert build_messages("q", [event])[1] == said


def test_an_agent_without_a_model_has_the_query_as_messages(open_session: Open) -> None:
    assert open_session().close().messages == (Message(role="user", content="a red mug"),)


def test_call_budget_is_an_observation_and_a_fault(open_session: Open) -> None:
    session = open_session(limits=Limits(calls=2))
    replies = [session.dispatch("find_product", {"q": "mug"}) for _ in range(50)]
    assert [bool(reply.error) for reply in replies[:3]] == [False, False, True]
    assert json.loads(replies[2].result)["error"].startswith("budget exhausted")
    run = session.close()
    assert len(run.dispatches) < 10
    assert run.dispatches[2].fault is not None
    assert run.fault is not None
    assert run.fault.code == FaultCode.agent_budget_exhausted


def test_an_answer_within_budget_stands(open_session: Open) -> None:
    session = open_session(limits=Limits(calls=1))
    session.dispatch("recommend_product", {"product_ids": ["1"]})
    session.dispatch("find_product", {"q": "mug"})
    run = session.close()
    assert (run.answer, run.fault) == (["1"], None)


@pytest.mark.parametrize(
    "limits", [Limits(inferences=1), Limits(tokens=1), Limits(bytes=60)], ids=str
)
def test_inference_budgets(open_session: Open, limits: Limits) -> None:
    session = open_session(Replies(completion("a long enough answer")), limits=limits)
    ask(session, ASK)
    with pytest.raises(RefusedError, match="budget exhausted"):
        ask(session, [{"role": "user", "content": "another question altogether"}])
    assert session.close().fault is not None


def test_nothing_happens_after_the_deadline(open_session: Open, clock: Clock) -> None:
    session = open_session(Replies(completion("x")), limits=Limits(seconds=10))
    clock.now += 10.5
    with pytest.raises(RunOver):
        session.dispatch("find_product", FIND)
    with pytest.raises(RunOver):
        ask(session, ASK)
    assert session.close(Ending.timed_out).events == ()
    assert not isinstance(RunOver(), Exception)


def test_terminate_ends_the_calls(open_session: Open) -> None:
    session = open_session()
    session.dispatch("recommend_product", {"product_ids": "1"})
    session.dispatch("terminate", {})
    assert session.dispatch("recommend_product", {"product_ids": "2"}).error
    assert session.close().answer == "1"


def test_the_last_recommendation_counts_as_given(open_session: Open) -> None:
    session = open_session()
    session.dispatch("recommend_product", '{"product_id": " 1 ,2"}')
    assert session.dispatch("recommend_product", "{not json").error
    assert session.close().answer == " 1 ,2"


def test_a_bug_of_the_world_is_not_charged_to_the_agent(
    open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session()
    monkeypatch.setattr(session._toolbox, "call", lambda *_: 1 / 0)
    assert session.dispatch("find_product", FIND).error
    run = session.close()
    assert run.ending is Ending.infra
    assert run.fault is not None
    assert run.fault.code == FaultCode.catalogue_unavailable


DOWN = UpstreamError("down", code=FaultCode.upstream_unreachable)


def test_a_failed_inference_without_an_answer_is_infra(open_session: Open) -> None:
    session = open_session(Replies(DOWN))
    with pytest.raises(UpstreamError):
        ask(session, ASK)
    run = session.close()
    assert (run.ending, run.fault and run.fault.code) == (Ending.infra, 3001)
    assert run.inferences[0].completion is None


def test_a_failed_inference_then_a_crash_is_infra(open_session: Open) -> None:
    session = open_session(Replies(DOWN))
    with pytest.raises(UpstreamError):
        ask(session, ASK)
    assert session.close(Ending.crashed).ending is Ending.infra


def test_a_run_that_overcame_the_failure_is_scored(open_session: Open) -> None:
    session = open_session(Replies(DOWN))
    with pytest.raises(UpstreamError):
        ask(session, ASK)
    session.dispatch("recommend_product", {"product_ids": "1"})
    session.dispatch("terminate", {})
    run = session.close()
    assert (run.ending, run.fault) == (Ending.terminated, None)


def test_a_rejected_request_is_the_agent_s(open_session: Open) -> None:
    session = open_session(Replies(RejectedError("too long")))
    with pytest.raises(RejectedError):
        ask(session, ASK)
    run = session.close()
    assert (run.ending, run.inferences[0].finish_reason) == (Ending.returned, "rejected")


def test_a_bug_of_the_upstream_is_the_platform_s(open_session: Open) -> None:
    session = open_session(Replies(ZeroDivisionError("oops")))
    with pytest.raises(UpstreamError, match="ZeroDivisionError"):
        ask(session, ASK)
    assert session.close().ending is Ending.infra


@pytest.mark.parametrize("waited", [1.0, 6.0])
def test_a_reply_that_never_came(open_session: Open, clock: Clock, waited: float) -> None:
    session = open_session(Replies(completion("x")), limits=Limits(seconds=10))
    clock.now += 10 - waited
    session.begin_inference({"messages": ASK})
    clock.now += waited
    run = session.close(Ending.timed_out)
    assert run.inferences[0].finish_reason == "pending"
    assert run.ending is (Ending.infra if waited > 5 else Ending.timed_out)


@pytest.mark.parametrize(
    "body",
    [
        None, [], "x", {}, {"messages": None}, {"messages": []}, {"messages": [1]},
        {"messages": [{"role": "wizard"}]}, {"messages": [{"role": ["user"]}]},
        {"messages": ASK, "n": 3},
        {"messages": [{"role": "assistant", "tool_calls": [1]}]},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_chat_request_is_refused(open_session: Open, body: Any) -> None:
    session = open_session(Replies(completion("x")))
    with pytest.raises(RefusedError):
        session.complete(body)
    assert session.close().events == ()


def test_dirty_text_becomes_clean(open_session: Open) -> None:
    session = open_session(Replies(completion("nul \x00 and \ud800")))
    ask(session, [{"role": "user", "content": "\ud800\x00"}])
    session.dispatch("find_product", '{"q":"\ud800\x00"}', "\x00")
    written = to_json(session.close())
    assert b"\\u0000" not in written
    assert from_json(written, Record).inferences[0].completion is not None


@pytest.mark.parametrize(
    ("sent", "text"), [({"q": "mug"}, '{"q":"mug"}'), (None, "{}"), ('{"q":', '{"q":')]
)
def test_agents_get_arguments_as_text(open_session: Open, sent: Any, text: str) -> None:
    calls = (("c1", "find_product", sent), ("c2", "find_product", "{}"))
    session = open_session(Replies(completion(None, *calls)))
    answer = session.complete({"messages": [{"role": "user", "content": "a mug"}]})
    got = answer["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in got] == [text, "{}"]
    assert all(call["id"].startswith("call_0-") for call in got)
    session.dispatch("find_product", text, got[0]["id"])
    made = session.close().dispatches[0]
    assert (made.emitted_by, made.call_id, made.nonce) == (0, "c1", "valid")


def test_step_limit_needs_all_turns(open_session: Open, world: Any) -> None:
    session = open_session(Replies(completion("x")))
    for _ in range(world.config.max_steps):
        ask(session, ASK)
    assert session.close().ending is Ending.step_limit


def test_a_closed_session_stays_closed(open_session: Open) -> None:
    session = open_session(Replies(completion("x")))
    run = session.close()
    assert session.close(Ending.crashed) is run
    with pytest.raises(RunOver):
        session.dispatch("find_product", FIND)


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5), max_size=6))
def test_requests_can_be_rebuilt_from_their_new_parts(requests: list[list[str]]) -> None:
    session = Session(AgentRef(name="a"), PROBLEM, tiny_world(), Replies(completion("a")))
    for texts in requests:
        ask(session, [{"role": "user", "content": text} for text in texts])
    history: list[Message] = []
    for event, texts in zip(session.close().inferences, requests, strict=True):
        history = [*history[: event.prefix], *event.request]
        assert [message.content for message in history] == texts
        assert event.completion is not None
        history.append(event.completion)


def test_no_completion_after_the_end(open_session: Open) -> None:
    upstream = Replies(completion("1 is best, for these reasons"))
    session = open_session(upstream)
    session.dispatch("terminate", {})
    with pytest.raises(RefusedError, match="terminated"):
        session.complete({"messages": [{"role": "user", "content": "why?"}]})
    assert upstream.bodies == []
    run = session.close()
    assert (run.inferences, run.fault) == ((), None)
