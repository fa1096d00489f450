"""Streams are put together as a client does, and models write what a test says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from threading import Semaphore
from typing import Any

import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from palio.train.engine import Engine

LETTERS: dict[int, str] = bytes_to_unicode()
"""How byte-level vocabularies write a byte."""


def joined(chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The completion that a stream was; what was never told of its message is missing or null."""
    message: dict[str, Any] = {"role": "", "content": None}
    choice: dict[str, Any] = {"index": 0, "message": message, "logprobs": None}
    made: dict[str, Any] = {"choices": [choice]}
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        made |= {name: chunk[name] for name in ("id", "created", "model")}
        made |= {name: chunk[name] for name in ("usage", "prompt_token_ids") if name in chunk}
        for part in chunk["choices"]:
            assert "finish_reason" not in choice, "nothing comes after the end but the usage"
            add_delta(message, part["delta"])
            if part.get("logprobs"):
                choice["logprobs"] = choice["logprobs"] or {"content": [], "refusal": None}
                choice["logprobs"]["content"] += part["logprobs"]["content"]
            if "token_ids" in part:
                choice["token_ids"] = [*choice.get("token_ids", ()), *part["token_ids"]]
            if part["finish_reason"]:
                choice["finish_reason"] = part["finish_reason"]
    return made


def add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name in ("role", "content", "reasoning_content"):
        if delta.get(name) is not None:
            message[name] = (message.get(name) or "") + delta[name]
    for part in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if part["index"] == len(calls):
            assert part["function"]["name"], "the name comes first"
            calls.append({"id": part["id"], "type": part["type"], "function": {"arguments": ""}})
        function = calls[part["index"]]["function"]
        function["arguments"] += part["function"]["arguments"]
        function |= {"name": part["function"]["name"]} if "name" in part["function"] else {}


def told(answer: Mapping[str, Any], *, usage: bool = True) -> dict[str, Any]:
    """What of a completion a stream tells."""
    left_out = {"object"} if usage else {"object", "usage"}
    plain: dict[str, Any] = json.loads(json.dumps(answer))
    return {name: value for name, value in plain.items() if name not in left_out}


class Script:
    """Makes an engine with one slot write what a test says, whatever it reads.

    Args:
        ids: to write; the end mark follows, and again where that is not the end.
        steps: that may be made; None: any number. More are allowed by `go`.
        breaks: the step, counted from 1, that fails; 0: none.

    Attributes:
        begun: steps that the engine came to, allowed or not.
        done: steps so far.
    """

    def __init__(
        self, engine: Engine, ids: Sequence[int], *, steps: int | None = None, breaks: int = 0
    ) -> None:
        self._engine, self._breaks = engine, breaks
        self.begun = self.done = 0
        self._ids = [*ids, engine._tokenizer.end]
        self._allowed = None if steps is None else Semaphore(steps)
        engine._decoder.advance = self._advance  # type: ignore[method-assign]

    def go(self, steps: int = 1) -> None:
        """Allow so many steps more."""
        assert self._allowed is not None
        self._allowed.release(steps)

    def _advance(self, rows: Any, ids: Any, at: Any) -> torch.Tensor:
        self.begun += 1
        assert self._allowed is None or self._allowed.acquire(timeout=30)
        self.done += 1
        if self.done == self._breaks:
            raise RuntimeError("no memory")
        job = self._engine._slots.all[rows[0]].job
        assert job is not None
        logits = torch.zeros(1, self._engine._tokenizer.size)
        logits[0, self._ids[min(len(job.written), len(self._ids) - 1)]] = 9.0
        return logits
