"""The chat text of pretrained models: our prefix-preserving template, in their own vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from palio.records import ConfigError, InputError, Message, bytes_digest
from palio.train.backend import Talk
from palio.train.backends.templates import check_template, template_segments
from palio.train.text import END, Segment, chat_template, segments
from palio.train.tokenizer import Encoded

TEMPLATE = "chat_template_tools.jinja"
SIGNATURES = "signatures"
"""Name in a recipe of the template that lists one line a tool."""
_FILES = {SIGNATURES: "chat_template_signatures.jinja"}
_HEAD = (
    "# Tools\n\nCall a function by writing one block for each call:\n<tool_call>\n"
    '{"name": "...", "arguments": {...}}\n</tool_call>\n\n'
)


def schema_list(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools as JSON schemas, one a line: 1,500 tokens of SmolLM2's for the seven tools."""
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    return "The functions, as JSON schemas:\n<tools>" + listed


def signature_list(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools as signatures, one a line: 345 tokens of SmolLM2's for the seven tools."""
    lines = []
    for tool in tools:
        told = tool["function"]
        parameters = told.get("parameters") or {}
        required = parameters.get("required") or ()
        names = ", ".join(
            name
            + ("" if name in required else "?")
            + ("=" + "|".join(map(str, schema["enum"])) if schema.get("enum") else "")
            for name, schema in (parameters.get("properties") or {}).items()
        )
        lines.append(f"\n{told['name']}({names}): {told.get('description') or ''}")
    return "The functions; arguments with a question mark may be left out:\n<tools>" + "".join(
        lines
    )


Listing = Callable[[Sequence[Mapping[str, Any]]], str]
_LISTINGS: dict[str, Listing] = {TEMPLATE: schema_list, _FILES[SIGNATURES]: signature_list}


def template_text(named: str) -> str:
    """The chat template that a recipe names: "" for the model's or our own, a name, or a file.

    Raises:
        ConfigError: there is no such file.
    """
    if named in _FILES:
        return chat_template(_FILES[named])
    try:
        return Path(named).read_text("utf-8") if named else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the chat template cannot be read: {error}",
            where=named,
            remedy=f"name a file, {SIGNATURES!r}, or leave `template` empty",
        ) from error


def tool_segments(
    messages: Sequence[Message], tools: Sequence[Any] = (), listing: Listing = schema_list
) -> Iterator[Segment]:
    """What the chat template writes, in pieces.

    Args:
        messages: the conversation.
        tools: records or plain nested OpenAI schemas.
        listing: how tools are shown; `schema_list` is that of `chat_template_tools.jinja`.
    """
    if tools:
        system = bool(messages) and messages[0].role == "system"
        opening = (messages[0].content or "") if system else ""
        plain = [msgspec.to_builtins(tool) for tool in tools]
        head = (f"{opening}\n\n" if opening else "") + _HEAD + listing(plain) + "\n</tools>"
        yield Segment(f"<|im_start|>system\n{head}{END}\n", False)
        messages = messages[1:] if system else messages
    yield from segments(messages)


class PretrainedCodec:
    """`backend.Codec` over a tokenizer of `transformers`.

    A turn is encoded by itself, as it is sampled: whole text could be cut differently at the
    edge of a turn, and then training would see other ids than sampling.

    Args:
        tokenizer: a fast tokenizer with the ChatML marks.
        template: another chat template, see `templates`; "" for the tokenizer's where that is one
            that conversations can be trained with, as a checkpoint's is, else for ours.

    Raises:
        InputError: the vocabulary has no end mark.
        ConfigError: `templates.check_template` refuses the template.
    """

    def __init__(self, tokenizer: Any, template: str = "") -> None:
        self.tokenizer = tokenizer
        ours = {chat_template(name): listing for name, listing in _LISTINGS.items()}
        marks = tokenizer.special_tokens_map.items()
        self._marks = {name: str(mark) for name, mark in marks if not isinstance(mark, list)}
        held = getattr(tokenizer, "chat_template", None)
        if not template:
            keeps = held in ours or self._keeps(held)
            template = str(held) if keeps else chat_template(TEMPLATE)
        elif template not in ours:
            check_template(template, self._marks)
        self.template = template
        self._listing = ours.get(template)
        self.tokenizer.chat_template = template
        found = tokenizer.convert_tokens_to_ids(END)
        if found is None or found == tokenizer.unk_token_id:
            raise InputError(
                f"the tokenizer has no entry {END!r}",
                remedy="choose a model with ChatML marks, such as Qwen3 or SmolLM2",
            )
        self.end = int(found)
        self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else found)

    def _keeps(self, held: Any) -> bool:
        """Whether the tokenizer's own template is one to train with; most models' are not."""
        try:
            check_template(str(held or ""), self._marks)
        except ConfigError:
            return False
        return True

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
        return [self._encode(talk) for talk in talks]

    def _encode(self, talk: Talk) -> Encoded:
        made = Encoded([], [])
        parts = self.segments(talk.messages, talk.tools)
        for trained, run in groupby(parts, key=lambda part: part.trained):
            texts = [part.text for part in run]
            # two assistant turns never touch, so a run of trained parts is one turn
            ids = self.encode("".join(texts))
            made.ids.extend(ids)
            made.trained.extend([trained] * len(ids))
        return made

    def segments(self, messages: Sequence[Message], tools: Sequence[Any]) -> Iterator[Segment]:
        """The pieces of a conversation, as the template writes them: for rows and for prompts."""
        if self._listing is None:
            return template_segments(self.template, messages, tools, self._marks)
        return tool_segments(messages, tools, self._listing)
