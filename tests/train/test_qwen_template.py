"""Qwen3's own template on Qwen3's tokenizer: what is read is what is trained, or it is no row."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.corpus.rows import CorpusRow
from palio.records import ConfigError, FunctionCall, Message, ToolCall
from palio.train.backends.codec import PretrainedCodec, template_text
from palio.train.backends.qwen import qwen_tokenizer
from palio.train.backends.qwen_template import QWEN3, marked, qwen3_original, qwen3_template
from palio.train.backends.templates import (
    CHANGES,
    FORGETS,
    MOVES,
    SKIPS,
    check_template,
    prompt_segments,
    row_segments,
)
from palio.train.backends.weights import located
from palio.train.codec import Talk
from palio.train.stages.examples import examples_of
from palio.train.text import END, REPLY, assistant_text, chat_template
from palio.train.tokenizer import Encoded
from palio.train.transcript import Transcript
from palio.world.tools import tool_schemas
from tests.train.test_text import talk

pytest.importorskip("trl", reason="Qwen3's template is in the package of TRL")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TOOLS = tool_schemas()
PLAIN = [msgspec.to_builtins(tool) for tool in TOOLS]


def calls(*made: tuple[str, str]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(id=f"call_{at}", function=FunctionCall(name=name, arguments=arguments))
        for at, (name, arguments) in enumerate(made)
    )


REQUEST = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="two blue mugs, ≤ 20 €"),
    Message(
        role="assistant",
        reasoning_content="search \n\nboth: <b>1</b> & 2",
        tool_calls=calls(("find_product", '{"q":"café mug"}'), ("find_product", '{"q": "cup"}')),
    ),
    Message(role="tool", content='[{"product_id":"7"}]', tool_call_id="call_0"),
    Message(role="tool", content='[]\nWarning: <tool_response> "none"', tool_call_id="call_1"),
    Message(
        role="assistant",
        content="I look at 7.",
        reasoning_content=" 7 it is?",
        tool_calls=calls(("view_product_information", '{"product_ids":"7"}')),
    ),
    Message(role="tool", content="", tool_call_id="call_0"),
    Message(
        role="assistant",
        tool_calls=calls(("recommend_product", '{"product_ids":"7"}'), ("terminate", "{}")),
    ),
    Message(role="tool", content="{}", tool_call_id="call_0"),
    Message(role="tool", content="{}", tool_call_id="call_1"),
    Message(role="assistant", content="7, as\n\nyou asked.", reasoning_content="done"),
)
"""Several calls in a turn, an empty result, and a turn in the middle that does not think."""


@cache
def real_qwen3() -> PretrainedCodec:
    """Qwen3's vocabulary and its template; 4 s, so once."""
    if find_spec("dashscope") is None:
        pytest.skip("the package dashscope, which ships Qwen's rank file, is not installed")
    ranks = Path(located("package:dashscope/resources/qwen.tiktoken"))
    return PretrainedCodec(qwen_tokenizer(ranks), template_text(QWEN3))


@pytest.fixture
def qwen() -> PretrainedCodec:
    return real_qwen3()


def rendered(codec: PretrainedCodec, messages: Sequence[Message], **told: Any) -> Any:
    """What transformers makes of a conversation with Qwen3's template as it is published."""
    told = {"chat_template": qwen3_original(), "return_dict": False, **told}
    plain = [message.to_openai() for message in messages]
    return codec.tokenizer.apply_chat_template(plain, **told)


def said(messages: Sequence[Message]) -> list[str]:
    return [assistant_text(each) + END for each in messages if each.role == "assistant"]


def runs(row: Encoded) -> list[list[int]]:
    """The ids of each turn that is trained on."""
    both = zip(row.ids, row.trained, strict=True)
    return [[t for t, _ in run] for on, run in groupby(both, key=lambda pair: pair[1]) if on]


# ---- the marks


