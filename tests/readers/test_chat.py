"""Foreign chat rows keep every call, argument and result, and list exactly what was changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.broker.conversation import build_messages
from palio.corpus.build import build
from palio.corpus.config import CorpusConfig
from palio.corpus.conversation import orphan_calls, orphan_results
from palio.corpus.readers.chat import read_chat
from palio.corpus.readers.losses import UnreadableError
from palio.corpus.readers.record import events_of
from palio.corpus.reading import TraceReader
from palio.corpus.rows import row_of
from palio.judging import richness_verdict
from palio.records import to_json
from palio.rollout.verdicts import Panel, judge_all
from tests.corpus.making import PROBLEMS, good_turns, made_trajectory


def call(name: str = "find_product", arguments: Any = '{"q":"mug"}', **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def read(*messages: dict[str, Any], **row: Any) -> Any:
    return read_chat({"messages": [{"role": "user", "content": "a mug"}, *messages], **row}, "test")


def codes(imported: Any) -> list[str]:
    return [loss.code for loss in imported.losses]


@given(
    st.lists(st.sampled_from(good_turns("1000")), max_size=5),
    st.sampled_from(["c", "call_"]),
)
def test_what_palio_writes_is_read_back_without_loss(turns: Any, prefix: str) -> None:
    wrote = made_trajectory("t", PROBLEMS[0], turns, prefix=prefix)
    row = json.loads(to_json(row_of(wrote, "cluster")))
    back, losses = read_chat(row, "test")
    assert losses == ()
    assert back.messages == wrote.messages
    assert back.tools == wrote.tools
    assert (back.trajectory_id, back.problem_id, back.agent.name, back.kind) == (
        *("t", wrote.problem_id, "careful", "product"),
    )
    answered = {m.tool_call_id for m in wrote.messages if m.role == "tool"}
    assert len(back.dispatches) == len(answered)
    assert build_messages(back.query, back.events) == wrote.messages


@pytest.mark.parametrize(
    ("arguments", "text", "lost"),
    [
        ('{"q":"mug"}', '{"q":"mug"}', []),
        ({"q": "mug"}, '{"q":"mug"}', []),
        ('"{\\"q\\":\\"mug\\"}"', '{"q":"mug"}', ["double_encoded"]),
        ('"mug"', '"mug"', []),
        ("{broken", "{broken", []),
        (None, "{}", ["null_arguments"]),
    ],
)
def test_arguments_in_every_form(arguments: Any, text: str, lost: list[str]) -> None:
    imported = read(
        {"role": "assistant", "content": None, "tool_calls": [call(arguments=arguments)]}
    )
    assert imported.trajectory.messages[1].tool_calls[0].function.arguments == text
    assert codes(imported) == lost


@pytest.mark.parametrize(
    ("message", "expected", "lost"),
    [
        ({"content": None}, None, []),
        ({"content": ""}, "", []),
        ({"content": "hi"}, "hi", []),
        ({}, None, ["absent_content"]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", []),
    ],
)
def test_null_empty_and_text_stay_apart(
    message: dict[str, Any], expected: str | None, lost: list[str]
) -> None:
    imported = read({"role": "assistant", **message})
    assert imported.trajectory.messages[1].content == expected
    assert codes(imported) == lost


def test_an_image_part_is_a_loss() -> None:
    parts = [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "a"}]
    imported = read({"role": "assistant", "content": parts})
    assert [(loss.code, loss.where) for loss in imported.losses] == [
        ("content_part", "messages[1].content[0]")
    ]


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_both_spellings_of_reasoning(key: str) -> None:
    imported = read({"role": "assistant", "content": "hi", key: "hm"})
    assert imported.trajectory.messages[1].reasoning_content == "hm"
    assert codes(imported) == []


def test_parallel_calls_are_paired_by_id_not_by_position() -> None:
    imported = read(
        {
            "role": "assistant",
            "tool_calls": [call(id="a"), call("view_product_information", id="b")],
        },
        {"role": "tool", "tool_call_id": "b", "content": "seen"},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
    )
    assert [(d.tool, d.result) for d in imported.trajectory.dispatches] == [
        ("find_product", "found"),
        ("view_product_information", "seen"),
    ]
    assert codes(imported) == []


def test_duplicate_and_missing_ids_are_made_unique_and_paired() -> None:
    imported = read(
        {"role": "assistant", "tool_calls": [call(id="a")]},
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "assistant", "tool_calls": [call(id="a"), call()]},
        {"role": "tool", "tool_call_id": "a", "content": "two"},
        {"role": "tool", "content": "three"},
    )
    messages = imported.trajectory.messages
    ids = [c.id for m in messages for c in m.tool_calls]
    assert len(set(ids)) == 3
    assert not orphan_calls(messages)
    assert not orphan_results(messages)
    assert [d.result for d in imported.trajectory.dispatches] == ["one", "two", "three"]
    assert codes(imported) == ["duplicate_call_id", "paired_by_position"]


def test_orphans_stay_orphans() -> None:
    imported = read(
        {"role": "assistant", "tool_calls": [call(id="a")]},
        {"role": "tool", "tool_call_id": "other", "content": "lost"},
    )
    assert len(orphan_calls(imported.trajectory.messages)) == 1
    assert len(orphan_results(imported.trajectory.messages)) == 1


def test_function_call_flat_tools_and_developer() -> None:
    imported = read_chat(
        {
            "messages": [
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": "a mug"},
                {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "ok"},
            ],
            "tools": json.dumps([{"type": "function", "name": "f", "parameters": {}}]),
        },
        "test",
    )
    trajectory = imported.trajectory
    assert [m.role for m in trajectory.messages] == ["system", "user", "assistant", "tool"]
    assert trajectory.tools == ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    assert trajectory.dispatches[0].result == "ok"
    assert codes(imported) == ["paired_by_name"]


def test_tags_of_hermes_become_calls_and_results() -> None:
    imported = read(
        {
            "role": "assistant",
            "content": '<think>\nlook\n</think>\n\n<tool_call>\n{"name": "find_product", '
            '"arguments": {"q": "mug"}}\n</tool_call>\n<tool_call>\n'
            '{"name": "view_product_information", "parameters": {"product_ids": "1"}}\n'
            "</tool_call>",
        },
        {
            "role": "user",
            "content": "".join(f"<tool_response>\n[{n}]\n</tool_response>\n" for n in (1, 2)),
        },
        {"role": "assistant", "content": "<think>unclosed"},
    )
    messages = imported.trajectory.messages
    assert messages[1].reasoning_content == "look"
    assert messages[1].content is None
    assert [(d.tool, d.result) for d in imported.trajectory.dispatches] == [
        ("find_product", "[1]"),
        ("view_product_information", "[2]"),
    ]
    assert messages[-1].reasoning_content == "unclosed"
    assert not orphan_results(messages)


def test_unknown_keys_are_listed() -> None:
    imported = read({"role": "assistant", "content": "hi", "mood": 1}, colour="red")
    assert [(loss.code, loss.where) for loss in imported.losses] == [
        ("unknown_key", "messages[1].mood"),
        ("unknown_key", "colour"),
    ]


@pytest.mark.parametrize("bad", [[], [5], [{"role": "robot"}], [{"content": "x"}], [None]])
def test_what_is_no_chat_is_refused(bad: Any) -> None:
    with pytest.raises(UnreadableError):
        read_chat({"messages": bad}, "test")


def test_calls_of_a_foreign_model_are_agentic_unless_marked() -> None:
    run = made_trajectory("t", PROBLEMS[0])
    foreign = read_chat(json.loads(to_json(row_of(run, "c"))), "test").trajectory
    verdict = richness_verdict(foreign)
    assert (verdict.richness, verdict.evidence) == (1.0, "heuristic")
    marked = events_of(run.messages, by_harness={"c0-0"})
    assert [e.emitted_by is None for e in marked if hasattr(e, "tool")] == [True, False, False]
    talk = read({"role": "assistant", "content": "no tools here"}).trajectory
    assert richness_verdict(talk).evidence == "unknown"


def test_foreign_rows_go_through_the_whole_corpus(tmp_path: Path) -> None:
    runs = [made_trajectory(f"t{n}", PROBLEMS[n % 5]) for n in range(10)]
    lines = [to_json(row_of(run, "c")) for run in runs]
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b"\n".join([*lines, b'{"messages": []}', to_json(runs[0])]) + b"\n")
    reader = TraceReader([path])
    config = CorpusConfig(outcome="none", coefficient=0.3)
    panel = Panel(PROBLEMS, {})
    judged = judge_all(reader, panel)
    funnel = build(judged, PROBLEMS, config, tmp_path / "out", unread=reader.rejects)
    assert funnel.steps[0].rejected == {"unreadable_empty": 1}
    assert funnel.steps[1].rejected == {"repeated_id": 1}
    assert funnel.kept == 10


@pytest.mark.shared
def test_the_real_prefix_rows_are_read(shared_data: Path) -> None:
    path = shared_data / "real_rollouts_oro_sft_prefix.jsonl"
    reader = TraceReader([path])
    read_back = list(reader)
    assert not reader.rejects
    found = [(m.tool_calls[0].function.name, m.tool_calls[0].function.arguments) for t in read_back
             for m in t.messages if m.tool_calls]  # fmt: skip
    assert found == [
        ("find_product", '{"q":"dental elastics","price":"above:10","service":"lazmall"}'),
        ("find_product", '{"q":"patch one size color family 3","price":"104","page":1}'),
        ("find_product", '{"q":"patch","page":1,"price":"139.0-157.0"}'),
    ]
    assert all(
        (t.messages[-1].reasoning_content or "").startswith("I need to find") for t in read_back
    )
    assert {len(t.tools) for t in read_back} == {4}
    assert set(reader.losses) == {"unknown_key"}
