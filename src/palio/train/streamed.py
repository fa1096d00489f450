"""An answer is told while it is written; put together, what is told is the completion, exactly.

Only what is certain is told (`growing`). Thinking is told when its end has come: without one it is
content. A call is told when it is whole, since one that cannot be read is content too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from palio.broker.streaming import Tell, wants_usage
from palio.records import FaultCode, UpstreamError
from palio.train.growing import Growing, certain, decided
from palio.train.requests import Told, Wish, frame, read_turn

S = TypeVar("S", str, list[Any])


class Stream:
    """The chunks of one answer.

    Args:
        body: the request.
        wish: the same, read.
        prompt: ids that the model reads.
        decode: the text of ids.
        name: of the model, where the request names none.
        number: of the completion.
        tell: takes the chunks.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        wish: Wish,
        prompt: Sequence[int],
        decode: Callable[[list[int]], str],
        *,
        name: str,
        number: int,
        tell: Tell,
    ) -> None:
        self._wish, self._tell = wish, tell
        self._usage, self._with_ids = wants_usage(body), bool(body.get("return_token_ids"))
        self._frame = frame(str(body.get("model") or name), number, "chat.completion.chunk")
        self._opening = {"prompt_token_ids": list(prompt)} if self._with_ids else {}
        self._detail = Told(decode) if self._with_ids or wish.logprobs else None
        self._growing = Growing(decode)
        self._begun = self._thought = False
        self._content, self._calls, self._tokens = "", 0, 0
        self._ids: list[int] = []
        self._decided = 0

    def hear(self, ids: Sequence[int], logprobs: Sequence[float]) -> bool:
        """Tell what is new in an answer so far.

        Args:
            ids: sampled so far; each time those of the time before, and more.
            logprobs: of each; read where the request wants them. The last may be missing yet.

        Returns:
            Whether to go on: not after a stop string.
        """
        count = len(logprobs) if self._wish.logprobs else len(ids)
        if count <= len(self._ids):
            return True
        text, ended = certain(self._read(ids[:count], logprobs), self._wish.stop)
        at, message = decided(text), {}
        if at > self._decided:
            self._decided, message = at, read_turn(text[:at], self._wish).to_openai()
        self._send(self._deltas(message), self._fresh(text))
        return not ended

    def end(self, answer: Mapping[str, Any]) -> None:
        """Tell the rest of an answer, which is the completion of the same request.

        Raises:
            UpstreamError: it does not begin with what was told, as with a vocabulary in which a
                token changes the text before it.
        """
        choice = answer["choices"][0]
        message, more = choice["message"], dict[str, Any]()
        if self._detail and self._wish.logprobs:
            told = self._detail.entries[: self._tokens]
            more |= _logprobs(_rest(told, choice["logprobs"]["content"]))
        if self._with_ids:
            more |= _token_ids(_rest(self._ids[: self._tokens], choice["token_ids"]))
        deltas = list(self._deltas(message))
        if message["content"] == "" and not self._content:
            deltas.append({"content": ""})  # what is never told is null
        self._send(deltas, more)
        self._chunk({}, choice["finish_reason"])
        if self._usage:
            self._tell({**self._frame, "choices": [], "usage": answer["usage"]})

    def _read(self, ids: Sequence[int], logprobs: Sequence[float]) -> str:
        """The text of ids."""
        new = ids[len(self._ids) :]
        start, self._ids = len(self._ids), list(ids)
        if self._detail is None:
            self._growing.add(new)
            return self._growing.text
        scores = logprobs[start : len(ids)] if self._wish.logprobs else [0.0] * len(new)
        self._detail.read(new, scores)
        return self._detail.text

    def _deltas(self, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What a message has that was not told."""
        if "reasoning_content" in message and not self._thought:
            self._thought = True
            yield {"reasoning_content": message["reasoning_content"]}
        if message:
            content = message["content"] or ""
            if new := _rest(self._content, content):
                yield {"content": new}
            self._content = content
        calls = message.get("tool_calls") or ()
        for index, call in enumerate(calls[self._calls :], self._calls):
            named = {**call["function"], "arguments": ""}
            yield {"tool_calls": [{"index": index, **call, "function": named}]}
            whole = {"arguments": call["function"]["arguments"]}
            yield {"tool_calls": [{"index": index, "function": whole}]}
            self._calls = index + 1

    def _fresh(self, text: str) -> dict[str, Any]:
        """What there is to tell of tokens that are certain and were not told."""
        if self._detail is None:
            return {}
        start, lengths = self._tokens, self._detail.lengths
        while self._tokens < len(lengths) and lengths[self._tokens] <= len(text):
            self._tokens += 1
        new, more = slice(start, self._tokens), dict[str, Any]()
        if self._wish.logprobs:
            more |= _logprobs(self._detail.entries[new])
        if self._with_ids:
            more |= _token_ids(self._ids[new])
        return more

    def _send(self, deltas: Iterable[dict[str, Any]], more: dict[str, Any]) -> None:
        """Chunks of some deltas; the first has what there is to tell of tokens."""
        if not self._begun:
            self._begun = True
            choice = {"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}
            self._tell({**self._frame, **self._opening, "choices": [choice]})
        for delta in deltas:
            self._chunk(delta, None, more)
            more = {}
        if more:
            self._chunk({}, None, more)

    def _chunk(
        self, delta: Mapping[str, Any], finish: str | None, more: Mapping[str, Any] | None = None
    ) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        self._tell({**self._frame, "choices": [{**choice, **(more or {})}]})


def _logprobs(entries: Sequence[Any]) -> dict[str, Any]:
    return {"logprobs": {"content": entries, "refusal": None}} if entries else {}


def _token_ids(ids: Sequence[int]) -> dict[str, Any]:
    return {"token_ids": ids} if ids else {}


def _rest(told: S, whole: S) -> S:
    """What a whole has beyond what was told of it.

    Raises:
        UpstreamError: it begins with something else.
    """
    if whole[: len(told)] != told:
        raise UpstreamError(
            f"what was told of an answer was taken back: {told!r:.100}, and now {whole!r:.200}",
            code=FaultCode.upstream_server_error,
            remedy='report the tokenizer, and ask without "stream": true',
        )
    return whole[len(told) :]