@settings(max_examples=40, deadline=None)
@given(talk, st.booleans(), st.booleans())
def test_marks_change_nothing_that_the_template_writes(
    messages: list[Message], tooled: bool, reply: bool
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    plain = [message.to_openai() for message in messages]
    texts = [
        render_jinja_template(
            conversations=[plain],
            tools=PLAIN[:1] if tooled else None,
            chat_template=template,
            add_generation_prompt=reply,
        )[0]
        for template in (qwen3_original(), qwen3_template())
    ]
    assert texts[0] == texts[1]


def test_the_name_and_a_models_own_file_mean_the_marked_template(tmp_path: Path) -> None:
    file = tmp_path / "chat_template.jinja"
    file.write_text(qwen3_original(), "utf-8")
    assert template_text(QWEN3) == template_text(str(file)) == qwen3_template()
    assert check_template(qwen3_template()) is False, "it keeps to some conversations only"
    assert check_template(chat_template()) is True
    file.write_text(qwen3_template(), "utf-8")
    assert template_text(str(file)) == qwen3_template(), "a checkpoint's file has the marks already"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("qwen3_training", "writes an assistant turn as"),  # the line break after it is trained on
        ("qwen3_instruct_2507_training", "writes an assistant turn as"),  # never any thinking
        ("qwen3_6_training", "cannot be rendered"),  # arguments must be objects
        ("qwen2_5", "say 'qwen3' for Qwen3's own with marks"),
    ],
)
def test_other_templates_of_qwen_are_still_refused(name: str, why: str) -> None:
    text = Path(located(f"package:trl/chat_templates/{name}.jinja")).read_text("utf-8")
    assert marked(text) is None
    with pytest.raises(ConfigError, match=why):
        check_template(text)


# ---- rows and prompts on the real tokenizer


def test_the_mask_decodes_to_what_the_assistant_wrote(
    qwen: PretrainedCodec, talks: list[Sequence[Message]]
) -> None:
    assert not qwen._every
    for messages in (*talks[:20], REQUEST, REQUEST[1:]):
        [row] = qwen.encode_talks([Talk(messages, TOOLS)])
        assert [qwen.decode(run) for run in runs(row)] == said(messages)
        assert all(run[-1] == qwen.end for run in runs(row)), "of every turn, the last or not"
        assert qwen.decode(row.ids) == rendered(qwen, messages, tools=PLAIN, tokenize=False)
        told = rendered(
            qwen,
            messages,
            tools=PLAIN,
            chat_template=qwen.template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert told["input_ids"] == row.ids == rendered(qwen, messages, tools=PLAIN)
        assert [bool(on) for on in told["assistant_masks"]] == row.trained


def test_every_prompt_is_the_beginning_of_the_row(
    qwen: PretrainedCodec, talks: list[Sequence[Message]]
) -> None:
    transcript = Transcript(qwen, qwen.segments)
    for messages in (*talks[:10], REQUEST):
        [row] = qwen.encode_talks([Talk(messages, TOOLS)])
        starts = [at for at, on in enumerate(row.trained) if on and not row.trained[at - 1]]
        turns = [at for at, each in enumerate(messages) if each.role == "assistant"]
        for turn, start in zip(turns, starts, strict=True):
            prompt = transcript.prompt(messages[:turn], PLAIN)
            assert prompt == row.ids[:start]
            asked = {"tools": PLAIN, "add_generation_prompt": True}
            assert prompt == rendered(qwen, messages[:turn], **asked)


@settings(max_examples=60, deadline=None)
@given(talk, st.booleans())
def test_a_conversation_is_a_row_or_is_refused(messages: list[Message], tooled: bool) -> None:
    template, tools = qwen3_template(), PLAIN[:1] if tooled else []
    row = row_segments(template, messages, tools, every=False)
    if row.refused:
        assert row.pieces == []
        broken = messages[0].role == "assistant"
        assert row.refused in (FORGETS, SKIPS, CHANGES, MOVES) or broken
        return
    assert [part.text for part in row.pieces if part.trained] == said(messages)
    turns = iter(at for at, each in enumerate(messages) if each.role == "assistant")
    before = ""
    for part, trained in row.pieces:
        if trained:
            prompt = prompt_segments(template, messages[: next(turns)], tools)
            assert "".join(piece.text for piece in prompt) + REPLY == before
        before += part


thoughts = st.none() | st.from_regex(r"\A[a-z]( \n?[a-z])*\Z")
turns = st.builds(
    lambda thinking, content, made: Message(
        role="assistant", reasoning_content=thinking, content=content, tool_calls=calls(*made)
    ),
    thoughts,
    st.none() | st.from_regex(r"\A[a-z][a-z \n]*\Z"),
    st.lists(st.just(("find_product", '{"q": "ü"}')), max_size=3),
)
result = st.builds(lambda text: Message(role="tool", content=text), st.text(max_size=9))
results = st.lists(result, min_size=1, max_size=2)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(turns, results), min_size=1, max_size=3))
def test_one_request_answered_with_tools_is_always_a_row(
    steps: list[tuple[Message, list[Message]]],
) -> None:
    messages = [Message(role="user", content="a mug")]
    for turn, answers in steps:
        messages += [turn, *answers]
    assert not row_segments(qwen3_template(), messages, PLAIN[:1], every=False).refused


