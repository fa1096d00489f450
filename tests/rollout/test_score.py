"""`palio score run` scores runs by their own problems and catalogues, or says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.cli.score import app
from palio.judging.store import VERDICTS, read_verdicts
from palio.records import InputError, Problem, Suite
from palio.rollout import Job, run_suite
from palio.sandbox.inline import InlineDriver
from palio.suites.files import write_suite
from palio.world.catalogue import write_catalogue
from tests.rollout.agents import small

WORLDS = {"one": 3, "two": 4}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs in two worlds, whose catalogues and suite lie beside them."""
    jobs: list[Job] = []
    problems: list[Problem] = []
    for name, seed in WORLDS.items():
        world, made = small(seed)
        write_catalogue(world.catalogue, tmp_path / name)
        jobs += [Job(find_agent("careful"), problem, world, 0, "s") for problem in made[:2]]
        problems += made[:2]
    write_suite(Suite(suite_id="s", version="1", problems=tuple(problems)), tmp_path / "suite.json")
    out = tmp_path / "out"
    run_suite(jobs, out, driver=InlineDriver(), upstream=ScriptedUpstream())
    return out


def scored(runs: Path, *catalogues: str) -> Result:
    words = ["run", str(runs), "--suite", str(runs.parent / "suite.json"), "--json"]
    named = [word for name in catalogues for word in ("--catalogue", str(runs.parent / name))]
    result = CliRunner().invoke(app, [*words, *named])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_each_run_is_scored_in_its_own_catalogue(runs: Path) -> None:
    told = json.loads(scored(runs, *WORLDS).stdout)
    assert told["oro"] == {"scored": 4, "unscored": 0, "success": 4}
    assert len(list(read_verdicts(runs / VERDICTS))) == 4


@pytest.mark.parametrize("given", ["one", "two"])
def test_a_run_of_another_catalogue_is_refused_and_not_failed(runs: Path, given: str) -> None:
    with pytest.raises(InputError, match="the catalogue of this run is not among those given"):
        scored(runs, given)
    assert not (runs / VERDICTS).exists()
