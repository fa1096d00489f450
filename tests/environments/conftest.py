"""A small corpus with its suite and catalogues on disk, and runs of two shoppers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.cli.corpus import app
from palio.records import Problem, Suite, Trajectory, to_json
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.suites.files import write_suite
from palio.train.environments.shop import Call
from palio.world.catalogue import write_catalogue
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World


@dataclass(frozen=True)
class Made:
    """Files, and what lies in them.

    Attributes:
        runs: (problem, record) of the careful and the hasty shopper.
    """

    folder: Path
    worlds: dict[str, World]
    problems: tuple[Problem, ...]
    runs: tuple[tuple[Problem, Trajectory], ...]

    @property
    def options(self) -> list[str]:
        """Options of the export."""
        catalogues = [str(self.folder / name) for name in self.worlds]
        pairs = [word for name in catalogues for word in ("--catalogue", name)]
        return ["--suite", str(self.folder / "suite.json"), *pairs]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two compact worlds of 300 products, 45 problems each, built into a corpus."""
    folder = tmp_path_factory.mktemp("shop")
    worlds: dict[str, World] = {}
    problems: list[Problem] = []
    for seed in (3, 4):
        found = synthesise(compact_config(seed, products=300, problems=45))
        write_catalogue(found.catalogue, folder / found.catalogue.catalogue_id)
        worlds[found.catalogue.catalogue_id] = World.build(found.catalogue, COMPACT)
        problems += found.problems
    suite = Suite(suite_id="small", version="1", problems=tuple(problems))
    write_suite(suite, folder / "suite.json")
    driver, upstream = InlineDriver(), ScriptedUpstream(0)
    runs = tuple(
        (
            problem,
            run_problem(
                find_agent(name),
                problem,
                worlds[problem.catalogue],
                driver=driver,
                upstream=upstream,
            ),
        )
        for problem in problems
        for name in ("careful", "hasty")
    )
    lines = [to_json(run) + b"\n" for _, run in runs]
    (folder / "runs.jsonl").write_bytes(b"".join(lines))
    held = Made(folder, worlds, suite.problems, runs)
    words = ["build", "--trajectories", str(folder / "runs.jsonl"), *held.options]
    result = CliRunner().invoke(app, [*words, "--out", str(folder / "corpus"), "--workers", "1"])
    assert result.exit_code == 0, result.output
    return held


def calls(run: Trajectory) -> tuple[Call, ...]:
    """What the model called."""
    return tuple(
        Call(call.function.name, call.function.arguments)
        for message in run.messages
        for call in message.tool_calls
    )
