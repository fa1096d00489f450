"""Tokens in, tokens out: what a model sampled is read back as the tokens that it sampled.

A conversation comes back as messages, and text can be cut into tokens in more than one way. The
tokens of an assistant turn are therefore remembered under the prompt that it answered, and used
again whenever the same text follows the same prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from palio.records import Message
from palio.train.text import END, REPLY, Segment, segments

_REMEMBERED = 16_384


class Coder(Protocol):
    """What a transcript asks of a tokenizer."""

    end: int

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids."""


Cut = Callable[[Sequence[Message], Sequence[Any]], Iterable[Segment]]
"""Cuts a conversation, and the tools that it offers, into pieces of chat text."""


class Transcript:
    """Turns messages into prompts; not thread-safe.

    Args:
        tokenizer: of the model.
        cut: pieces of the chat text; None: palio's own, in which tools are not shown.
    """

    def __init__(self, tokenizer: Coder, cut: Cut | None = None) -> None:
        self._tokenizer = tokenizer
        self._cut = cut or (lambda messages, _: segments(messages))
        self._sampled: OrderedDict[tuple[int, str], tuple[int, ...]] = OrderedDict()
        self._encoded: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        """Ids of a conversation up to the opening of an assistant turn."""
        ids: list[int] = []
        text = ""
        for part, trained in self._cut(messages, tools):
            if not trained:
                text += part
                continue
            ids.extend(self._encode(text))
            text = ""
            key = (hash(tuple(ids)), part)
            ids.extend(self._sampled.get(key) or self._encode(part))
        ids.extend(self._encode(text + REPLY))
        return ids

    def remember(self, prompt: Sequence[int], sampled: list[int]) -> str:
        """Keep what was sampled after a prompt; returns its text without the end token.

        A turn that was cut off has no end token yet; in a longer conversation it has one.
        """
        text = self._tokenizer.decode(sampled).removesuffix(END)
        end = self._tokenizer.end
        whole = sampled if sampled[-1:] == [end] else [*sampled, end]
        self._sampled[hash(tuple(prompt)), text + END] = tuple(whole)
        if len(self._sampled) > _REMEMBERED:
            self._sampled.popitem(last=False)
        return text

    def _encode(self, text: str) -> tuple[int, ...]:
        """Encoding costs 0.2 ms, and all but the newest part of a conversation was here before."""
        known = self._encoded.get(text)
        if known is None:
            known = self._encoded[text] = tuple(self._tokenizer.encode(text))
            if len(self._encoded) > _REMEMBERED:
                self._encoded.popitem(last=False)
        return known
