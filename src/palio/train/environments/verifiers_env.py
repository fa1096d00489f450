"""verifiers' environment: the shop's problems as tasks, palio's harness and tools, palio's scorer.

`load_environment` gives an environment; a package that `palio corpus export --to verifiers` wrote
gives the same one by its id, `palio-shop`. The harness is the one of every race and evaluation, so
that a model is trained under the prompts that it is measured under; with `mcp = true` the tools are
offered over MCP to any other harness instead. Either way the reward replays the calls of the trace.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from palio.agents.spec import policy_agent
from palio.broker.first_request import FirstRequest
from palio.broker.limits import Limits
from palio.broker.upstream import HttpUpstream, Upstream
from palio.records import (
    Blame,
    InputError,
    MissingDependencyError,
    Problem,
    Trajectory,
    from_json,
)
from palio.rollout.problem import run_problem
from palio.sandbox.inline import InlineDriver
from palio.train.environments.exporting import PACKAGE, TASKS, ShopTask
from palio.train.environments.shop import SETTINGS, TERMINATE, Call, shop_at
from palio.world.lines import read_lines

try:
    import verifiers.v1 as vf  # type: ignore[import-not-found]

    from palio.train.environments.verifiers_mcp import ShopState, ShopTools, ShopToolsConfig
except ImportError as failed:
    raise MissingDependencyError(
        f"this environment needs verifiers 0.4: {failed}",
        remedy="pip install 'verifiers>=0.4,<0.5' where you train",
    ) from failed

__all__ = ["PolicyHarness", "ShopTaskset"]

SECONDS = 3600.0
"""Wall clock of a rollout; verifiers has time-outs of its own, which come first."""
_PLAYS = ThreadPoolExecutor(1024, thread_name_prefix="palio-verifiers")
"""Rollouts wait in threads of their own. Asyncio's are 32 at most, and verifiers renders and hashes
the requests of rollouts there: with rollouts in all of them none would ever be answered."""
_MOST_BYTES = 16 << 20
_PLACE: dict[str, Path] = {}


def here(folder: Path) -> None:
    """Say where tasks and settings lie; the exported package calls this when it is imported."""
    _PLACE["folder"] = folder


def load_environment(folder: str | Path, *, pool: str = "train", mcp: bool = False) -> Any:
    """The environment of an export: tasks, tools and rewards, played by palio's harness.

    Args:
        folder: what `palio corpus export --to verifiers --out` named.
        pool: train or development.
        mcp: offer the tools over MCP, for a harness other than palio's.

    Raises:
        InputError: the folder holds no tasks of that pool.
    """
    place = Path(folder) / PACKAGE
    if not any(True for _ in _tasks(place, pool)):
        raise InputError(
            f"no tasks of pool {pool!r}", where=str(place), remedy="train, development"
        )
    # verifiers finds task sets by module name, also where the package is not installed
    sys.modules.setdefault(PACKAGE, sys.modules[__name__])
    taskset = ShopConfig(id=PACKAGE, folder=str(place), pool=pool, mcp=mcp)
    agent = vf.AgentConfig(runtime=vf.SubprocessConfig())
    return vf.load_environment(vf.SingleAgentEnvConfig(taskset=taskset, agent=agent))


def _tasks(place: Path, pool: str) -> Iterator[ShopTask]:
    for line in read_lines(place / TASKS, max_bytes=_MOST_BYTES):
        task = from_json(line.data or b"", ShopTask, where=f"{place / TASKS}:{line.number}")
        if task.pool == pool:
            yield task


def calls_of(trace: Any) -> tuple[Call, ...]:
    """The calls that the model made, in order; those of the conversation's last branch."""
    branches = trace.branches
    return tuple(
        Call(call.name, call.arguments)
        for message in (branches[-1].messages if branches else ())
        if message.role == "assistant"
        for call in message.tool_calls or ()
    )


class ShopConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Settings under `--env.taskset.*`.

    Attributes:
        folder: of tasks and settings; "": the installed package's own.
        pool: train or development.
        mcp: offer the tools over MCP, to harnesses other than palio's.
    """

    folder: str = ""
    pool: str = "train"
    mcp: bool = False

    @property
    def place(self) -> Path:
        """Folder of tasks and settings."""
        found = Path(self.folder) if self.folder else _PLACE.get("folder")
        if found is None:
            raise InputError(
                "no tasks", remedy="`palio corpus export --to verifiers` writes a package with them"
            )
        return found


class ShopData(vf.TaskData):  # type: ignore[misc]
    """One task; `problem` is JSON text that no model sees."""

    problem: str
    settings: str


class ShopProblem(vf.Task[ShopData, ShopState]):  # type: ignore[misc]
    """A problem with its rewards and measures."""

    @property
    def problem(self) -> Problem:
        """What is asked, with its targets."""
        return from_json(self.data.problem.encode(), Problem, where="task")

    async def setup(self, trace: Any, runtime: Any) -> None:  # noqa: ARG002
        """Tell the tool servers which catalogue the rollout shops in."""
        trace.state.catalogue = self.problem.catalogue

    @vf.stop  # type: ignore[untyped-decorator]
    async def terminated(self, trace: vf.Trace) -> bool:
        """The model ended the session."""
        return any(call.tool == TERMINATE for call in calls_of(trace))

    @vf.reward  # type: ignore[untyped-decorator]
    async def success(self, trace: vf.Trace) -> float:
        """1 for a success under the profile, else 0.

        Raises:
            RuntimeError: it cannot be scored; verifiers then records an error and no reward.
        """
        marks = await self._marks(trace)
        if marks["unscored"]:
            raise RuntimeError("the outcome scorer could not score this rollout")
        return marks["score"]

    @vf.metric  # type: ignore[untyped-decorator]
    async def strict(self, trace: vf.Trace) -> float:
        """1 for a success under the strict profile."""
        return (await self._marks(trace))["strict"]

    @vf.metric  # type: ignore[untyped-decorator]
    async def rule(self, trace: vf.Trace) -> float:
        """Mean rule score in [0, 1]."""
        return (await self._marks(trace))["rule"]

    async def _marks(self, trace: Any) -> dict[str, float]:
        shop = shop_at(self.data.settings)
        return await asyncio.to_thread(shop.marks, self.problem, calls_of(trace))


class ShopTaskset(vf.Taskset[ShopProblem, ShopConfig]):  # type: ignore[misc]
    """The problems of a pool, in suite order."""

    def load(self) -> Iterable[ShopProblem]:
        """Every task of the pool."""
        place = self.config.place
        for task in _tasks(place, self.config.pool):
            data = ShopData(
                id=from_json(task.problem.encode(), Problem).problem_id,
                prompt=task.query,
                system_prompt=task.system or None,
                problem=task.problem,
                settings=str(place / SETTINGS),
            )
            yield ShopProblem(data, self.config.task)

    @classmethod
    def toolsets(cls, config: ShopConfig) -> list[ShopTools]:
        """The tools over MCP where they are wanted."""
        settings = str(config.place / SETTINGS)
        return [ShopTools(ShopToolsConfig(settings=settings))] if config.mcp else []


class PolicyConfig(vf.HarnessConfig):  # type: ignore[misc]
    """Settings of palio's harness: none of its own."""


class PolicyHarness(vf.Harness[PolicyConfig]):  # type: ignore[misc]
    """palio's policy harness in this process; every completion goes through verifiers' endpoint."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,  # noqa: ARG002 - verifiers writes it from the completions
        runtime: Any,  # noqa: ARG002 - nothing runs in it
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],  # noqa: ARG002 - the tools are in this process
        data: Any,
    ) -> Any:
        """Play one task to its end.

        An exit other than 0 tells verifiers that the rollout is an error: one that ends cleanly
        after a call of the model failed would be rewarded for what it had done so far.
        """
        problem = from_json(data.problem.encode(), Problem, where="task")
        shop = shop_at(data.settings)

        def play() -> Trajectory:
            with HttpUpstream(endpoint, secret, timeout_s=SECONDS, retries=0) as upstream:
                return run_problem(
                    policy_agent("verifiers", ctx.model),
                    problem,
                    shop.worlds[problem.catalogue],
                    driver=InlineDriver(),
                    upstream=FirstRequest(Unseeded(upstream)),
                    limits=Limits(seconds=SECONDS),
                    tools=shop.tools,
                )

        record = await asyncio.get_running_loop().run_in_executor(_PLAYS, play)
        fault = record.fault
        broken = fault is not None and fault.blame != Blame.agent
        return vf.ProgramResult(
            exit_code=int(broken), stdout=str(record.ending), stderr=fault.what if fault else ""
        )


class Unseeded:
    """Asks without a seed: verifiers decides how a rollout is sampled.

    It passes on what a request says and its own settings do not. Palio's broker gives equal runs
    equal seeds, so that all rollouts of a group would be copies of one.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One chat completion."""
        return self._upstream.complete(
            {name: value for name, value in body.items() if name != "seed"}
        )
