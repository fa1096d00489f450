"""A recorded run is run again against its recorded replies, and must make the same record."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from palio.agents.oracle import oracle_answer
from palio.broker.chain import ChainReport, verify_chain
from palio.broker.journal import FILE, RunJournal
from palio.broker.limits import Limits
from palio.broker.nonce import Mint, NoncePolicy
from palio.broker.recording import (
    Departures,
    Held,
    MemoryChain,
    RecordedTools,
    RecordedUpstream,
    Recording,
    compare_entries,
    read_recordings,
)
from palio.broker.relay import RelayPolicy
from palio.broker.session import Session, ToolCaller
from palio.records import AgentRef, ConfigError, InputError, Problem, Record, Trajectory, digest
from palio.rollout.execution import CODE, run_tools, withheld_tools
from palio.rollout.problem import run_session
from palio.rollout.reading import read_trajectories
from palio.rollout.suite import RECORD
from palio.sandbox.spec import Driver
from palio.world.catalogue import Catalogue
from palio.world.tools import Toolbox
from palio.world.world import World, WorldConfig


class RecordCheck(Record, frozen=True):
    """Whether a run folder's journal holds, and whether its trajectories are those it tells of.

    Attributes:
        chain: the journal's chain.
        trajectories: how many trajectories name a line of the journal.
        problems: one sentence each; empty when everything holds.
    """

    chain: ChainReport
    trajectories: int
    problems: tuple[str, ...]


class RunReplay(Record, frozen=True):
    """One run beside its replay.

    Attributes:
        status: "identical": the same journal entries and the same trajectory, times aside.
        detail: the first departure, or why the run cannot be replayed.
        entries: journal entries compared.
    """

    trajectory_id: str
    problem_id: str
    agent: str
    status: Literal["identical", "departed", "skipped"]
    detail: str = ""
    entries: int = 0


def journal_path(folder: Path) -> Path:
    """The journal of a run folder.

    Raises:
        InputError: it has none.
    """
    path = folder / RECORD / FILE
    if not path.is_file():
        raise InputError("this run folder holds no journal", where=str(folder))
    return path


def check_record(folder: Path) -> RecordCheck:
    """Check every byte of the journal, and each trajectory against its run's last entry.

    Raises:
        InputError: the folder has no journal, or a line of its trajectories cannot be read.
    """
    path = journal_path(folder)
    chain = verify_chain(path)
    problems = [chain.problem] if chain.problem else []
    count = 0
    if not chain.problem or chain.torn:
        told = {
            recording.closing["digest_of_line"]: recording.closing["trajectory"]
            for recording in read_recordings(path).recordings
            if recording.closing is not None
        }
        for run in read_trajectories(folder):
            if run.journal:
                count += 1
                problems += _against(run, told)
    return RecordCheck(chain=chain, trajectories=count, problems=tuple(problems))


def _against(run: Trajectory, told: Mapping[str, str]) -> list[str]:
    where = f"trajectory {run.trajectory_id}"
    if run.journal not in told:
        return [f"{where} names a line that the journal does not hold: its end was cut off"]
    if told[run.journal] != digest(msgspec.structs.replace(run, journal="")):
        return [f"{where} is not the one that the journal tells of: it was changed"]
    return []


def replay_runs(
    folder: Path,
    driver_of: Callable[[str], Driver],
    *,
    problems: Collection[str] = (),
    worlds: Mapping[str, World] | None = None,
) -> Iterator[RunReplay]:
    """Run each recorded run again, in a driver of the same isolation.

    Args:
        folder: the run folder.
        driver_of: gives a driver for the isolation that a run was recorded under.
        problems: ids; empty: all.
        worlds: by catalogue digest; a run whose world is given has its tool calls carried out
            anew, other runs get the recorded results.

    Raises:
        IntegrityError: the journal's chain does not hold.
        InputError: there is no journal, or it holds no run of one of `problems`.
    """
    held = read_recordings(journal_path(folder))
    chosen = [
        recording
        for recording in held.recordings
        if not problems or recording.opening["problem"]["problem_id"] in problems
    ]
    unknown = set(problems) - {each.opening["problem"]["problem_id"] for each in chosen}
    if unknown:
        raise InputError(f"no run of {', '.join(sorted(unknown))} is recorded", where=str(folder))
    for recording in chosen:
        yield _replayed(recording, held, driver_of, worlds or {})


def _replayed(
    recording: Recording,
    held: Held,
    driver_of: Callable[[str], Driver],
    worlds: Mapping[str, World],
) -> RunReplay:
    opening = recording.opening
    agent = msgspec.convert(opening["agent"], AgentRef)
    made = RunReplay(
        trajectory_id=recording.trajectory_id,
        problem_id=opening["problem"]["problem_id"],
        agent=agent.name,
        status="skipped",
        entries=len(recording.entries),
    )
    obstacle = _obstacle(recording, held, agent)
    if obstacle:
        return msgspec.structs.replace(made, detail=obstacle)
    departures, chain = Departures(), MemoryChain()
    with _tools(recording, departures, driver_of, worlds) as tools:
        session = _session(recording, agent, tools, departures, chain, worlds)
        _run_again(session, held.sources.get(agent.digest), driver_of)
    found = departures.found[0] if departures.found else ""
    detail = found or compare_entries(recording.entries, chain.entries)
    status: Literal["identical", "departed"] = "departed" if detail else "identical"
    return msgspec.structs.replace(made, status=status, detail=detail)


def _run_again(session: Session, source: str | None, driver_of: Callable[[str], Driver]) -> None:
    if source is None:
        oracle_answer(session)
        return
    with tempfile.TemporaryDirectory(prefix="palio-replay-") as place:
        path = Path(place) / "agent.py"
        path.write_bytes(source.encode())
        path.chmod(0o644)
        Path(place).chmod(0o755)
        run_session(str(path), driver_of(session.isolation), session)


def _obstacle(recording: Recording, held: Held, agent: AgentRef) -> str:
    """Why a run cannot be replayed, "" if it can."""
    if recording.closing is None:
        return "the run was killed before its end"
    if recording.closing["ending"] == "timed_out":
        return "the run was ended by the clock"
    if agent.digest not in held.sources and agent.kind != "oracle":
        return "the agent's file is not in the journal"
    return ""


def _tools(
    recording: Recording,
    departures: Departures,
    driver_of: Callable[[str], Driver],
    worlds: Mapping[str, World],
) -> AbstractContextManager[ToolCaller]:
    """Who carries out the tool calls: the world anew, else what is recorded."""
    opening = recording.opening
    world = worlds.get(opening["catalogue"]["digest"])
    if world is None:
        return nullcontext(RecordedTools(recording, departures))
    names = [tool["function"]["name"] for tool in opening["settings"].get("tools", ())]
    if CODE not in names:
        return nullcontext(Toolbox(world, withheld=withheld_tools(names)))
    return run_tools(world, names, driver_of(opening["isolation"]), opening["seed"])


def _session(
    recording: Recording,
    agent: AgentRef,
    tools: ToolCaller,
    departures: Departures,
    chain: MemoryChain,
    worlds: Mapping[str, World],
) -> Session:
    opening = recording.opening
    world = worlds.get(opening["catalogue"]["digest"])
    mint = Mint(
        msgspec.convert(opening["nonces"], NoncePolicy),
        recording.trajectory_id,
        bytes.fromhex(opening["nonce_key"]),
        recording.expiries(),
    )
    return Session(
        agent,
        msgspec.convert(opening["problem"], Problem),
        world or _absent_world(opening),
        RecordedUpstream(recording, departures),
        msgspec.convert(opening["limits"], Limits),
        opening["seed"],
        attempt=opening["attempt"],
        sampling=opening["sampling"],
        settings=opening["settings"],
        suite_id=opening["suite_id"],
        isolation=opening["isolation"],
        eligible=opening["eligible"],
        relay=msgspec.convert(opening["relay"], RelayPolicy),
        journal=RunJournal(chain, 0),
        mint=mint,
        toolbox=tools,
    )


def _absent_world(opening: Mapping[str, Any]) -> World:
    """A world that nobody searches: the recorded results stand in for it."""
    catalogue = Catalogue(opening["catalogue"]["id"], {})
    catalogue.__dict__["digest"] = opening["catalogue"]["digest"]
    return World(catalogue, cast("Any", None), msgspec.convert(opening["world"], WorldConfig))


def driver_name(isolation: str) -> str:
    """The name of the driver whose runs carry the brand `isolation`.

    Raises:
        ConfigError: runs with that brand come from no driver.
    """
    names = {"none": "unsafe-subprocess"}
    if not isolation:
        raise ConfigError("this run names no isolation")
    return names.get(isolation, isolation)
