"""The whole red-team list in one table: name, what it tries, agent file, oracle.

An attack is a file in `agents/` and runs under every driver for strangers' code that works here.
What another package's tests show already is named by its test. What needs a part that palio does
not have yet is in `LATER`. `docs/red-team.md` is written from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tests.broker.conftest import completion
from tests.redteam import oracles
from tests.redteam.oracles import Seen

MIB = 1 << 20
SMALL: dict[str, Any] = {
    "seconds": 30.0,
    "memory_bytes": 256 * MIB,
    "pids": 24,
    "open_files": 64,
    "tmp_bytes": 12 * MIB,
    "shm_bytes": 4 * MIB,
    "inodes": 1500,
    "flood_bytes": 5_000_000,
}
"""Limits of an attack, so that reaching them takes little."""
ASKS = (completion("", ("c1", "find_product", '{"q":"red mug"}')), completion("done"))
"""What the model says."""


@dataclass(frozen=True)
class Attack:
    """One line of the table.

    Attributes:
        listed: what it is of the list in `WHOLE_LIST`.
        agent: file in `agents/`, without .py.
        oracle: what must hold afterwards, beside `oracles.settled`.
        limits: other limits than `SMALL`.
        told: what the agent is told beside where the host's things lie.
        model: what the model answers.
        beside: a neighbour runs all the while, and its record must be the same as alone.
        unsafe: under the driver that encloses nothing: "held" by the host's half alone, "escapes"
            and its oracle must say so, or "never" run there because that would do harm.
        slow: takes more than ten seconds.
    """

    name: str
    listed: str
    agent: str
    oracle: Callable[[Seen], None]
    limits: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)
    model: tuple[Any, ...] = ASKS
    beside: bool = False
    unsafe: Literal["held", "escapes", "never"] = "never"
    slow: bool = False


class Elsewhere(NamedTuple):
    """An attack that the test named here runs."""

    name: str
    listed: str
    test: str
    oracle: str


class Later(NamedTuple):
    """An attack on a part that is not built."""

    name: str
    listed: str
    why: str


WHOLE_LIST = (
    "fork, thread, memory (single, many children, memfd, tmpfs), disk, inode bombs; sparse files; "
    "fd exhaustion; spin; sleep; ignored SIGTERM; double-fork daemon; huge stdout, no newline, NUL "
    "and invalid UTF-8; JSON bombs, deep nesting, NaN, lone surrogates; /proc/1/environ, cmdline, "
    "mountinfo; inherited fds; docker.sock, abstract sockets; host loopback, link-local metadata "
    "address, DNS, AF_PACKET, AF_VSOCK; nested user namespace, mount, io_uring, bpf, keyctl, "
    "ptrace; suite, ground truth, other miners' code on disk; symlink, hardlink, FIFO, device "
    "outputs; ../ in archives; sitecustomize and .pth poisoning; a 50 MB dialogue; claimed tool "
    "results that were never received; duplicate tool-call ids; calls after the final answer; "
    "recommend before view; answers keyed by problem hash; slow-loris and 10k parallel calls at "
    "the broker; kill -9 at every journal step; two validators with one lease; late results"
)


def _bombs() -> tuple[Attack, ...]:
    small, o = {"memory_bytes": 96 * MIB}, oracles
    return (
        Attack("fork bomb", "fork", "fork_bomb", o.processes_capped, beside=True),
        Attack("thread bomb", "thread", "thread_bomb", o.processes_capped, beside=True),
        Attack("memory, one process", "memory (single", "memory_one", o.memory_capped, small,
               beside=True),
        Attack("memory, many children", "many children", "memory_children", o.memory_capped, small,
               beside=True),
        Attack("memory of no process", "memfd", "memory_memfd", o.no_hidden_memory),
        Attack("memory as files", "tmpfs)", "memory_tmpfs", o.files_capped, beside=True),
        Attack("disk bomb", "disk", "disk_bomb", o.disk_capped, beside=True),
        Attack("inode bomb", "inode bombs", "inode_bomb", o.inodes_capped, beside=True),
        Attack("sparse files", "sparse files", "sparse_files", o.lengths_capped),
        Attack("descriptors", "fd exhaustion", "descriptors", o.descriptors_capped, beside=True),
    )  # fmt: skip


def _never_ending() -> tuple[Attack, ...]:
    second, o = {"seconds": 1.0}, oracles
    return (
        Attack("spin", "spin", "spin", o.stopped, second, beside=True, unsafe="held"),
        Attack("sleep", "sleep", "sleep", o.stopped, second, unsafe="held"),
        Attack("no signal wanted", "ignored SIGTERM", "ignore_sigterm", o.stopped, second,
               unsafe="held"),
        Attack("daemons", "double-fork daemon", "daemon", o.left_nothing),
    )  # fmt: skip


def _output() -> tuple[Attack, ...]:
    o = oracles
    return (
        Attack("flood of output", "huge stdout", "flood", o.flood_stopped, beside=True,
               unsafe="held"),
        Attack("one endless line", "no newline", "no_newline", o.output_cut, unsafe="held"),
        Attack("bytes that are no text", "NUL and invalid UTF-8", "raw_bytes", o.output_clean,
               unsafe="held"),
        *(
            Attack(f"forged report: {form}", listed, "forged_report", o.report_is_the_agents,
                   told={"form": form}, unsafe="held")
            for form, listed in (
                ("keys", "JSON bombs"), ("digits", "JSON bombs"), ("no JSON", "JSON bombs"),
                ("deep", "deep nesting"), ("deep objects", "deep nesting"), ("numbers", "NaN"),
                ("surrogates", "lone surrogates"), ("blame", "JSON bombs"),
            )
        ),
        Attack("strange values in a dialogue", "lone surrogates", "strange_claim", o.claim_is_read,
               unsafe="held"),
        Attack("JSON bombs at the broker", "JSON bombs", "strange_requests", o.broker_goes_on,
               beside=True, unsafe="held"),
        Attack("a dialogue of 50 MB", "a 50 MB dialogue", "long_dialogue", o.too_long,
               {"memory_bytes": 512 * MIB}, unsafe="held"),
        Attack("requests of 50 MB", "a 50 MB dialogue", "long_requests", o.record_bounded,
               {"memory_bytes": 512 * MIB}, beside=True, unsafe="held"),
    )  # fmt: skip


def _host() -> tuple[Attack, ...]:
    o = oracles
    return (
        Attack("secrets in /proc", "/proc/1/environ, cmdline, mountinfo", "proc_secrets",
               o.no_secret_in_proc, unsafe="escapes"),
        Attack("inherited descriptors", "inherited fds", "inherited_fds", o.nothing_inherited),
        Attack("sockets of the host", "docker.sock, abstract sockets", "host_sockets",
               o.nobody_reached, unsafe="escapes"),
        Attack("the host's loopback", "host loopback", "loopback", o.nobody_reached,
               unsafe="escapes"),
        Attack("the world outside", "link-local metadata address, DNS, AF_PACKET, AF_VSOCK",
               "outside", o.no_way_out),
        Attack("system calls", "nested user namespace, mount, io_uring, bpf, keyctl, ptrace",
               "kernel", o.no_right_gained),
        Attack("suite and other miners' code", "suite, ground truth, other miners' code on disk",
               "loot", o.nothing_found, unsafe="escapes"),
        Attack("outputs that are no files", "symlink, hardlink, FIFO, device outputs", "outputs",
               o.outputs_refused),
        Attack("climbing archives", "../ in archives", "archives", o.nothing_climbed),
        Attack("start-up files", "sitecustomize and .pth poisoning", "poison", o.poison_stays,
               beside=True),
    )  # fmt: skip


def _record() -> tuple[Attack, ...]:
    o = oracles
    show = completion("I compared all of them by price and colour, and 1 is best. " * 10)
    return (
        Attack("forged results", "claimed tool results that were never received",
               "forged_results", o.forgery_named, unsafe="held"),
        Attack("one id for all calls", "duplicate tool-call ids", "duplicate_ids",
               o.one_id_one_call, unsafe="held"),
        Attack("after the answer", "calls after the final answer", "after_answer",
               o.answer_is_final, unsafe="held"),
        Attack("answer first, search later", "recommend before view", "before_view",
               o.guess_named, unsafe="held"),
        Attack("table of answers", "answers keyed by problem hash", "answer_table",
               o.table_pays_little, model=(show,), unsafe="held"),
        Attack("slow loris", "slow-loris", "slow_loris", o.stopped,
               {"seconds": 1.5, "open_files": 256}, beside=True),
        Attack("10,000 calls at once", "10k parallel calls at the broker", "parallel_calls",
               o.calls_capped, {"seconds": 2.5, "open_files": 256, "pids": 64}, beside=True),
    )  # fmt: skip


ATTACKS = (*_bombs(), *_never_ending(), *_output(), *_host(), *_record())

ELSEWHERE = (
    Elsewhere(
        "kill -9 at every journal step", "kill -9 at every journal step",
        "tests/rollout/test_replay.py::test_killed_at_every_step_of_the_journal",
        "Another process goes on; nothing is lost and nothing is twice.",
    ),
    Elsewhere(
        "kill -9 of a whole suite", "kill -9 at every journal step",
        "tests/rollout/test_kill.py::test_killed_twice_and_resumed",
        "The resumed suite equals one that was never killed.",
    ),
    Elsewhere(
        "kill -9 of the host", "double-fork daemon",
        "tests/sandbox/test_orphans.py::test_a_spinning_agent_dies_with_its_killed_host",
        "No process of the sandbox outlives the host.",
    ),
    Elsewhere(
        "every filtered system call", "bpf",
        "tests/sandbox/test_seccomp.py",
        "The filter's verdict of each call, other architectures and x32 too.",
    ),
    Elsewhere(
        "an agent file that is none", "../ in archives",
        "tests/redteam/test_submissions.py",
        "Refused as a bad source without a sandbox; nothing waits and nothing is unpacked.",
    ),
)  # fmt: skip

LATER = (
    Later("two validators with one lease", "two validators with one lease",
          "needs the arena service, which hands out leases"),
    Later("late results", "late results", "needs the arena service, which takes results"),
)  # fmt: skip
