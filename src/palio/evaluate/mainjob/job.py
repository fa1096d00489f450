"""The main job from nothing: worlds, race, bulk rollout, corpus, training, measurement, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from palio.evaluate.charts import CurvePoint
from palio.evaluate.mainjob.apart import open_apart
from palio.evaluate.mainjob.arena import bulk_shards, run_bulk, run_race
from palio.evaluate.mainjob.config import MainJobConfig
from palio.evaluate.mainjob.corpus import build_corpus
from palio.evaluate.mainjob.learn import (
    BASE,
    TRAINED,
    Milestone,
    milestones,
    read_curve,
    recipe_of,
    train,
)
from palio.evaluate.mainjob.measure import (
    Exam,
    checkpoint_policy,
    exam_problems,
    measure_floors,
    measure_policy,
    open_exam,
    read_result,
)
from palio.evaluate.mainjob.reworded import make_reworded
from palio.evaluate.mainjob.stages import Reporter, Stages
from palio.evaluate.mainjob.telling import stage_result, tell, versions
from palio.evaluate.mainjob.worlds import Ground, make_worlds, open_ground
from palio.evaluate.report import write_report
from palio.evaluate.report_data import ReportData, StageResult
from palio.evaluate.summary import Summary, make_summary, write_summary
from palio.records import digest
from palio.rollout.journal import lock_folder
from palio.train.checkpoint import CHECKPOINT
from palio.train.engine import Engine
from palio.train.memory import give_back

SUMMARY, REPORT = "summary.json", "report.html"
REWORDED = "reworded"
Work = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True)
class MainJobResult:
    """What the main job leaves.

    Attributes:
        data: everything that the report shows.
        summary: what summary.json holds.
        summary_path, report_path: the files.
    """

    data: ReportData
    summary: Summary
    summary_path: Path
    report_path: Path


def run_main_job(config: MainJobConfig, out: Path, reporter: Reporter) -> MainJobResult:
    """Run the main job in a folder; what is finished there is not run again.

    Raises:
        ResumeError: the folder holds a job of another configuration.
        ConfigError: the configuration cannot be, or another process runs in the folder.
        InputError: no held-out or no reworded problem is left to measure on; said before training.
    """
    recipe_of(config)  # a wrong name is said now, not when training is due
    checked = config.checked()
    out.mkdir(parents=True, exist_ok=True)
    with lock_folder(out):
        job = _Job(config, out, Stages(out, checked, reporter), reporter)
        job.make()
        job.measure()
        return job.tell()


class _Job:
    """The stages in their order; each knows only the folders of those before."""

    def __init__(
        self, config: MainJobConfig, out: Path, stages: Stages, reporter: Reporter
    ) -> None:
        self.config, self.out, self.stages = config, out, stages
        self.results: dict[str, dict[str, Any]] = {}
        self.advance: Callable[[int, str], None] = reporter.advance
        self.ground: Ground | None = None
        recipe = recipe_of(config)
        self.recipe = recipe.digest()
        self.milestones = milestones(recipe)

    def _run(
        self, name: str, work: Work, total: int | None = None, *after: str, also: str | None = None
    ) -> None:
        """One stage; the job's configuration, what came before and `also` decide it."""
        inputs: list[Any] = [digest(self.config), {each: self.results[each] for each in after}]
        if also is not None:
            inputs.append(also)
        self.results[name] = self.stages.run(name, inputs, work, total=total)

    def make(self) -> None:
        """Worlds, race, trajectories, corpus and checkpoints."""
        config, out, advance = self.config, self.out, self.advance
        self._run(
            "world",
            lambda folder: make_worlds(config, folder, lambda done: advance(done, "worlds")),
            config.catalogues + 1,
        )
        ground = self.ground = open_ground(out / "world")
        exam_problems(config, ground)  # an exam without problems is said now, not after training
        races = len(config.racers) * len(ground.race)
        self._run("race", lambda folder: run_race(config, ground, folder, advance), races, "world")
        shards = len(bulk_shards(config, ground))
        self._run("bulk", lambda folder: run_bulk(config, ground, folder, advance), shards, "world")
        rows = self.results["race"]["runs"] + self.results["bulk"]["trajectories"]
        sources = [out / "race", out / "bulk"]
        self._run(
            "corpus",
            lambda folder: build_corpus(config, ground, sources, folder, advance),
            rows,
            "race",
            "bulk",
        )
        # of the recipe, the configuration has the name only
        self._run("train", self._train, 100, "corpus", also=self.recipe)

    def _train(self, folder: Path) -> dict[str, Any]:
        """Train, once it is known that reworded problems are left to measure on.

        They are made in a folder that is thrown away: the stage that measures makes them again, in
        seconds, and so needs nothing of this one.
        """
        config, ground = self.config, self._ground()
        if config.reworded:
            with TemporaryDirectory() as scratch:
                make_reworded(config, ground, Path(scratch))
        return train(config, ground, self.out, folder, self.advance)

    def measure(self) -> None:
        """Floors, and every stage's policy on the same held-out problems."""
        config = self.config
        exam = open_exam(config, self._ground())
        self._run("floors", lambda folder: measure_floors(config, exam, folder), None, "world")
        for each in self.milestones:

            def work(folder: Path, each: Milestone = each) -> dict[str, Any]:
                return self._examine(each, exam, folder)

            self._run(each.key, work, exam.rollouts(config), "world", "train")
        if config.reworded:
            self._run(REWORDED, self._reworded, config.reworded, "world", "train")

    def _examine(self, milestone: Milestone, exam: Exam, folder: Path) -> dict[str, Any]:
        checkpoint = self.out / "train" / milestone.stage / CHECKPOINT
        with Engine(checkpoint) as engine:
            policy = checkpoint_policy(milestone.label, milestone.key, checkpoint, engine)
            found = measure_policy(policy, self.config, exam, folder, self.advance)
        give_back()
        return found

    def _reworded(self, folder: Path) -> dict[str, Any]:
        """The last checkpoint and the floors on requests in words that nothing trained on."""
        made = make_reworded(self.config, self._ground(), folder)
        exam = open_apart(folder)
        measure_floors(self.config, exam, folder)
        return {**made, **self._examine(self.milestones[-1], exam, folder)}

    def _stage_result(self, milestone: Milestone, seconds: dict[str, float]) -> StageResult:
        """One measured policy; the training's minutes are told with the last."""
        key = milestone.key
        notes = {
            BASE: "copy, look-up and equality documents",
            TRAINED: self.results["train"]["note"],
        }
        return stage_result(
            milestone.label,
            self.out / key,
            note=notes.get(key, ""),
            seconds=seconds[key] + (seconds["train"] if key == TRAINED else 0.0),
        )

    def tell(self) -> MainJobResult:
        """Write the report and the summary; cheap, so done anew each time."""
        marks = self.stages.marks
        seconds = {name: mark.seconds for name, mark in marks.items()}
        stages = tuple(self._stage_result(each, seconds) for each in self.milestones)
        curve: tuple[CurvePoint, ...] = read_curve(self.out / "train")
        data = tell(
            self.config,
            self._ground(),
            open_exam(self.config, self._ground()),
            self.out,
            stages=stages,
            reworded=self._told_reworded(seconds),
            curve=curve,
            results=self.results,
            seconds=seconds,
        )
        summary = make_summary(
            data.stages,
            data.floors,
            (*data.comparisons, *data.against_base),
            seconds=round(self.stages.seconds, 1),
            peak_rss_mb=self.stages.peak_rss_mb,
            seeds={"job": self.config.seed},
            versions=versions(),
            stage_seconds=seconds,
            digests={
                "config": digest(self.config),
                "recipe": self.recipe,
                "suite": self.results["world"]["suite"],
            },
            reworded=data.reworded,
            reworded_floors=data.reworded_floors,
        )
        return MainJobResult(
            data=data,
            summary=summary,
            summary_path=write_summary(summary, self.out / SUMMARY),
            report_path=write_report(data, self.out / REPORT),
        )

    def _told_reworded(self, seconds: dict[str, float]) -> StageResult | None:
        if REWORDED not in self.results:
            return None
        label, left_out = self.milestones[-1].label, self.results[REWORDED]["left out"]
        note = "other words, other catalogue"
        if left_out:
            note += f"; {left_out} left out that share a leak cluster with the rest"
        return StageResult(
            name=f"{label}, reworded",
            greedy=read_result(self.out / REWORDED, "greedy"),
            note=note,
            seconds=seconds[REWORDED],
        )

    def _ground(self) -> Ground:
        assert self.ground is not None, "make() runs before measure() and tell()"
        return self.ground
