"""Conversations to token ids and back: what every backend's chat text can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from palio.records import Message, Tool
from palio.train.tokenizer import Encoded


class Talk(NamedTuple):
    """A conversation and the tools that its model was offered."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


class Codec(Protocol):
    """Conversations to token ids and back, with the chat text of one checkpoint.

    Attributes:
        end: id of the token that ends a turn.
        pad: id that fills rows up; never counted as text, even where it equals `end`.
    """

    end: int
    pad: int

    @property
    def template_digest(self) -> str:
        """Digest of the chat template that the ids are made with."""

    def encode_talks(self, talks: Sequence[Talk]) -> list[Encoded]:
        """Ids of whole conversations and which of them the assistant wrote."""

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids, chat marks included."""
