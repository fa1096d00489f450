"""How it is told whether an attack got through; each oracle's first line is what the docs say.

An oracle believes what the host saw. What the attacker says of itself counts where it tells of an
escape; that it had a try at all is checked too, so that no test passes because nothing happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from palio.broker.chain import verify_chain
from palio.broker.claim import MAX_SENTENCES
from palio.broker.journal import read_entries
from palio.judging.evidence import EvidenceJudge
from palio.judging.richness import richness_verdict
from palio.records import QUALITY_BINS, Blame, Ending, FaultCode, Trajectory, from_json, to_json
from palio.sandbox.spec import SandboxLimits, SandboxOutcome
from tests.redteam.host import Host
from tests.sandbox.enclosures import processes_of

OWN = ("/tmp", "/dev/shm")
"""All that an agent may write to."""


class Seen(NamedTuple):
    """One attack from the host's side.

    Attributes:
        journal: the file with all that passed through the broker.
        looked: what the host found when it looked in while the attack ran.
    """

    outcome: SandboxOutcome
    run: Trajectory
    host: Host
    limits: SandboxLimits
    journal: Path
    looked: Any = None

    @property
    def told(self) -> Any:
        """The attacker's only step; an agent that returned nothing had no try."""
        assert self.outcome.fault is None, self.outcome
        return self.outcome.claim[0]


def settled(seen: Seen) -> None:
    """After any attack no process is left, only the agent is to blame, the record is sound."""
    outcome, run = seen.outcome, seen.run
    assert not processes_of(seen.host.mark)
    assert outcome.fault is None or outcome.fault.blame is Blame.agent, outcome.fault
    assert run.ending is not Ending.infra
    assert to_json(from_json(to_json(run), Trajectory)) == to_json(run)
    assert len(to_json(run)) < 40_000_000
    assert not [text for text in texts_of(msgspec.to_builtins(run)) if "\x00" in text]
    assert verify_chain(seen.journal).problem == ""
    assert [entry["kind"] for entry in read_entries(seen.journal)][-1] == "close"
    assert seen.journal.stat().st_size < 100_000_000
    assert len(run.differences) <= 2 * MAX_SENTENCES + 2
    for text in (outcome.stdout, outcome.stderr):
        assert "\x00" not in text.encode("utf-8").decode("utf-8")
        assert len(text) <= seen.limits.output_bytes
    assert seen.host.unchanged()


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a tree of builtins."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from texts_of(key)
            yield from texts_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_of(each)


def processes_capped(seen: Seen) -> None:
    """No more processes and threads than the limit; none is left."""
    assert 5 <= seen.told["processes"] <= seen.limits.pids + 2


def memory_capped(seen: Seen) -> None:
    """Ended for memory, as the agent's crash, before it had three times its limit."""
    assert seen.outcome.reason == "oom"
    assert seen.outcome.fault is not None
    assert seen.outcome.fault.code == FaultCode.agent_crashed
    assert seen.outcome.usage.peak_rss_mb is not None
    assert seen.outcome.usage.peak_rss_mb < 3 * (seen.limits.memory_bytes >> 20)


def no_hidden_memory(seen: Seen) -> None:
    """Not one byte of memory that belongs to no process."""
    assert seen.told == {"memfd": 0, "shmget": 0}


def files_capped(seen: Seen) -> None:
    """Files without a name fill no more than the two writable folders hold."""
    assert (1 << 20) <= seen.told["bytes"] <= seen.limits.tmp_bytes + seen.limits.shm_bytes


def disk_capped(seen: Seen) -> None:
    """Only /tmp and /dev/shm take files, and no more bytes than their limits."""
    filled = seen.told["filled"]
    assert set(filled) == set(OWN)
    assert 0 < filled["/tmp"] <= seen.limits.tmp_bytes
    assert 0 < filled["/dev/shm"] <= seen.limits.shm_bytes


def inodes_capped(seen: Seen) -> None:
    """No space left at the limit, or stopped soon after it (reason `output_limit`)."""
    if seen.outcome.reason == "output_limit":
        assert seen.outcome.fault is not None
        assert f"more than {seen.limits.inodes} files" in seen.outcome.fault.what
    else:
        assert 100 < seen.told["made"] <= seen.limits.inodes


def lengths_capped(seen: Seen) -> None:
    """No file grows longer than the limit, full or not."""
    assert all(length <= seen.limits.file_bytes for length in seen.told.values())
    assert set(seen.told) == {"truncate", "seek", "fallocate"}


