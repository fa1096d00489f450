"""A sampler behind chat completions: tokens in, tokens out, for any model that is not ours."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from palio.broker.streaming import Tell
from palio.broker.upstream import RejectedError
from palio.records import ConfigError, Message
from palio.train.backends.codec import PretrainedCodec
from palio.train.engine import Sampled
from palio.train.requests import Written, completion, read_request, read_tools
from palio.train.rl.sampler import Decoding, QueuedSampler, Sampler
from palio.train.streamed import Stream
from palio.train.transcript import Transcript

MAX_TOKENS = 512


class Served:
    """Implements `Upstream` over a sampler; thread-safe.

    Args:
        longest: tokens of a conversation; a longer one is refused.
    """

    def __init__(
        self, sampler: Sampler, codec: PretrainedCodec, *, name: str, longest: int
    ) -> None:
        self.name = name
        self._sampler, self._codec, self._longest = sampler, codec, longest
        self._transcript = Transcript(codec, codec.segments)
        self._lock = threading.Lock()
        self._count = 0

    @property
    def models(self) -> tuple[str, ...]:
        """The names under which the model can be asked."""
        return (self.name,)

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return bool(getattr(self._sampler, "alive", True))

    def close(self) -> None:
        """Close the sampler: who waits for it fails, at its next token or, in batches, after one.

        Leaving its context says so to its thread, and may be done again by who entered it.
        """
        if isinstance(self._sampler, QueuedSampler):
            self._sampler.__exit__()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One OpenAI chat completion; offered tools stand in the system turn.

        Raises:
            RejectedError: the request is malformed, or longer than `longest`.
            UpstreamError: the sampler broke.
        """
        return self._answer(body)

    def stream(self, body: dict[str, Any], tell: Tell) -> None:
        """See `StreamingUpstream`; a sampler that cannot be heard tells all when it is done."""
        self._answer(body, tell)

    def _answer(self, body: dict[str, Any], tell: Tell | None = None) -> dict[str, Any]:
        wish = read_request(body, MAX_TOKENS)
        with self._lock:
            ids = self._prompt(wish.messages, read_tools(body))
            self._count += 1
            of_it: dict[str, Any] = {"name": self.name, "number": self._count}
        room = self._longest - len(ids)
        if room < 1:
            raise RejectedError(
                f"the prompt has {len(ids)} tokens, and the model's maximum context length is "
                f"{self._longest}",
                remedy="end the conversation earlier",
            )
        decode = self._codec.decode
        stream = Stream(body, wish, ids, decode, tell=tell, **of_it) if tell else None
        decoding = Decoding(min(wish.max_tokens, room), wish.temperature, wish.top_p, wish.seed)
        sampled = self._sampled(ids, decoding, stream)
        with self._lock:
            self._transcript.remember(ids, list(sampled.ids))
        written = Written(ids, sampled.ids, sampled.logprobs)
        answer = completion(body, wish, written, decode, end=self._codec.end, **of_it)
        if stream:
            stream.end(answer)
        return answer

    def _sampled(self, ids: list[int], decoding: Decoding, stream: Stream | None) -> Sampled:
        """The answer, heard on the way where that can be."""
        if stream is None or not isinstance(self._sampler, QueuedSampler):
            return self._sampler.sample(ids, decoding)
        return self._sampler.sample(ids, decoding, lambda so_far: stream.hear(*so_far))

    def _prompt(self, messages: Sequence[Message], tools: Sequence[Any]) -> list[int]:
        try:
            return self._transcript.prompt(messages, tools)
        except ConfigError as error:  # this conversation's fault: the template was tried before
            raise RejectedError(error.what, remedy="correct the conversation") from error
