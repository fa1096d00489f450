"""read(write(t)) == t on what the formats share, and the loss list names exactly the rest."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from palio.corpus.readers.atif import read_atif
from palio.corpus.readers.chat import read_chat, read_pair
from palio.corpus.readers.detect import read_record
from palio.corpus.writers.atif import atif_document
from palio.corpus.writers.exactness import OF_THE_READING, differences
from palio.corpus.writers.hugging_face import chat_row, kto_row
from palio.corpus.writers.steps import conversation_of, step_rows
from palio.records import AgentRef, Fault, Message, Trajectory, Usage, to_json
from tests.corpus.making import PROBLEMS, good_turns, made_trajectory
from tests.writers.making import trajectories

AtifTrajectory = pytest.importorskip("atif").Trajectory


def through_json(row: Any) -> Any:
    return json.loads(to_json(row))


def same(back: Trajectory, wrote: Trajectory) -> bool:
    said = {name: getattr(wrote, name) for name in OF_THE_READING}
    return msgspec.structs.replace(back, **said) == wrote


@settings(deadline=None)
@given(trajectories())
def test_chat_rows_nested_and_flat(wrote: Trajectory) -> None:
    for tools in ("nested", "flat"):
        (row,), losses = chat_row(wrote, tools=tools)
        back, lost = read_chat(through_json(row), "test")
        assert (losses, lost) == ((), ())
        assert same(back, wrote)


@settings(deadline=None)
@given(trajectories())
def test_arguments_as_objects_lose_only_their_spelling(wrote: Trajectory) -> None:
    (row,), losses = chat_row(wrote, arguments="object")
    back = read_chat(through_json(row), "test").trajectory

    def meaning(messages: tuple[Message, ...]) -> list[Any]:
        return [
            (c.function.name, msgspec.json.decode(c.function.arguments))
            for m in messages
            for c in m.tool_calls
            if c.function.arguments.startswith("{") and c.function.arguments != "{broken"
        ]

    assert meaning(back.messages) == meaning(wrote.messages)
    assert same(back, wrote) == (losses == ())
    fields = {loss.where.rpartition(".")[2] for loss in losses}
    assert fields <= {"tool_calls", "completion", "arguments", "request"}


@settings(deadline=None)
@given(trajectories())
def test_kto_rows(wrote: Trajectory) -> None:
    rows, losses = kto_row(wrote, label=False)
    if not any(m.role == "assistant" for m in wrote.messages):
        assert (rows, [loss.code for loss in losses]) == ((), ["no_completion"])
        return
    row = through_json(rows[0])
    assert row["label"] is False
    assert {m["role"] for m in row["prompt"]} <= {"system", "user"}
    assert row["completion"][0]["role"] == "assistant"
    back = read_pair(row, "test").trajectory
    assert losses == ()
    assert same(back, wrote)


@settings(deadline=None)
@given(trajectories())
def test_step_rows_hold_every_call_once(wrote: Trajectory) -> None:
    rows, losses = step_rows(wrote)
    calling = [m for m in wrote.messages if m.tool_calls]
    assert [row["step"] for row in rows] == list(range(len(calling)))
    named = [[c["name"] for c in json.loads(row["teacher_calls"])] for row in rows]
    assert named == [[c.function.name for c in m.tool_calls] for m in calling]
    if not rows:
        assert [loss.code for loss in losses] == ["no_call"]
        return
    kept = len(conversation_of(rows[-1]))
    missing = [f"messages[{at}]" for at in range(kept, len(wrote.messages))]
    assert [loss.where for loss in losses if loss.where.startswith("messages")] == missing
    prefix = read_chat({"messages": conversation_of(through_json(rows[-1]))}, "test").trajectory
    assert prefix.messages == wrote.messages[:kept]


@settings(deadline=None)
@given(trajectories())
def test_atif_documents_are_valid_and_whole(wrote: Trajectory) -> None:
    (document,), losses = atif_document(wrote)
    plain = through_json(document)
    valid = AtifTrajectory.model_validate(plain)
    assert valid.schema_version == "ATIF-v1.7"
    assert len(valid.steps) == sum(m.role != "tool" for m in wrote.messages)
    (back, lost), *rest = read_atif(plain, "test")
    assert (losses, lost, rest) == ((), (), [])
    assert same(back, wrote)
    assert [name for name, _ in read_record(plain, "test")] == ["atif"]


def test_a_run_of_the_host_keeps_in_atif_what_chat_rows_lose() -> None:
    run = made_trajectory(
        "t",
        PROBLEMS[0],
        agent="careful",
        seed=7,
        attempt=2,
        suite_id="s",
        catalogue="compact-1",
        duration_s=1.5,
        fault=Fault(code=1006, what="spent"),
        differences=("one",),
        tool_version="0.1",
    )
    run = msgspec.structs.replace(
        run, agent=AgentRef(name="careful", version="3", kind="agentic", digest="d", model="m")
    )
    (_,), lost = chat_row(run)
    events = {loss.where for loss in lost if loss.where.startswith("events")}
    assert events == {"events"}  # the host saw a call that the messages leave unanswered
    assert {loss.where for loss in lost} - events == {
        *("agent.version", "agent.kind", "agent.digest", "suite_id", "catalogue", "seed"),
        *("attempt", "duration_s", "fault", "differences", "tool_version"),
    }
    (document,), lost = atif_document(run)
    AtifTrajectory.model_validate(through_json(document))
    assert [loss.where for loss in lost] == ["events"]


def test_harness_calls_are_steps_without_an_inference() -> None:
    run = made_trajectory("t", PROBLEMS[0], emitted=False)
    (document,), losses = atif_document(run)
    valid = AtifTrajectory.model_validate(through_json(document))
    counts = [step.llm_call_count for step in valid.steps if step.tool_calls]
    assert counts == [0] * 4
    back = read_atif(document, "test")[0].trajectory
    assert [d.emitted_by for d in back.dispatches] == [None] * 4
    assert [d.tool for d in back.dispatches] == [d.tool for d in run.dispatches]
    assert [d.result for d in back.dispatches] == [d.result for d in run.dispatches]
    assert "messages" in {loss.where for loss in losses}


def test_usage_parameters_and_marks_survive_atif() -> None:
    run = made_trajectory("t", PROBLEMS[0], good_turns("1")[:3])
    events = list(run.events)
    events[0] = msgspec.structs.replace(
        run.inferences[0],
        usage=Usage(prompt_tokens=5, completion_tokens=6),
        params={"model": "big", "reasoning_effort": "low", "temperature": 0},
    )
    messages = list(run.messages)
    messages[1] = msgspec.structs.replace(messages[1], rationalised=True, name="teacher")
    run = msgspec.structs.replace(run, events=tuple(events), messages=tuple(messages))
    (document,), losses = atif_document(run)
    step = AtifTrajectory.model_validate(through_json(document)).steps[1]
    assert step.metrics is not None
    assert (step.metrics.completion_tokens, step.model_name) == (6, "big")
    back = read_atif(document, "test")[0].trajectory
    assert back.messages == run.messages
    assert back.inferences[0].usage == run.inferences[0].usage
    assert {loss.where for loss in losses} == {
        *("events.at_ms", "events.duration_ms", "events.prefix", "events.request"),
        *("events.call_id", "events.completion"),
        "events.params",  # the temperature
    }
    (_,), lost = chat_row(run)
    assert "messages[1].rationalised" in {loss.where for loss in lost}


def test_a_trajectory_without_messages_has_no_document() -> None:
    run = msgspec.structs.replace(made_trajectory("t", PROBLEMS[0]), messages=())
    for written in (atif_document(run), kto_row(run, label=True), step_rows(run)):
        assert written.rows == ()
        assert len(written.losses) == 1


def test_differences_are_named_by_field() -> None:
    run = made_trajectory("t", PROBLEMS[0])
    other = msgspec.structs.replace(
        run, agent=AgentRef(name="b"), messages=run.messages[:-1], seed=1, source="elsewhere"
    )
    assert [loss.where for loss in differences(run, other)] == ["agent.name", "messages", "seed"]
    assert differences(run, run) == ()
