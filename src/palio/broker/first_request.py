"""A conversation that a server refuses before the model wrote a word is no failure of the model."""

from __future__ import annotations

from typing import Any

from palio.broker.upstream import RejectedError, Upstream
from palio.records import FaultCode, UpstreamError


class FirstRequest:
    """Passes requests on; one that is refused before the model wrote anything is not its fault.

    A server that takes no tools, or whose context is shorter than the harness' own text, answers
    400 to every conversation, and the model would score 0 for it. Later ones are the model's: it
    made the conversation as long as it is.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One chat completion."""
        try:
            return self._upstream.complete(body)
        except RejectedError as error:
            if any(each.get("role") == "assistant" for each in body.get("messages", ())):
                raise
            raise UpstreamError(
                f"the first request of a conversation is refused: {error.what}"[:400],
                code=FaultCode.upstream_server_error,
                where=error.where,
                remedy=error.remedy or "see what the server takes: tools, and a long context",
            ) from error
