"""The chat text of pretrained models: our prefix-preserving template, in their own vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from palio.records import ConfigError, InputError, Message, Tool, bytes_digest
from palio.train.backend import Talk
from palio.train.text import END, REPLY, Segment, chat_template, segments
from palio.train.tokenizer import Encoded

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
TEMPLATE = "chat_template_tools.jinja"
_HEAD = (
    "# Tools\n\nCall a function by writing one block for each call:\n<tool_call>\n"
    '{"name": "...", "arguments": {...}}\n</tool_call>\n\n'
    "The functions, as JSON schemas:\n<tools>"
)


def tool_segments(messages: Sequence[Message], tools: Sequence[Any] = ()) -> Iterator[Segment]:
    """What `chat_template_tools.jinja` writes, in pieces.

    Args:
        messages: the conversation.
        tools: records or plain nested OpenAI schemas.
    """
    if tools:
        system = bool(messages) and messages[0].role == "system"
        opening = (messages[0].content or "") if system else ""
        plain = [msgspec.to_builtins(tool) for tool in tools]
        listed = "".join("\n" + json.dumps(each, ensure_ascii=False) for each in plain)
        head = (f"{opening}\n\n" if opening else "") + _HEAD + listed + "\n</tools>"
        yield Segment(f"<|im_start|>system\n{head}{END}\n", False)
        messages = messages[1:] if system else messages
    yield from segments(messages)


class PretrainedCodec:
    """`backend.Codec` over a tokenizer of `transformers`.

    A turn is encoded by itself, as it is sampled: whole text could be cut differently at the
    edge of a turn, and then training would see other ids than sampling.

    Args:
        tokenizer: a fast tokenizer with the ChatML marks.
        template: another chat template, which must mark what the assistant writes.

    Raises:
        InputError: the vocabulary has no end mark.
        ConfigError: the template has no generation marks.
    """

    def __init__(self, tokenizer: Any, template: str = "") -> None:
        self.tokenizer = tokenizer
        self.template = template or chat_template(TEMPLATE)
        check_template(self.template)
        self.tokenizer.chat_template = self.template
        found = tokenizer.convert_tokens_to_ids(END)
        if found is None or found == tokenizer.unk_token_id:
            raise InputError(
                f"the tokenizer has no entry {END!r}",
                remedy="choose a model with ChatML marks, such as Qwen3 or SmolLM2",
            )
        self.end = int(found)
        self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else found)
        self._own = not template

    @property
    def template_digest(self) -> str:
        """Digest of the chat template."""
        return bytes_digest(self.template.encode())

    def encode(self, text: str) -> list[int]:
        """Ids of a text; chat marks in it become their tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids, chat marks included."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def encode_talks(self, talks: Sequence[Talk]) -> list[Encoded]:
        """Ids and masks of whole conversations."""
        return [self._encode(talk) if self._own else self._rendered(talk) for talk in talks]

    def _encode(self, talk: Talk) -> Encoded:
        made = Encoded([], [])
        parts = tool_segments(talk.messages, talk.tools)
        for trained, run in groupby(parts, key=lambda part: part.trained):
            texts = [part.text for part in run]
            # two assistant turns never touch, so a run of trained parts is one turn
            ids = self.encode("".join(texts))
            made.ids.extend(ids)
            made.trained.extend([trained] * len(ids))
        return made

    def _rendered(self, talk: Talk) -> Encoded:
        made = self.tokenizer.apply_chat_template(
            [message.to_openai() for message in talk.messages],
            tools=[msgspec.to_builtins(tool) for tool in talk.tools] or None,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return Encoded(list(made["input_ids"]), [bool(on) for on in made["assistant_masks"]])

    def segments(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Iterator[Segment]:
        """The pieces of a conversation, for prompts."""
        return tool_segments(messages, tools)


def check_template(template: str) -> None:
    """A template must mark what the assistant writes, or the loss mask is empty or everything.

    Raises:
        ConfigError: it has no `generation` block.
    """
    if not _GENERATION.search(template):
        raise ConfigError(
            "the chat template does not mark what the assistant writes",
            remedy="wrap it in {% generation %} ... {% endgeneration %}, or leave `template` empty",
        )
    if "{{" not in template or REPLY.split("\n")[0] not in template:
        raise ConfigError("the chat template is not one of ChatML turns")
