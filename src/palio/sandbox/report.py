"""What an agent file does wrong becomes one typed, agent-blamed fault, the same in every driver."""

from __future__ import annotations

from typing import Any, NamedTuple

from palio.broker.wire import clean_text, load_json
from palio.records import Fault, FaultCode, InputError
from palio.sandbox.watchdog import Finding

SOURCE_BYTES = 1_000_000
"""Largest agent file; the arena's limit."""
TEMPLATE = "`palio agent new FILE` writes a working template"
_CODES = {
    "bad_source": FaultCode.agent_bad_source,
    "bad_return": FaultCode.agent_bad_return,
    "output_limit": FaultCode.agent_output_limit,
    "crashed": FaultCode.agent_crashed,
}


class Report(NamedTuple):
    """What came back from an agent: a claim, or the fault that stands in its place."""

    claim: list[Any] | None = None
    fault: Fault | None = None


def read_report(data: bytes) -> Report:
    """Read the report that the guest runner wrote. The agent may have forged any byte of it."""
    try:
        report = load_json(data)
    except InputError as error:
        return _failed("bad_return", f"the run's report is {error.what}")
    if not isinstance(report, dict):
        return _failed("bad_return", "the run's report is no object")
    status = str(report.get("status"))
    if status == "ok":
        return checked_claim(report.get("claim"))
    if status == "output_limit":
        return _failed("output_limit", f"agent_main returned {report.get('size')} bytes")
    what = clean_text(str(report.get("what", "")))
    return _failed(status if status in _CODES else "bad_return", what)


def checked_claim(claim: Any) -> Report:
    """A list of objects, or a bad_return fault."""
    if not isinstance(claim, list):
        what = f"agent_main returned {type(claim).__name__}, not a list of steps"
        return _failed("bad_return", what)
    for number, step in enumerate(claim, start=1):
        if not isinstance(step, dict):
            what = f"step {number} of what agent_main returned is {type(step).__name__}, no object"
            return _failed("bad_return", what)
    return Report(claim=claim)


def bad_source(what: str) -> Report:
    """The file cannot be an agent."""
    return _failed("bad_source", what)


def crashed(what: str) -> Report:
    """The agent raised, or its process died."""
    return _failed("crashed", what)


def timed_out(seconds: float) -> Report:
    """The wall clock stopped it."""
    what = f"the agent was stopped after {seconds:g} s"
    return Report(fault=Fault(code=FaultCode.agent_timed_out, what=what))


def too_much(limit: int) -> Report:
    """The return value is over the cap."""
    return _failed("output_limit", f"agent_main returned more than {limit} bytes")


def overran(finding: Finding) -> Report:
    """The watchdog stopped it: out of memory is a crash, the rest is over a limit of output."""
    what = f"the agent was stopped: {finding.what}"
    return _failed("crashed" if finding.reason == "oom" else "output_limit", what)


def _failed(status: str, what: str) -> Report:
    remedy = TEMPLATE if status in ("bad_source", "bad_return") else ""
    return Report(fault=Fault(code=_CODES[status], what=what[:500], remedy=remedy))
