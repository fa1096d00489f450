"""A chat template that a user brings is rendered as it stands everywhere, or it is refused.

Training, rollouts, evaluation and serving all ask for the pieces of a conversation. What stands
between the assistant's turns is the template's own business. What palio relies on is checked: an
assistant turn must be written as it was sampled, and a conversation must be a prefix of every
longer one, or the model would read other text at sampling than it was trained on. Some templates
keep to that in some conversations only; there each row is tried, and one in which it fails is no
row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from jinja2 import TemplateError

from palio.records import ConfigError, FunctionCall, Message, ToolCall
from palio.train.text import END, REPLY, Segment, assistant_text

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_REMEDY = "correct the template, or leave `template` empty for palio's own"
MARKS = {"bos_token": "<s>", "eos_token": END, "pad_token": END, "unk_token": "<unk>"}
"""Special tokens of no tokenizer in particular, to try a template with before there is one."""
FORGETS = "the chat template leaves out the thinking of an earlier turn"
SKIPS = "the chat template leaves out the empty thinking of an earlier turn"
CHANGES = "the chat template writes an earlier turn otherwise than it was said"
MOVES = "the chat template writes the beginning otherwise once there is more of it"
"""Why a conversation is no row."""


class Row(NamedTuple):
    """The pieces of a conversation that is trained on; none where it is `refused`, and why."""

    pieces: list[Segment]
    refused: str = ""


def template_segments(
    template: str,
    messages: Sequence[Message],
    tools: Sequence[Any] = (),
    marks: Mapping[str, str] = MARKS,
) -> Iterator[Segment]:
    """What a template writes, in pieces; its generation blocks are what is trained.

    Args:
        template: Jinja, as `transformers` takes it.
        messages: the conversation.
        tools: records or plain nested OpenAI schemas.
        marks: special tokens by the names that templates know, e.g. `bos_token`.

    Raises:
        ConfigError: it cannot be rendered, or does not write an assistant turn as it was sampled.
    """
    text, spans = _rendered(template, messages, tools, marks)
    said = [assistant_text(each) + END for each in messages if each.role == "assistant"]
    written = [text[start:end] for start, end in spans]
    if written != said:
        pairs = zip([*written, *[""] * len(said)], [*said, *[""] * len(written)], strict=False)
        got, wanted = next((a, b) for a, b in pairs if a != b)
        raise ConfigError(
            f"the chat template writes an assistant turn as {got!r}, and not as {wanted!r}, which "
            "is what a model samples and palio reads",
            remedy="its generation block must hold thinking, content, calls with their arguments "
            "as they stand, and <|im_end|>",
        )
    return _cut(text, spans)


def prompt_segments(
    template: str,
    messages: Sequence[Message],
    tools: Sequence[Any] = (),
    marks: Mapping[str, str] = MARKS,
) -> list[Segment]:
    """What a model reads before its next turn, in pieces, without the opening of that turn.

    It is what the template writes, also where that is not what was said in an earlier turn.

    Raises:
        ConfigError: the template cannot be rendered, or does not open a turn as palio does.
    """
    text, spans = _rendered(template, messages, tools, marks, reply=True)
    if not text.endswith(REPLY):
        raise ConfigError(
            f"the chat template does not open a turn with {REPLY!r}: {text[-40:]!r}",
            remedy=_REMEDY,
        )
    return list(_cut(text.removesuffix(REPLY), spans))


def row_segments(
    template: str,
    messages: Sequence[Message],
    tools: Sequence[Any] = (),
    marks: Mapping[str, str] = MARKS,
    *,
    every: bool,
) -> Row:
    """A conversation as it is trained on: the last turn after its prompt, which has those before.

    So a row is what was read and written, and every prompt on the way is its beginning. What a
    template does to a turn only while it is the last one, Qwen3's writes an empty thinking into it,
    no model reads, and no row has it.

    Args:
        template: one that `check_template` takes.
        messages: the conversation.
        tools: records or plain nested OpenAI schemas.
        marks: special tokens.
        every: what `check_template` said; False: all of the prompts are rendered and compared.
    """
    turns = [at for at, message in enumerate(messages) if message.role == "assistant"]
    try:
        if not turns:
            return Row(prompt_segments(template, messages, tools, marks))
        return _row(template, messages, tools, marks, turns, every=every)
    except ConfigError as error:  # of this conversation: the template was tried on others
        return Row([], error.what)


def _row(
    template: str,
    messages: Sequence[Message],
    tools: Sequence[Any],
    marks: Mapping[str, str],
    turns: Sequence[int],
    *,
    every: bool,
) -> Row:
    earlier, last = messages[: turns[-1]], messages[turns[-1]]
    before = prompt_segments(template, earlier, tools, marks)
    refused = _rewritten([messages[at] for at in turns[:-1]], before)
    if not refused and not every:
        prompts = (prompt_segments(template, messages[:at], tools, marks) for at in turns[:-1])
        refused = _moved(prompts, before)
    if refused:
        return Row([], refused)
    text, spans = _rendered(template, messages, tools, marks)
    said = Segment(assistant_text(last) + END, True)
    after = Segment(text[spans[-1][1] :] if spans else "", False)
    return Row([*before, Segment(REPLY, False), said, after])


def _rewritten(turns: Sequence[Message], before: Sequence[Segment]) -> str:
    """Why turns are not written as they were said; "" where they are."""
    written = [part.text for part in before if part.trained]
    if len(written) != len(turns):
        return CHANGES
    for message, text in zip(turns, written, strict=True):
        if text == assistant_text(message) + END:
            continue
        bare = msgspec.structs.replace(message, reasoning_content=None)
        if text != assistant_text(bare) + END:
            return CHANGES
        return FORGETS if (message.reasoning_content or "").strip() else SKIPS
    return ""


def _moved(prompts: Iterable[Sequence[Segment]], before: Sequence[Segment]) -> str:
    """Whether a prompt on the way is other text than stands before its turn in the last one."""
    text = ""
    waiting = iter(prompts)
    for part, said in before:
        if said and "".join(piece.text for piece in next(waiting)) + REPLY != text:
            return MOVES
        text += part
    return ""


def _cut(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[Segment]:
    at = 0
    for start, end in spans:
        yield Segment(text[at:start], False)
        yield Segment(text[start:end], True)
        at = end
    yield Segment(text[at:], False)


def _rendered(
    template: str,
    messages: Sequence[Message],
    tools: Sequence[Any],
    marks: Mapping[str, str],
    *,
    reply: bool = False,
) -> tuple[str, list[tuple[int, int]]]:
    """The text and the places of its generation blocks, by the renderer of `transformers`."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, spans = render_jinja_template(
            conversations=[[message.to_openai() for message in messages]],
            tools=[msgspec.to_builtins(tool) for tool in tools] or None,
            chat_template=template,
            return_assistant_tokens_mask=True,
            add_generation_prompt=reply,
            **marks,
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the chat template cannot be rendered: {error}", remedy=_REMEDY
        ) from error
    return texts[0], list(spans[0])


