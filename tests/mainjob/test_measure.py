"""A measurement is finished when every rollout is scored; another run does only what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.agents.spec import policy_agent
from palio.evaluate.mainjob import measure
from palio.evaluate.mainjob.config import MainJobConfig
from palio.evaluate.mainjob.measure import Exam, measure_policy, read_result
from palio.evaluate.mainjob.stages import Stages
from palio.evaluate.policy import Policy
from palio.evaluate.rollouts import read_rollouts
from palio.records import FaultCode, UpstreamError
from tests.counterfactual.small import setting
from tests.mainjob.silent import SilentReporter

CONFIG = MainJobConfig(samples=2)


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
