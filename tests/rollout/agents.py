"""Specs of small agents written for these tests, and jobs over a small synthetic world."""

from __future__ import annotations

import textwrap
from functools import cache
from pathlib import Path

from palio.agents.spec import AgentSpec, agent_from_file
from palio.records import Problem
from palio.rollout import Job
from palio.world.synthesis.config import compact_config
from palio.world.synthesis.synthesise import synthesise
from palio.world.world import COMPACT, World

ANSWERS = """
from src.agent.agent_interface import execute_tool_call

def agent_main(problem):
    rows = execute_tool_call("find_product", {"q": problem["query"]})["result"]
    execute_tool_call("recommend_product", {"product_ids": rows[0]["product_id"]})
    execute_tool_call("terminate", {})
    return []
"""


def written(folder: Path, source: str = ANSWERS, name: str = "written") -> AgentSpec:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return agent_from_file(path, name=name)


@cache
def small(seed: int = 3) -> tuple[World, tuple[Problem, ...]]:
    made = synthesise(compact_config(seed, products=300, problems=30))
    return World.build(made.catalogue, COMPACT), made.problems


def jobs(*specs: AgentSpec, problems: int = 6, seed: int = 0) -> list[Job]:
    world, all_problems = small()
    return [
        Job(spec, problem, world, seed, "s")
        for problem in all_problems[:problems]
        for spec in specs
    ]