def check_template(template: str, marks: Mapping[str, str] = MARKS) -> bool:
    """Try a template on conversations with all that can be in one.

    Returns:
        Whether it keeps to all of them. False: only to a single request whose turns all think, so
        each row must be tried.

    Raises:
        ConfigError: it has no generation marks, depends on the time, rewrites what was said before
            even there, or opens a turn otherwise than palio does.
    """
    if not _GENERATION.search(template):
        raise ConfigError(
            "the chat template does not mark what the assistant writes",
            remedy="wrap it in {% generation %} ... {% endgeneration %}, leave `template` empty "
            "for palio's own, or say 'qwen3' for Qwen3's own with marks",
        )
    if "strftime_now" in template:
        raise ConfigError(
            "the chat template tells the time, so that no model reads what it was trained on",
            remedy=_REMEDY,
        )
    _check_talks(template, _REQUEST, marks)
    try:
        _check_talks(template, _TALK, marks)
    except ConfigError:
        return False
    return True


def _check_talks(template: str, talk: Sequence[Message], marks: Mapping[str, str]) -> None:
    """With and without tools, and with and without the system message that it begins with."""
    for tools in ((), _TOOLS):
        for part in (talk, talk[1:]):
            _check_talk(template, part, tools, marks)


def _check_talk(
    template: str, talk: Sequence[Message], tools: Sequence[Any], marks: Mapping[str, str]
) -> None:
    """Every prompt on the way must be where the text of the whole conversation has its turn."""
    before = ""
    turns = (at for at, message in enumerate(talk) if message.role == "assistant")
    for part, trained in template_segments(template, talk, tools, marks):
        if trained:
            earlier = talk[: next(turns)]
            plain, _ = _rendered(template, earlier, tools, marks)
            opened, _ = _rendered(template, earlier, tools, marks, reply=True)
            if opened != before:
                raise ConfigError(
                    "the chat template writes the beginning of a conversation otherwise once there "
                    f"is more of it: {_departure(opened, before)}",
                    remedy="keep the thinking of every turn, and add nothing to the last one only",
                )
            if opened != plain + REPLY:
                raise ConfigError(
                    f"the chat template does not open a turn with {REPLY!r}: "
                    f"{_departure(opened, plain + REPLY)}",
                    remedy=_REMEDY,
                )
        before += part


def _departure(one: str, other: str) -> str:
    """Where two texts part, with a little of both."""
    length = min(len(one), len(other))
    at = next((n for n in range(length) if one[n] != other[n]), length)
    return f"{one[at : at + 40]!r} against {other[at : at + 40]!r}"


def _call(name: str, arguments: str) -> ToolCall:
    return ToolCall(id=f"call_{len(name)}", function=FunctionCall(name=name, arguments=arguments))


_TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "One of two.",
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string", "description": "Words."}},
                "required": ["q"],
            },
        },
    }
    for name in ("find_product", "terminate")
)
_CALLS = (_call("find_product", '{"q":"café <b>", "page": 1}'), _call("terminate", "{}"))
_AGAIN = (_call("find_product", '{"q":"mug"}'),)
_BEGIN = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="a mug"),
    Message(role="assistant", reasoning_content="two\n searches. ", tool_calls=_CALLS),
    Message(role="tool", content="[]", tool_call_id="call_12"),
    Message(role="tool", content="{}", tool_call_id="call_9"),
)
_FOUND = Message(role="tool", content="[1]", tool_call_id="call_12")
_REQUEST = (
    *_BEGIN,
    Message(role="assistant", reasoning_content="again", content="none", tool_calls=_AGAIN),
    _FOUND,
    Message(role="assistant", reasoning_content="found", content="It is 1."),
)
"""One request, answered in turns that think."""
_TALK = (
    *_BEGIN,
    Message(role="assistant", reasoning_content="", content=" none \n", tool_calls=_AGAIN),
    _FOUND,
    Message(role="assistant", content="It is 1."),
    Message(role="user", content="thanks"),
    Message(role="assistant", reasoning_content="polite", content=""),
)
"""Two requests, with turns that do not think, or think nothing."""
