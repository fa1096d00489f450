"""What the model sampled in a rollout is kept token by token; nothing is ever tokenised again.

Text can be cut into tokens in more than one way, so a conversation that is read back from messages
may not be what was sampled. A `TokenLog` stands between the harness and the sampler: its prompt for
each turn is its own log so far and the tokens of what came in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from palio.broker.upstream import RejectedError, Upstream
from palio.records import Message, Tool
from palio.train.codec import Codec, Talk
from palio.train.requests import read_request, response, with_token_ids
from palio.train.rl.sampler import Decoding, Sampler
from palio.train.text import END, parse_assistant


class Span(NamedTuple):
    """Places of one turn's sampled tokens in the log."""

    start: int
    end: int


class TokenLog:
    """One rollout's model: implements `Upstream` over a sampler and records every token.

    Attributes:
        ids: prompt, sampled turns and what came between.
        trained: which of them the model sampled.
        logprobs: of the sampled ones; 0 for the others.
        turns: where each turn's sampled tokens are.
        prompt: how many ids the first prompt has.
        cut: turns that ended at the token limit.
    """

    def __init__(
        self, sampler: Sampler, codec: Codec, *, max_tokens: int, longest: int, model: str = ""
    ) -> None:
        self._sampler, self._codec = sampler, codec
        self._max_tokens, self._longest, self._model = max_tokens, longest, model
        self.ids: list[int] = []
        self.trained: list[bool] = []
        self.logprobs: list[float] = []
        self.turns: list[Span] = []
        self.prompt = 0
        self.cut = 0
        self._written: Message | None = None
        self._known = 0

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One turn, as an OpenAI chat completion.

        Raises:
            RejectedError: the conversation does not go on from the last turn, is longer than
                `longest` tokens, or is to end before the model ends it.
            UpstreamError: the sampler broke.
        """
        wish = read_request(body, self._max_tokens)
        if wish.stop or wish.logprobs or not wish.parallel:
            raise RejectedError("a rollout that is trained on is the turn as the model wrote it")
        self._check(wish.messages)
        between = bridge(self._codec, wish.messages, body.get("tools") or ())
        # the end that a turn has in the conversation, written or not, has a place too
        room = self._longest - len(self.ids) - len(between) - 1
        if room < 1:
            raise RejectedError(
                f"the conversation has more than {self._longest} tokens",
                remedy="raise `longest` in the recipe",
            )
        self._add(between)
        self.prompt = self.prompt or len(self.ids)
        limit = min(wish.max_tokens, room)
        decoding = Decoding(limit, wish.temperature, wish.top_p, wish.seed + len(self.turns))
        sampled = self._sampler.sample(self.ids, decoding)
        self.turns.append(Span(len(self.ids), len(self.ids) + len(sampled.ids)))
        self._add(sampled.ids, sampled.logprobs)
        return self._response(body, wish.messages, sampled.ids, prompt=self.turns[-1].start)

    def _check(self, messages: Sequence[Message]) -> None:
        last = [message for message in messages[: self._known] if message.role == "assistant"]
        if self._known and (len(messages) < self._known or last[-1:] != [self._written]):
            raise RejectedError("the conversation does not go on from the last turn")

    def _add(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        self.ids.extend(ids)
        self.trained.extend([logprobs is not None] * len(ids))
        self.logprobs.extend([0.0] * len(ids) if logprobs is None else logprobs)

    def _response(
        self, body: dict[str, Any], messages: Sequence[Message], written: list[int], *, prompt: int
    ) -> dict[str, Any]:
        ended = written[-1:] == [self._codec.end]
        if not ended:
            self.cut += 1
            self._add(
                [self._codec.end]
            )  # the turn ends in the conversation; the model wrote no end
        text = self._codec.decode(written).removesuffix(END)
        message = parse_assistant(text, call_ids=f"call_{len(messages)}")
        self._written, self._known = message, len(messages) + 1
        finish = ("tool_calls" if message.tool_calls else "stop") if ended else "length"
        model = str(body.get("model") or self._model)
        answer = response(model, len(self.turns), message, finish, prompt, len(written))
        asked = body.get("return_token_ids")
        return with_token_ids(answer, self.ids[:prompt], written) if asked else answer


class TokenServer:
    """`Upstream` over a sampler that knows no conversations; each run has a `TokenLog` of its own.

    A server that parses a turn and renders it anew may read other tokens than it wrote; one that is
    given tokens cannot.

    Args:
        sampler: tokens in, tokens out.
        codec: of the model that it holds.
        max_tokens: of a turn whose request names no limit.
        longest: tokens of a conversation.
    """

    def __init__(self, sampler: Sampler, codec: Codec, *, max_tokens: int, longest: int) -> None:
        self._sampler, self._codec = sampler, codec
        self._max_tokens, self._longest = max_tokens, longest

    def for_run(self, run: str) -> Upstream:
        """The server as one conversation sees it, see `broker.upstream.scoped`."""
        del run
        return TokenLog(
            self._sampler, self._codec, max_tokens=self._max_tokens, longest=self._longest
        )

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One turn of a conversation that is not gone on with; see `Upstream`."""
        return self.for_run("").complete(body)


PROBE = Message(role="assistant", content="x")
"""A turn that is added to a conversation to see where its tokens would begin."""


def bridge(codec: Codec, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
    """Ids from the end of the last assistant turn to the opening of the next one.

    They are read off the encoding of the whole conversation with a turn added, so they are the ids
    that training on that conversation sees there.
    """
    ids, trained = codec.encode_talks([Talk((*messages, PROBE), tuple(tools))])[0]
    edges = [0, *(at + 1 for at, (a, b) in enumerate(pairwise(trained)) if a != b), len(ids)]
    runs = [(start, end) for start, end in pairwise(edges) if not trained[start]]
    start, end = next(run for run in reversed(runs) if run[1] < len(ids) and trained[run[1]])
    return list(ids[start:end])
