"""Requests that a proxy logged (format 3), and the log of a run read by itself.

What was sent and answered stands in the log whole, shortened, or only as the ids of a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from palio.broker.emission import read_emission
from palio.broker.wire import read_message
from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import LossList
from palio.corpus.readers.shapes import listed, mapping
from palio.records import Fault, FaultCode, InputError, Message, Usage

_KEYS = frozenset(
    (
        *("kind", "method", "path", "timestamp", "duration_ms", "status_code", "params"),
        *("json_data", "response", "response_truncated", "response_length"),
        *("result_product_ids", "nonce_status", "attempt", "problem_id", "error"),
    )
)


class ProxyCall(NamedTuple):
    """One logged request; `at_ms` is when it was complete."""

    at_ms: float
    tool: str
    raw: Mapping[str, Any]
    where: str


def is_proxy_call(row: Any) -> bool:
    """Whether a row is one logged request."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("path"), str)
        and (
            row.get("kind") in ("summary", "attempt")
            or ("kind" not in row and "method" in row and "timestamp" in row)
        )
    )


def read_proxy_calls(given: Any, where: str, losses: LossList) -> list[ProxyCall]:
    """The requests of a log that were carried out; attempts and foreign paths are listed."""
    calls = []
    for index, raw in enumerate(listed(given)):
        place = f"{where}[{index}]"
        if not is_proxy_call(raw):
            losses.add("proxy_call_shape", place)
            continue
        losses.unknown(raw, _KEYS, place)
        path = raw["path"].split("?")[0].rstrip("/")
        tool = path.rsplit("/search/", 1)[1] if "/search/" in path else ""
        if raw.get("kind") == "attempt":
            losses.add("attempt", place)
        elif not tool and not path.endswith("/completions"):
            losses.add("other_request", place)
        else:
            if raw.get("nonce_status"):
                losses.add("not_carried", f"{place}.nonce_status")
            time = raw.get("timestamp")
            at = float(time) if isinstance(time, int | float) else 0.0
            calls.append(ProxyCall(at_ms=at, tool=tool, raw=raw, where=place))
    return calls


def logged_number(value: Any) -> float:
    """A number of the log, 0 for anything else."""
    return float(value) if isinstance(value, int | float) else 0.0


def logged_arguments(raw: Mapping[str, Any]) -> str:
    """The argument JSON of a logged dispatch: its parameters, its body, or its address."""
    given = raw.get("params") if raw.get("params") is not None else raw.get("json_data")
    if given is None and "?" in raw["path"]:
        given = dict(parse_qsl(raw["path"].split("?", 1)[1], keep_blank_values=True))
    return given if isinstance(given, str) else json_text(given or {})


def logged_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice of a logged answer, {} where it has none."""
    choices = listed(answer.get("choices"))
    return mapping(choices[0]) if choices else {}


def logged_completion(answer: Mapping[str, Any]) -> Message | None:
    """The assistant message of a logged answer; None where it is not there to be read in full."""
    message = logged_choice(answer).get("message")
    if not isinstance(message, dict):
        return None
    try:
        read = read_message({**message, "role": "assistant"})
    except InputError:
        return None
    unread = "<tool_call>" in (read.content or "") and not read_emission(read).calls
    return None if unread else read


def logged_usage(raw: Any) -> Usage:
    """Token counts of an answer, as far as they are numbers."""
    counts = {}
    for name in ("prompt_tokens", "completion_tokens"):
        value = raw.get(name) if isinstance(raw, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            counts[name] = value
    return Usage(**counts)


def logged_error(raw: Mapping[str, Any]) -> str:
    """Why a dispatch failed, "" when it did not."""
    status = raw.get("status_code")
    if raw.get("error"):
        return str(raw["error"])
    return "" if status is None or status == 200 else f"HTTP {status}"


def logged_fault(raw: Mapping[str, Any]) -> Fault | None:
    """The fault of a failed completion, None when it succeeded."""
    status = raw.get("status_code")
    if not isinstance(status, int) or status < 400:
        return None
    code = FaultCode.upstream_rate_limited if status == 429 else FaultCode.upstream_server_error
    return Fault(code=code, what=f"HTTP {status}")


def told_truly(claimed: str, logged: Any) -> bool:
    """Whether a dialogue's result says nothing that the logged one does not.

    An agent may keep some rows of a list, some members of an object, or the beginning of a text;
    what it keeps must stand in the log as it is.
    """
    if isinstance(logged, str):
        if claimed.strip() in logged:
            return True
        logged = _loaded(logged)
    return _within(_loaded(claimed), logged)


def _loaded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _within(told: Any, logged: Any) -> bool:
    if told == logged:
        return True
    if isinstance(told, dict) and told.keys() == {"result"}:
        return _within(told["result"], logged)
    if isinstance(told, list) and isinstance(logged, list):
        return all(any(_within(item, held) for held in logged) for item in told)
    if isinstance(told, dict) and isinstance(logged, dict):
        return all(key in logged and _within(told[key], logged[key]) for key in told)
    return isinstance(told, str) and isinstance(logged, str) and told in logged
