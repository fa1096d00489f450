"""What a path means is decided once: the HTTP server and the in-process door answer alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from palio.broker.refusals import RefusedError, RunOver
from palio.broker.session import Session
from palio.broker.upstream import RejectedError
from palio.broker.wire import clean_text
from palio.records import FaultCode, PalioError, UpstreamError, to_json
from palio.world.tools import ToolReply

INFERENCE_PATHS = (
    "inference/chat/completions",
    "v1/chat/completions",
    "inference/v1/chat/completions",
)
WARNINGS_HEADER = "X-Palio-Warnings"
ERROR_HEADER = "X-Palio-Error"
CALL_ID_HEADER = "X-Tool-Call-Id"
NONCE_HEADERS = ("X-Palio-Nonce", "X-Tool-Nonce")
_STATUS = {
    FaultCode.upstream_rate_limited: 429,
    FaultCode.upstream_timed_out: 504,
    FaultCode.upstream_unreachable: 503,
}


class Reply(NamedTuple):
    """An HTTP answer before it is written: status, JSON body, extra headers."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


def call_proof(headers: Mapping[str, str]) -> tuple[str, str]:
    """The call id and the proof that a request names, "" where it names none."""
    named = {name.lower(): str(value) for name, value in headers.items()}
    nonces = (named.get(header.lower(), "") for header in NONCE_HEADERS)
    return named.get(CALL_ID_HEADER.lower(), ""), next((each for each in nonces if each), "")


def tool_reply(
    session: Session, tool: str, arguments: Any, call_id: str = "", nonce: str = ""
) -> Reply:
    """Carry out one tool call: the bare result as the body, everything else in headers.

    Args:
        session: the run.
        tool: the tool's name as it stands in the path.
        arguments: the parsed body or query; text is the raw argument JSON of a model.
        call_id: the id of the call as the agent was shown it.
        nonce: its proof, when that was sent beside the id.
    """
    if not isinstance(arguments, str | Mapping):
        arguments = json.dumps(arguments)
    reply = session.dispatch(tool, arguments, call_id, nonce)
    return Reply(200, reply.result.encode("utf-8", "replace"), _notes(reply))


def read_reply(session: Session, path: str) -> Reply:
    """Answer what only looks at the run: tools, status, v1/models."""
    if path == "tools":
        return Reply(200, to_json(session.settings))
    if path == "status":
        return Reply(200, to_json(session.status()))
    if path == "v1/models":
        model = {"id": session.agent.model or "default", "object": "model", "owned_by": "palio"}
        return Reply(200, to_json({"object": "list", "data": [{**model, "created": 0}]}))
    return error_reply(404, f"no such path: /{clean_text(path)[:100]}", "not_found")


def failure_reply(error: PalioError | RunOver) -> Reply:
    """The answer to a request that failed: an OpenAI error body and a fitting status.

    The broker has already retried whatever is worth it, so every failure says: do not try again.
    """
    if isinstance(error, RunOver):
        return error_reply(410, str(error), "run_over")
    if isinstance(error, UpstreamError):
        status = _STATUS.get(FaultCode(error.code), 502)
        return error_reply(status, error.what, FaultCode(error.code).name)
    if isinstance(error, RefusedError):
        return error_reply(error.status, error.what, error.code or "refused")
    if isinstance(error, RejectedError):
        return error_reply(400, error.what, "rejected")
    return error_reply(400, error.what, "bad_request")


def error_reply(status: int, message: str, code: str) -> Reply:
    """An error in OpenAI's form."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return Reply(status, to_json({"error": error}), {"X-Should-Retry": "false"})


def _notes(reply: ToolReply) -> Mapping[str, str]:
    headers = {}
    if reply.warnings:
        headers[WARNINGS_HEADER] = json.dumps(list(reply.warnings))
    if reply.error:
        headers[ERROR_HEADER] = json.dumps(reply.error[:500])
    return headers
