"""A measurement is whole, or not finished, or refused before anything is trained for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.agents.spec import policy_agent
from palio.evaluate.mainjob import job, measure
from palio.evaluate.mainjob.config import MainJobConfig
from palio.evaluate.mainjob.job import run_main_job
from palio.evaluate.mainjob.measure import Exam, measure_policy, read_result
from palio.evaluate.mainjob.reworded import make_reworded
from palio.evaluate.mainjob.stages import Stages
from palio.evaluate.mainjob.worlds import make_worlds, open_ground
from palio.evaluate.policy import Policy
from palio.evaluate.rollouts import read_rollouts
from palio.records import FaultCode, InputError, UpstreamError
from palio.suites.files import read_suite
from tests.counterfactual.small import setting
from tests.mainjob.silent import SilentReporter

CONFIG = MainJobConfig(samples=2)
replace: Callable[..., Any] = msgspec.structs.replace


class Breaking:
    """An engine that breaks after some completions, and whose conversations are counted."""

    def __init__(self, lives: int) -> None:
        self.lives = lives
        self.begun: list[str] = []

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.lives -= 1
        if self.lives < 0:
            raise UpstreamError("out of memory", code=FaultCode.upstream_server_error)
        if all(each["role"] != "assistant" for each in body["messages"]):
            self.begun.append(body["messages"][-1]["content"])
        return ScriptedUpstream().complete(body)


def measured(out: Path, engine: Breaking, told: list[int] | None = None) -> dict[str, Any]:
    world, problems = setting()
    clusters = {each.problem_id: each.problem_id for each in problems}
    exam = Exam(problems, problems[:1], {problems[0].catalogue: world}, clusters)
    policy = Policy("trained", policy_agent("trained", "scripted-careful"), engine)

    def work(folder: Path) -> dict[str, Any]:
        def advance(done: int, note: str) -> None:
            if told is not None:
                told.append(done)

        return measure_policy(policy, CONFIG, exam, folder, advance)

    return Stages(out, CONFIG, SilentReporter()).run("trained", ["x"], work)


def test_a_measurement_with_holes_is_not_finished_and_another_run_does_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "THREADS", 1)
    problems = setting()[1]
    with pytest.raises(UpstreamError, match=r"rollouts could not be scored.*out of memory") as one:
        measured(tmp_path, Breaking(10))
    assert "the same command tries them again" in one.value.remedy
    assert "the other policies" in one.value.remedy
    assert not (tmp_path / "stages" / "trained.json").exists()
    greedy = tmp_path / "trained" / "greedy"
    kept = {r.score.problem_id for r in read_rollouts(greedy) if r.score.status == "scored"}
    assert 0 < len(kept) < len(problems)

    engine, told = Breaking(10**9), list[int]()
    result = measured(tmp_path, engine, told)
    assert result["n"] == len(problems)
    assert read_result(tmp_path / "trained", "greedy").overall.unscored_rollouts == 0
    assert len(engine.begun) == len(problems) - len(kept) + CONFIG.samples
    assert told == list(range(len(kept) + 1, len(problems) + CONFIG.samples + 1))

    idle = Breaking(0)
    assert measured(tmp_path, idle) == result
    assert not idle.begun


TINY = MainJobConfig(
    catalogues=1,
    products=300,
    problems=3,
    race_problems=3,
    train_share=0.9,
    development_share=0.05,
    reworded=0,
)


def test_an_exam_without_problems_is_said_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="problems is held out") as raised:
        run_main_job(TINY, tmp_path, SilentReporter())
    assert "larger held-out share" in raised.value.remedy
    assert [path.stem for path in (tmp_path / "stages").iterdir()] == ["world"]


def test_reworded_problems_of_which_none_is_left_are_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every one of them is known by another id, so that each shares a cluster with the others."""
    config = replace(TINY, problems=30, train_share=0.7, development_share=0.1, reworded=3)
    (tmp_path / "world").mkdir()
    make_worlds(config, tmp_path / "world", lambda done: None)
    ground = open_ground(tmp_path / "world")
    make_reworded(config, ground, tmp_path)
    known = tuple(
        replace(each, problem_id=f"known-{each.problem_id}")
        for each in read_suite(tmp_path / "suite.json").problems
    )
    assert known
    full = dataclasses.replace(ground, problems=(*ground.problems, *known))
    trained: list[Path] = []
    monkeypatch.setattr(job, "train", lambda *a: trained.append(a[3]) or {})
    running = job._Job(
        config,
        tmp_path / "job",
        Stages(tmp_path / "job", config, SilentReporter()),
        SilentReporter(),
    )
    running.ground = full
    with pytest.raises(InputError, match="shares a leak cluster") as raised:
        running._train(tmp_path)
    assert "reworded" in raised.value.remedy
    assert not trained
    running.ground = ground
    running._train(tmp_path)
    assert trained == [tmp_path]
