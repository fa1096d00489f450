"""A small compact world, and runs of bundled agents in it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.agents.shortcut import with_table
from palio.corpus.replay import Replayer
from palio.records import Problem, Trajectory
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World

SEED = 7


@cache
def world_and_problems(
    products: int = 600, problems: int = 18
) -> tuple[World, tuple[Problem, ...]]:
    made = synthesise(compact_config(SEED, products=products, problems=problems))
    return World.build(made.catalogue, COMPACT), made.problems


@cache
def replayer() -> Replayer:
    return Replayer(world_and_problems()[0])


@cache
def runs(agent: str) -> tuple[Trajectory, ...]:
    """One run of a bundled agent on each problem."""
    world, problems = world_and_problems()
    spec, driver, upstream = find_agent(agent), InlineDriver(), ScriptedUpstream()
    return tuple(
        run_problem(spec, problem, world, driver=driver, upstream=upstream) for problem in problems
    )


def table_runs(folder: Path) -> tuple[Trajectory, ...]:
    """Runs of a shortcut that knows every answer."""
    world, problems = world_and_problems()
    spec, driver = with_table(problems, folder / "table.py"), InlineDriver()
    return tuple(
        run_problem(spec, problem, world, driver=driver, upstream=None) for problem in problems
    )
