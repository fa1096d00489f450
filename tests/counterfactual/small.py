"""A small compact world, and agents recorded in it."""

from __future__ import annotations

from functools import cache

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.evaluate.counterfactual import ForkedRun, Forker, fork_runs
from palio.records import Problem, Trajectory
from palio.sandbox.inline import InlineDriver
from palio.world.synthesis.config import compact_config
from palio.world.synthesis.synthesise import synthesise
from palio.world.world import COMPACT, World

AGENTS = ("careful", "terse", "hasty", "narrator", "classifier")


@cache
def setting() -> tuple[World, tuple[Problem, ...]]:
    made = synthesise(compact_config(3, products=250, problems=9))
    return World.build(made.catalogue, COMPACT), made.problems


@cache
def forker(name: str) -> Forker:
    return Forker(find_agent(name), ScriptedUpstream(), InlineDriver())


@cache
def recorded(name: str) -> tuple[Trajectory, ...]:
    world, problems = setting()
    return tuple(forker(name).record(problem, world) for problem in problems)


@cache
def forked(name: str) -> tuple[ForkedRun, ...]:
    return fork_runs(recorded(name), {name: forker(name)}, [setting()[0]])
