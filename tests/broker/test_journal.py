"""The journal holds whole bodies, written before they are acted on, bounded by the budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palio.broker.journal import BodyJournal, read_entries
from palio.broker.limits import Limits
from palio.broker.recording import read_recordings
from palio.broker.refusals import RefusedError, RunOver
from palio.broker.session import Session
from palio.broker.upstream import RejectedError
from palio.records import Ending, FaultCode, UpstreamError, digest
from tests.broker.conftest import Replies, completion

Open = Callable[..., Session]
TOOLS = [{"type": "function", "function": {"name": "find_product"}}]
ASK: list[dict[str, Any]] = [{"role": "user", "content": "a red mug"}]


def test_bodies_are_rebuilt_whole(open_session: Open, tmp_path: Path) -> None:
    first = completion("", ("c1", "find_product", '{"q":"mug"}'), extra={"kept": [1, None]})
    upstream = Replies(first, completion("done"), RejectedError("too long"))
    with BodyJournal(tmp_path) as journal:
        session = open_session(upstream, journal=journal.run(), sampling={"top_p": 0.5})
        asked = [{"messages": ASK, "tools": TOOLS, "stream": True, "model": "mine", "x": {"y": 1}}]
        said = session.complete(asked[0])["choices"][0]["message"]
        result = session.dispatch("find_product", '{"q":"mug"}', said["tool_calls"][0]["id"])
        tool = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"]}
        messages = [*ASK, said, {**tool, "content": result.result}]
        asked.append({"messages": messages, "tools": TOOLS})
        session.complete(asked[1])
        asked.append({"messages": ASK})
        with pytest.raises(RejectedError):
            session.complete(asked[2])
        run = session.close(claim=[{"completion": {}}])
    (recording,) = read_recordings(journal.path).recordings
    bodies = list(recording.bodies())
    own = json.loads(json.dumps(asked).replace(said["tool_calls"][0]["id"], "c1"))
    assert [body for body, _, _ in bodies] == own
    assert [sent for _, sent, _ in bodies] == upstream.bodies
    assert bodies[0][2] is not None
    assert bodies[0][2]["body"] == first
    assert bodies[2][2] is not None
    assert bodies[2][2]["error"] == {"what": "too long", "where": "", "remedy": ""}
    assert recording.closing is not None
    assert recording.closing["claim"] == [{"completion": {}}]
    assert recording.closing["digest_of_line"] == run.journal
    assert recording.closing["trajectory"] == digest(_without_journal(run))
    kinds = [entry["kind"] for entry in recording.entries]
    pairs = ["request", "response", "call", "result", *["request", "response"] * 2]
    assert kinds == ["open", *pairs, "close"]


def _without_journal(run: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(run, journal="")


def test_a_request_is_on_record_before_it_is_sent(open_session: Open, tmp_path: Path) -> None:
    seen: list[list[str]] = []

    class Looking:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            seen.append([entry["kind"] for entry in read_entries(journal.path)])
            return completion("x")

    class Tools:
        def call(self, name: str, arguments: Any) -> Any:
            from palio.world.tools import ToolReply

            seen.append([entry["kind"] for entry in read_entries(journal.path)])
            return ToolReply(result="[]")

    with BodyJournal(tmp_path) as journal:
        session = open_session(Looking(), journal=journal.run(), toolbox=Tools())
        session.complete({"messages": ASK})
        session.dispatch("find_product", {"q": "mug"})
    assert [kinds[-1] for kinds in seen] == ["request", "call"]


def test_a_record_that_cannot_be_written_ends_the_run_and_charges_nobody(
    open_session: Open, tmp_path: Path
) -> None:
    with BodyJournal(tmp_path) as journal:
        session = open_session(Replies(completion("x")), journal=journal.run())
        session.dispatch("find_product", {"q": "mug"})
        journal._chain._limit = 0
        for _ in range(2):
            with pytest.raises(RunOver, match="cannot be written"):
                session.dispatch("find_product", {"q": "mug"})
            with pytest.raises(RunOver, match="cannot be written"):
                session.complete({"messages": ASK})
        run = session.close()
    assert (run.ending, run.fault and run.fault.code) == (Ending.infra, FaultCode.record_unwritable)
    assert len(run.events) == 1


def test_what_an_agent_can_write_is_bounded_by_its_budget(
    open_session: Open, tmp_path: Path
) -> None:
    limits = Limits(bytes=100_000, calls=10**6, inferences=10**6)
    with BodyJournal(tmp_path) as journal:
        session = open_session(Replies(completion("x")), limits=limits, journal=journal.run())
        for n in range(300):
            session.dispatch("nothing", {"q": f"{n}" * 2000})
            for body in (
                {"messages": [{"role": "user", "content": f"{n}" * 3000}]},
                {"messages": ASK, "metadata": {"junk": f"{n}" * 3000}},
                {"messages": ASK, "tools": [{"type": "function", "junk": f"{n}" * (3000 + n)}]},
            ):
                try:
                    session.complete(body)
                except RefusedError:
                    continue
        session.close()
    assert journal.path.stat().st_size < 4 * limits.bytes


@pytest.mark.parametrize("clean", [True, False])
def test_dirty_bodies_are_written_too(open_session: Open, tmp_path: Path, clean: bool) -> None:
    with BodyJournal(tmp_path) as journal:
        reply = completion("nul \x00 and \ud800")
        session = open_session(Replies(reply), journal=journal.run())
        session.complete({"messages": [{"role": "user", "content": "\ud800\n\x00"}], "z": 10**40})
        session.dispatch("find_product", '{"q":"\n\x00"}', "\ud800")
        deep: list[Any] = []
        for _ in range(5000):
            deep = [deep]
        claim = [{"a": float("nan"), "b": "\ud800", "c": {1: 2}}]
        session.close(claim=claim if clean else [{"deep": deep}])
    assert [entry["kind"] for entry in read_entries(journal.path)][-1] == "close"


def test_runs_share_a_file_and_a_later_process_goes_on(open_session: Open, tmp_path: Path) -> None:
    for _ in range(2):
        with BodyJournal(tmp_path) as journal:
            journal.source(b"def agent_main(p): return []\n")
            sessions = [open_session(journal=journal.run()) for _ in range(3)]
            for session in sessions:
                session.dispatch("find_product", {"q": "mug"})
            for session in sessions[:2]:
                session.close()
    held = read_recordings(journal.path)
    assert [each.opening["run"] for each in held.recordings] == list(range(6))
    assert [each.closing is None for each in held.recordings] == [False, False, True] * 2
    assert len(held.sources) == 1


def test_an_upstream_s_fault_is_kept_with_its_code(open_session: Open, tmp_path: Path) -> None:
    error = UpstreamError("down", code=FaultCode.upstream_timed_out, retryable=True)
    with BodyJournal(tmp_path) as journal:
        session = open_session(Replies(error), journal=journal.run())
        with pytest.raises(UpstreamError):
            session.complete({"messages": ASK})
        session.close()
    (recording,) = read_recordings(journal.path).recordings
    (response,) = recording.of("response")
    assert response["error"]["code"] == FaultCode.upstream_timed_out
