"""One agent on one problem, end to end: the same path for a test, a race and a bulk run."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from palio.agents.harness import harness_settings
from palio.agents.oracle import oracle_answer
from palio.agents.spec import AgentSpec
from palio.broker.journal import BodyJournal
from palio.broker.limits import Limits
from palio.broker.policy import BrokerPolicy
from palio.broker.session import Clock, Session
from palio.broker.upstream import Upstream
from palio.records import AgentRef, Fault, FaultCode, PalioError, Problem, Trajectory
from palio.rollout.execution import offered_tools, run_tools
from palio.sandbox.spec import Driver, SandboxLimits, SandboxOutcome, SandboxSpec, SandboxUsage
from palio.world.tools import SEVEN_TOOLS
from palio.world.world import World, WorldConfig


class StoppedError(PalioError):
    """The run was stopped from outside before it ended: there is no record of it."""


def run_problem(
    spec: AgentSpec,
    problem: Problem,
    world: World,
    *,
    driver: Driver,
    upstream: Upstream | None = None,
    limits: Limits | None = None,
    seed: int = 0,
    attempt: int = 0,
    suite_id: str = "",
    tools: Sequence[str] = SEVEN_TOOLS,
    clock: Clock = time.monotonic,
    stop: threading.Event | None = None,
    journal: BodyJournal | None = None,
    policy: BrokerPolicy | None = None,
) -> Trajectory:
    """Run one agent on one problem and give the host's record of it.

    What the agent, the model server or the machine does wrong is the record's ending and fault;
    nothing of it is raised. An empty `spec.path` means the host-side oracle, never eligible.

    Args:
        spec: the agent.
        problem: the problem; the agent sees `problem.public()` only.
        world: the world of `problem.catalogue`.
        driver: how the agent's file is run.
        upstream: who answers its model calls.
        limits: budget and wall clock; also the sandbox's.
        seed: the run's seed; the spec's own is added.
        attempt: how many times this run was tried before because infrastructure failed.
        suite_id: stands in the record.
        tools: that the harness is told of, the only ones; less what cannot be (`offered_tools`).
        clock: seconds.
        stop: when set, the agent is killed.
        journal: where every body is written down; None: only the record is kept.
        policy: which models it may ask, and what is done with proofs of who emitted a call.

    Raises:
        StoppedError: `stop` was set before the run ended.
    """
    held, limits, seed = driver.capabilities, limits or Limits(), seed + spec.seed
    if journal is not None:
        _keep_source(journal, spec.path)
    with run_tools(world, tools, driver, seed, limits.seconds, clock) as toolbox:
        session = Session(
            *(agent_ref(spec), problem, world, upstream, limits, seed, clock),
            attempt=attempt,
            sampling=spec.sampling,
            settings=_settings(world.config, offered_tools(tools, driver, world, problem.kind)),
            suite_id=suite_id,
            isolation=held.isolation,
            eligible=spec.eligible and held.ranked and spec.path != "",
            **_treatment(policy),
            journal=journal.run() if journal is not None else None,
            toolbox=toolbox,
        )
        if not spec.path:
            return oracle_answer(session)
        return run_session(spec.path, driver, session, stop)


def _treatment(policy: BrokerPolicy | None) -> dict[str, Any]:
    return {"relay": policy.relay, "nonces": policy.nonces} if policy else {}


def _keep_source(journal: BodyJournal, path: str) -> None:
    with contextlib.suppress(OSError):  # the driver says what is wrong with the file, or the disk
        journal.source(Path(path).read_bytes())


def run_session(
    path: str, driver: Driver, session: Session, stop: threading.Event | None = None
) -> Trajectory:
    """Run an agent's file in a session that is made already; see `run_problem`."""
    sandbox = SandboxSpec(
        agent=path,
        problem=session.problem.public(),
        limits=SandboxLimits(seconds=session.limits.seconds),
        seed=session.seed,
    )
    outcome = _shielded_run(driver, sandbox, session, stop)
    if outcome.reason == "killed":
        where = f"{session.agent.name} on {session.problem.problem_id}"
        raise StoppedError("the run was stopped", where=where)
    return session.close(outcome.ending, outcome.fault, outcome.claim)


def agent_ref(spec: AgentSpec) -> AgentRef:
    """The ref as it stands in records: with the model that the spec names."""
    if spec.ref.model == spec.model:
        return spec.ref
    return msgspec.structs.replace(spec.ref, model=spec.model)


@lru_cache(maxsize=64)
def _settings(config: WorldConfig, tools: tuple[str, ...]) -> dict[str, Any]:
    """Made once a world: copying seven schemas is a fifth of an inline run."""
    settings: dict[str, Any] = msgspec.to_builtins(harness_settings(config, tools))
    return settings


def _shielded_run(
    driver: Driver, sandbox: SandboxSpec, session: Session, stop: threading.Event | None
) -> SandboxOutcome:
    """A driver's own bug fails this run, as the validator's fault, and no other."""
    try:
        return driver.run(sandbox, session, stop)
    except Exception as error:  # noqa: BLE001 - one broken sandbox must not stop a suite
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = f"the driver raised {type(error).__name__}: {error} ({last.name}:{last.lineno})"
        fault = Fault(
            code=FaultCode.sandbox_launch_failed,
            what=what[:300],
            remedy="this is a bug of palio: please report it",
        )
        return SandboxOutcome(reason="launch_failed", usage=SandboxUsage(wall_s=0.0), fault=fault)
