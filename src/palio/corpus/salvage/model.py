"""A language model writes the thinking; what it says beyond the record is refused."""

from __future__ import annotations

from functools import cache
from importlib import resources

from palio.broker.upstream import Upstream
from palio.corpus.salvage.moment import Moment, UnfoundedError, unfounded
from palio.records import FaultCode, UpstreamError, bytes_digest, to_json

TRIES = 3
MAX_CHARS = 2000
"""Longer thinking than any agentic row of the arena needs between two calls."""
MAX_TOKENS = 2048
"""Room for models that think before they write."""


@cache
def prompt() -> str:
    """The instruction of the rewriter."""
    source = resources.files("palio.corpus.salvage") / "prompts" / "rewrite.md"
    return source.read_text(encoding="utf-8").strip()


class ModelRewriter:
    """Any OpenAI-compatible model as rewriter; thread-safe if its upstream is.

    Args:
        upstream: who answers.
        model: the model's name there.
        temperature: 0 for greedy; further tries use another seed and at least 0.5.
        tries: answers asked for before a moment is given up.
    """

    def __init__(
        self, upstream: Upstream, model: str, *, temperature: float = 0.0, tries: int = TRIES
    ) -> None:
        self._upstream = upstream
        self._model = model
        self._temperature = temperature
        self._tries = tries

    @property
    def rewriter_id(self) -> str:
        """Model and digest of the instruction."""
        return f"model:{self._model}:{bytes_digest(prompt().encode())[7:19]}"

    def thinking(self, moment: Moment) -> str:
        """The first of a few answers that keeps to the moment.

        Raises:
            UnfoundedError: none did; names what the last one made up.
            UpstreamError: the model failed.
        """
        wrong = "no answer"
        for attempt in range(self._tries):
            text = self._ask(moment, attempt)
            stray = unfounded(text, moment)
            if text and not stray and len(text) <= MAX_CHARS:
                return text
            wrong = ", ".join(stray[:5]) if stray else f"{len(text)} characters"
        raise UnfoundedError(f"the rewriter's text does not keep to the record: {wrong}")

    def _ask(self, moment: Moment, attempt: int) -> str:
        body = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": prompt()},
                {"role": "user", "content": to_json(moment).decode()},
            ],
            "temperature": max(self._temperature, 0.5 if attempt else 0.0),
            "seed": attempt,
            "max_tokens": MAX_TOKENS,
        }
        answer = self._upstream.complete(body)
        try:
            content = answer["choices"][0]["message"]["content"] or ""
        except (KeyError, IndexError, TypeError) as error:
            raise UpstreamError(
                "the rewriter's answer is no chat completion", code=FaultCode.upstream_garbage
            ) from error
        return " ".join(str(content).rpartition("</think>")[2].split())
