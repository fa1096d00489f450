"""Fourth part of the main job: floors, base and trained policy on the same held-out problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from palio.agents.spec import policy_agent
from palio.broker.limits import Limits
from palio.broker.upstream import Upstream
from palio.evaluate.floors import FLOORS, FloorResult, evaluate_floor
from palio.evaluate.mainjob.config import MainJobConfig
from palio.evaluate.mainjob.worlds import Ground, evenly
from palio.evaluate.pin import checkpoint_pin
from palio.evaluate.policy import EvalSettings, Policy, evaluate_policy
from palio.evaluate.results import EvalResult
from palio.evaluate.rollouts import Progress
from palio.evaluate.whole import whole
from palio.judging import default_encoder
from palio.records import InputError, Problem, from_json, to_json
from palio.world.artefacts import write_lines
from palio.world.world import World

THREADS = 96
"""Conversations in flight: the engine's batch. Beyond 96 the key-value cache of 1.8 M parameters
leaves the second-level cache and nothing is gained."""

RESULT, FLOOR_FILE = "result.json", "floors.json"


@dataclass(frozen=True)
class Exam:
    """What every policy and floor is measured on.

    Attributes:
        problems: held-out problems, for greedy rollouts and floors.
        sampled: some of them, for k samples each.
        worlds: catalogue id -> world.
        cluster_of: problem id -> leak cluster.
    """

    problems: tuple[Problem, ...]
    sampled: tuple[Problem, ...]
    worlds: dict[str, World]
    cluster_of: Mapping[str, str]

    def rollouts(self, config: MainJobConfig) -> int:
        """Rollouts of one measured policy, for progress."""
        return len(self.problems) + len(self.sampled) * config.samples


def exam_problems(config: MainJobConfig, ground: Ground) -> tuple[Problem, ...]:
    """The held-out problems of the exam, chosen by digest.

    Raises:
        InputError: the split has held none back.
    """
    problems = evenly(ground.pool("heldout"), config.evaluated, _salt(config))
    if not problems:
        raise InputError(
            f"none of {len(ground.problems)} problems is held out, so there is nothing to measure "
            "policies on",
            where=str(ground.folder),
            remedy="ask for more catalogues or problems, or leave a larger held-out share beside "
            "train_share and development_share, in another --out",
        )
    return problems


def _salt(config: MainJobConfig) -> str:
    return f"exam-{config.seed}"


def open_exam(config: MainJobConfig, ground: Ground) -> Exam:
    """Choose the held-out problems and open their worlds.

    Raises:
        InputError: there are none.
    """
    problems = exam_problems(config, ground)
    sampled = evenly(problems, config.sampled, _salt(config))
    names = sorted({problem.catalogue for problem in problems})
    worlds = {name: ground.world(name) for name in names}
    return Exam(problems, sampled, worlds, ground.clustering.cluster_of)


def measure_floors(config: MainJobConfig, exam: Exam, folder: Path) -> dict[str, Any]:
    """What no policy at all scores; written to the folder."""
    encoder = default_encoder()
    floors = tuple(
        evaluate_floor(
            floor,
            exam.problems,
            exam.worlds,
            encoder,
            clusters=exam.cluster_of,
            seed=config.seed,
        )
        for floor in FLOORS
    )
    write_lines(folder / FLOOR_FILE, [to_json(floors) + b"\n"])
    return {floor.name: floor.rates["overall"]["oro"].value for floor in floors}


def read_floors(folder: Path) -> tuple[FloorResult, ...]:
    """The floors that `measure_floors` wrote."""
    path = folder / FLOOR_FILE
    return from_json(path.read_bytes(), tuple[FloorResult, ...], where=str(path))


def checkpoint_policy(name: str, model: str, checkpoint: Path, engine: Upstream) -> Policy:
    """A checkpoint behind the harness; its folder of results takes no rollouts of other weights.

    Args:
        name: what tables call it.
        model: what the harness asks for.
        checkpoint: what the engine has loaded.
        engine: answers.
    """
    spec = policy_agent(name.replace(" ", "-"), model)
    return Policy(name, spec, engine, checkpoint_pin(checkpoint))


def measure_policy(
    policy: Policy,
    config: MainJobConfig,
    exam: Exam,
    folder: Path,
    advance: Callable[[int, str], None],
) -> dict[str, Any]:
    """Greedy rollouts on every exam problem and k samples on some, through broker and scorer.

    Rollouts that are already in the folder are not run again, but for those that infrastructure
    broke: a result with holes would be told as one of other problems than the other policies'.

    Raises:
        UpstreamError: infrastructure kept some rollouts from being scored.
    """
    limits = Limits(seconds=300.0)
    greedy = EvalSettings(threads=THREADS, seed=config.seed, limits=limits)
    sampled = EvalSettings(
        samples=config.samples,
        temperature=config.temperature,
        seed=config.seed,
        threads=THREADS,
        limits=limits,
    )
    done = 0
    answers = {}
    for mode, problems, settings in (
        ("greedy", exam.problems, greedy),
        ("sampled", exam.sampled, sampled),
    ):
        if not problems:
            continue

        done += len(problems) * settings.samples

        def note(step: Progress, after: int = done, mode: str = mode) -> None:
            left = step.total - step.done
            advance(after - left, f"{mode}: {step.successes} of {step.scored} so far")

        answer = partial(
            evaluate_policy,
            policy,
            problems,
            exam.worlds,
            default_encoder(),
            out=folder / mode,
            settings=settings,
            clusters=exam.cluster_of,
            progress=note,
        )
        result = whole(answer, folder / mode, others="policies")
        write_lines(folder / mode / RESULT, [to_json(result) + b"\n"])
        answers[mode] = result
    overall = answers["greedy"].overall.asr["oro"]
    return {"asr": overall.rate, "n": overall.n}


def read_result(folder: Path, mode: str) -> EvalResult:
    """The greedy or sampled result that `measure_policy` wrote."""
    path = folder / mode / RESULT
    return from_json(path.read_bytes(), EvalResult, where=str(path))
