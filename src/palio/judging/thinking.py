"""What a completion thought, in its own words: calls, quoted results and echoes are taken out."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from palio.judging.words import fold, sentences, tokens
from palio.records.message import Message
from palio.records.trajectory import InferenceEvent

# A block of calls or of results ends at its closing tag or at the end of the text, so that an
# unclosed one hides nothing behind it.
_QUOTED = re.compile(
    r"<(tool_call|tool_response|obs|tool_result)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE
)
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_TAG = re.compile(r"</?(?:think|response)>", re.IGNORECASE)
ECHO_TOKENS = 4
"""Shorter sentences are no echo: "pick 4821" may stand in any prompt."""
ECHO_WORK = 50_000_000
"""Bytes that looking for echoes may scan; beyond, whole prompt sentences are compared instead."""


class Sentence(NamedTuple):
    """One sentence of thinking: as it was written, and its tokens."""

    text: str
    tokens: list[str]


class Thought(NamedTuple):
    """The thinking of one completion."""

    seq: int
    sentences: list[Sentence]


def thinking_text(message: Message) -> str:
    """The thinking of an assistant message; "" when it was written after the fact.

    That is `reasoning_content` and what stands in think tags; where there is neither, the content
    outside calls, quoted results and code fences, unless it is nothing but JSON. A think block
    runs to the last closing tag, so a closing tag quoted inside it cuts nothing off.
    """
    if message.rationalised:
        return ""
    reasoning = message.reasoning_content or ""
    content = message.content or ""
    tagged = _tagged(content) if "think>" in content else ""
    text = f"{reasoning}\n{tagged}" if reasoning and tagged else reasoning or tagged
    if not text.strip():
        text = "" if _is_json(content) else _FENCE.sub(" ", content)
    if "<" in text:
        text = _TAG.sub(" ", _QUOTED.sub(" ", text))
    return text


def _tagged(content: str) -> str:
    opened = content.find("<think>")
    closed = content.rfind("</think>")
    if opened < 0:
        return content[:closed] if closed >= 0 else ""
    return content[opened + 7 : closed] if closed > opened else content[opened + 7 :]


def _is_json(content: str) -> bool:
    text = content.strip()
    if not text or text[0] not in '[{"0123456789-tfn':
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def written_text(message: Message) -> str:
    """Everything that a completion wrote: thinking, content, names and arguments of its calls."""
    calls = [f"{call.function.name}{call.function.arguments}" for call in message.tool_calls]
    reasoning = "" if message.rationalised else message.reasoning_content or ""
    return "".join([reasoning, message.content or "", *calls])


def thought(event: InferenceEvent, prompts: list[str]) -> Thought:
    """The sentences of an inference event that are not copied from its prompts.

    Args:
        event: an inference event with a completion.
        prompts: folded texts of what the agent put into requests so far (results of tools and
            what the model itself wrote aside); a sentence that stands in one of them word for word
            was told to the model, not thought by it.
    """
    text = thinking_text(event.completion) if event.completion else ""
    if not text or text.isspace():
        return Thought(event.seq, [])
    folded = fold(text)
    shown = text if len(folded) == len(text) else folded
    found = [
        Sentence(shown[start:end].strip(), tokens(folded[start:end]))
        for start, end in sentences(folded)
    ]
    return Thought(event.seq, _own(found, prompts) if prompts else found)


def _own(found: list[Sentence], prompts: list[str]) -> list[Sentence]:
    size = sum(map(len, prompts))
    if size * len(found) > ECHO_WORK:
        told = {prompt[a:b].strip() for prompt in prompts for a, b in sentences(prompt)}
        return [one for one in found if fold(one.text) not in told]
    return [
        one
        for one in found
        if len(one.tokens) < ECHO_TOKENS or not any(fold(one.text) in prompt for prompt in prompts)
    ]
