"""What one run may spend, and what it has spent so far; a refusal says which limit and how much."""

from __future__ import annotations

from palio.records import Record

ARGUMENT_BYTES = 256 * 1024
"""Longest argument JSON of one call; real traces stay under 2 KiB."""


class Limits(Record, frozen=True, omit_defaults=False):
    """Budget of one run; reaching one refuses the request, it does not end the run.

    Attributes:
        calls: tool calls.
        inferences: chat completions.
        tokens: prompt + completion tokens as the server reports them, else UTF-8 bytes / 4.
        bytes: everything that the record has to hold: arguments, results, messages.
        seconds: wall clock from the start of the run; past it the run is over.
    """

    calls: int = 400
    inferences: int = 120
    tokens: int = 4_000_000
    bytes: int = 32_000_000
    seconds: float = 300.0


class Spent:
    """Running totals of a session; its owner holds the lock."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.calls = 0
        self.inferences = 0
        self.tokens = 0
        self.bytes = 0
        self.refused = 0

    def refuse_call(self, size: int) -> str:
        """Why one more tool call of `size` bytes is refused, "" when it is admitted and counted."""
        if self.calls >= self.limits.calls:
            return self._refused("tool calls", self.limits.calls)
        if self.bytes + size > self.limits.bytes:
            return self._refused("recorded bytes", self.limits.bytes)
        self.calls += 1
        self.bytes += size
        return ""

    def refuse_inference(self, size: int) -> str:
        """Why one more completion is refused, "" when it is admitted and counted."""
        if self.inferences >= self.limits.inferences:
            return self._refused("inference calls", self.limits.inferences)
        if self.tokens >= self.limits.tokens:
            return self._refused("tokens", self.limits.tokens)
        if self.bytes + size > self.limits.bytes:
            return self._refused("recorded bytes", self.limits.bytes)
        self.inferences += 1
        return ""

    def _refused(self, what: str, limit: int) -> str:
        self.refused += 1
        return f"budget exhausted: this run may use {limit} {what}"

    def left(self) -> dict[str, int]:
        """What is still to spend; the agent may ask for it."""
        return {
            "calls": max(0, self.limits.calls - self.calls),
            "inferences": max(0, self.limits.inferences - self.inferences),
            "tokens": max(0, self.limits.tokens - self.tokens),
            "bytes": max(0, self.limits.bytes - self.bytes),
        }