# ---- what is refused


def turn(text: str | None = None, thinking: str | None = None) -> Message:
    made = calls(("find_product", "{}")) if text is None else ()
    return Message(role="assistant", content=text, reasoning_content=thinking, tool_calls=made)


ASKED, TOLD = Message(role="user", content="a mug"), Message(role="tool", content="[]")
REFUSED = {
    FORGETS: [ASKED, turn("7", "seven"), ASKED, turn("8", "eight")],
    SKIPS: [ASKED, turn(None, ""), TOLD, turn("7", "seven")],
    CHANGES: [ASKED, turn(None, "\n\nseven"), TOLD, turn("7", "seven")],
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_conversation_that_the_template_rewrites_is_counted_and_never_trained_on(
    qwen: PretrainedCodec, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    codec = PretrainedCodec(qwen.tokenizer, qwen.template)
    with caplog.at_level(logging.WARNING):
        kept, refused = codec.encode_talks([Talk(REQUEST, TOOLS), Talk(REFUSED[why], TOOLS)])
    assert len(runs(kept)) == 4
    assert refused == Encoded([], []), "there is nothing to train on"
    assert codec.refused == {why: 1}
    assert caplog.messages == [f"1 of 2 conversations are left out: {why} (1)"]
    caplog.clear()
    assert codec.encode_talks([Talk(REFUSED[why])]) == [Encoded([], [])]
    assert codec.refused == {why: 2}
    assert not caplog.messages, "one line a reason, not one a rollout"
    with pytest.raises(ConfigError, match=f"none of 2 conversations .*{why}"):
        codec.encode_talks([Talk(REFUSED[why])] * 2)


def test_sft_leaves_a_rewritten_row_out(qwen: PretrainedCodec) -> None:
    def row(messages: Sequence[Message]) -> CorpusRow:
        plain = tuple(message.to_openai() for message in messages)
        names = dict.fromkeys(("trajectory_id", "problem_id", "cluster_id", "agent", "kind"), "x")
        return CorpusRow(messages=plain, tools="[]", **names)

    backend = SimpleNamespace(codec=lambda *_: qwen)
    recipe = SimpleNamespace(data=SimpleNamespace(longest=9000))
    context: Any = SimpleNamespace(backend=backend, recipe=recipe)
    rows = [row(each) for each in (*REFUSED.values(), REQUEST)]
    [example] = examples_of(rows, context, None)
    trained = [example.ids[at + 1] for at in example.targets]
    assert qwen.decode(trained) == "".join(said(REQUEST))


def test_an_empty_thinking_in_the_last_turn_alone_is_read_and_trained_on() -> None:
    """Qwen3 writes it into a last turn that does not think; no model that is asked reads that."""
    for thinking, wanted in ((None, "7"), ("", "<think>\n\n</think>\n\n7")):
        row = row_segments(qwen3_template(), [ASKED, turn("7", thinking)], every=False)
        assert [part.text for part in row.pieces if part.trained] == [wanted + END]