def descriptors_capped(seen: Seen) -> None:
    """No more open descriptors than the limit, nor many more under way in sockets."""
    assert 10 < seen.told["open"] <= seen.limits.open_files
    assert seen.told["under_way"] <= seen.limits.open_files + 253


def stopped(seen: Seen) -> None:
    """Ended at its time (reason `timeout`), with everything that it started."""
    assert seen.outcome.reason == "timeout"
    assert seen.run.ending is Ending.timed_out
    assert seen.outcome.usage.wall_s >= seen.limits.seconds
    assert seen.outcome.usage.wall_s < seen.limits.seconds + 10  # 0.1 s on an idle machine
    assert seen.outcome.usage.kill_s is not None
    assert seen.outcome.usage.kill_s < 2  # under 0.1 s idle: tests/sandbox/test_conformance.py


def left_nothing(seen: Seen) -> None:
    """A normal end, and no daemon is left when it is told."""
    assert (seen.outcome.reason, seen.outcome.claim) == ("exited", [])


def flood_stopped(seen: Seen) -> None:
    """Stopped (reason `output_limit`) soon after the limit, a few kilobytes kept."""
    assert seen.outcome.reason == "output_limit"
    assert seen.outcome.usage.output_bytes < 3 * seen.limits.flood_bytes


def output_cut(seen: Seen) -> None:
    """The run goes on, the first kilobytes are kept, the rest is dropped."""
    assert (seen.outcome.reason, seen.outcome.claim) == ("exited", [])
    assert len(seen.outcome.stdout) == seen.limits.output_bytes
    assert seen.outcome.usage.output_bytes == 3_000_000


def output_clean(seen: Seen) -> None:
    """What is kept is text without NUL, in UTF-8."""
    assert seen.outcome.claim == []
    assert seen.outcome.stdout.startswith("a\ufffd")
    assert seen.outcome.stderr.count("a") == 200


def report_is_the_agents(seen: Seen) -> None:
    """Taken as a claim if it is a list of objects, else the agent's fault; never the host's."""
    assert seen.outcome.reason == "exited"
    if seen.outcome.fault is None:
        assert all(isinstance(step, dict) for step in seen.outcome.claim)
    else:
        assert seen.outcome.fault.code in (FaultCode.agent_bad_return, FaultCode.agent_crashed)
    assert seen.run.answer is None


def claim_is_read(seen: Seen) -> None:
    """It is compared with the record as far as it goes, and the record can be written and read."""
    assert seen.outcome.fault is None
    assert seen.run.differences
    assert str(seen.run.answer) == "1\ufffd\ufffd"


def broker_goes_on(seen: Seen) -> None:
    """Each gets an answer below 500 and the honest request after them its result."""
    assert all(200 <= status < 500 for status in seen.told["statuses"]), seen.told["statuses"]
    assert seen.told["last"] == 200
    assert seen.run.dispatches[-1].arguments == '{"q":"mug"}'


def no_secret_in_proc(seen: Seen) -> None:
    """No path of the host, no variable of its environment, no other process."""
    told = seen.told["told"]
    assert "self/cmdline" in told
    for key, text in told.items():
        assert not [secret for secret in seen.host.secrets if secret in text], key


def nothing_inherited(seen: Seen) -> None:
    """Three standard streams and the one socket to the host; nothing of the host's in process 1."""
    links = list(seen.told["own"].values())
    others = [link for each in seen.told["others"].values() for link in each.values()]
    assert len(links) <= 4
    assert sum(link.startswith("socket:") for link in links) == 1
    for link in (*links, *others):
        assert link == "/dev/null" or link.startswith(("pipe:[", "socket:[", "anon_inode:")), link


def nobody_reached(seen: Seen) -> None:
    """Nobody came in on the host's sockets, and the attacker reached none."""
    assert seen.host.knocks() == []
    assert seen.told["reached"] == []


def no_way_out(seen: Seen) -> None:
    """Nothing outside answers, no name is found, no other kind of socket can be made."""
    told = seen.told
    assert set(told.pop("interfaces")) <= {"lo"}
    assert not any(told.values()), told
    assert set(told) == {"connected", "asked", "name", "families", "devices"}


def no_right_gained(seen: Seen) -> None:
    """Every call fails; no capability; no new privileges; process 1 is closed and limited too."""
    assert seen.told["worked"] == []
    status = seen.told["status"]
    assert all(status[name].strip("0") == "" for name in status if name.startswith("Cap")), status
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    init = seen.told["init"]
    assert 0 < int(init["Max processes"]) <= seen.limits.pids
    assert 0 < int(init["Max open files"]) <= seen.limits.open_files
    assert 0 < int(init["Max file size"]) <= seen.limits.file_bytes
    assert seen.told["memory"] is False


def nothing_found(seen: Seen) -> None:
    """No byte of the suite or of another miner's file; the folders are empty."""
    read = seen.told["read"]
    assert "/agent/agent.py" in read or len(read) > 100
    for path, text in read.items():
        assert seen.host.canary not in text, path
    assert (seen.told["folders"]["/tmp"], seen.told["folders"]["/dev/shm"]) == (0, 0)


def outputs_refused(seen: Seen) -> None:
    """A host that collects reads regular files only, follows nothing, waits for nobody."""
    assert not any(seen.told["refused"].values()), seen.told
    assert all(seen.told["made"].values()), seen.told
    read = {name: data for name, data in seen.looked.items() if data is not None}
    assert read.pop("honest") == b"honest"
    assert all(data == b"" for data in read.values()), read
    for name in ("link", "zero", "loop", "up", "pipe", "socket", "folder", "long"):
        assert name in seen.looked
        assert seen.looked[name] is None


def nothing_climbed(seen: Seen) -> None:
    """No member is written outside /tmp."""
    assert seen.told == {"climbed": []}


def poison_stays(seen: Seen) -> None:
    """Start-up files can be written to /tmp and /dev/shm alone; the next run finds none."""
    assert seen.told["wrote"]
    assert all(path.startswith((OWN[0] + "/", OWN[1] + "/")) for path in seen.told["wrote"])


def too_long(seen: Seen) -> None:
    """Refused as over the limit of output; nothing of it is kept."""
    assert seen.outcome.fault is not None
    assert seen.outcome.fault.code == FaultCode.agent_output_limit
    assert (seen.outcome.claim, seen.run.ending) == (None, Ending.invalid)
    assert len(to_json(seen.run)) < 10_000


def record_bounded(seen: Seen) -> None:
    """The whole is refused (413), the pieces once the run's bytes are used up (403)."""
    assert seen.told["at_once"] in (0, 413)
    assert (seen.told["pieces"][0], seen.told["pieces"][-1]) == (200, 403)


def forgery_named(seen: Seen) -> None:
    """The record stands; each made-up call, result and answer is named."""
    told = "\n".join(seen.run.differences)
    assert seen.run.answer == "1"
    assert "claims another result of find_product" in told
    assert "view_product_information" in told
    assert 'answers "2", the last recorded answer is "1"' in told
    assert "shows the model a result of find_product" in told


def one_id_one_call(seen: Seen) -> None:
    """Only the first call counts as the model's; the others are `replayed` or `mismatch`."""
    statuses = [event.nonce for event in seen.run.dispatches]
    assert statuses[0] == "valid"
    assert set(statuses[1:]) <= {"replayed", "mismatch"}
    assert [event.emitted_by is not None for event in seen.run.dispatches] == [True] + [False] * 3
    assert richness_verdict(seen.run).emitted == 1


def answer_is_final(seen: Seen) -> None:
    """Nothing is carried out after the end: no tool, no model call; the first answer stands."""
    assert (seen.run.answer, seen.run.ending) == ("1", Ending.terminated)
    assert seen.told["said"] == 0
    assert seen.run.inferences == ()
    late = seen.run.dispatches[3:]
    assert late
    assert all("terminated" in event.error for event in late)


def guess_named(seen: Seen) -> None:
    """Named as an answer that no result before it had shown."""
    assert seen.run.answer == "1"
    assert [each for each in seen.run.differences if 'the answer "1" stands in no' in each]


def table_pays_little(seen: Seen) -> None:
    """Named as an answer that no result showed; thinking for show passes no gate but length."""
    guess_named(seen)
    verdict = EvidenceJudge().verdict(seen.run)
    assert [gate.passed for gate in verdict.gates] == [True, False]
    assert verdict.quality == QUALITY_BINS[1]
    assert richness_verdict(seen.run).richness is None


def calls_capped(seen: Seen) -> None:
    """No more calls are carried out than the budget has; the run ends by its time."""
    assert seen.outcome.reason in ("timeout", "exited")
    done = [event for event in seen.run.dispatches if not event.error]
    assert 0 < len(done) <= 400
    assert len(seen.run.dispatches) <= 405
