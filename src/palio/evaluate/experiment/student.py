"""One student: from the base that all arms of a seed share to the checkpoint that is examined."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from palio import __version__
from palio.corpus.rows import CorpusRow
from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.draw import draw, salt_of
from palio.evaluate.experiment.firehose import FirehoseRow
from palio.evaluate.experiment.plan import Arm, Plan
from palio.evaluate.experiment.task import Task, held_to
from palio.records import ConfigError, InputError, Record, digest, from_json, to_json
from palio.rollout.config import FILE
from palio.train.backends.choice import backend_of
from palio.train.context import Context
from palio.train.ground import Ground
from palio.train.loop import LOSS_TOKENS
from palio.train.memory import give_back
from palio.train.reading import read_recipe
from palio.train.ready import check_stages
from palio.train.recipe import Recipe, StageEntry, plain_stage
from palio.train.reporting import drop_spent
from palio.train.servers import ENDPOINT, TEACHER, Said, Servers
from palio.train.settings import SftSettings
from palio.train.stage import NO_KEYS, Keys, StageResult
from palio.train.stages import kind_named
from palio.train.stages.examples import examples_of
from palio.world.artefacts import file_digest, write_lines

WEIGHTS = "model.safetensors"
DONE = "stage.json"
SFT = "0-sft"
"""Folder of an arm's fine-tuning; further stages count on from it."""
_AGAIN = "name another --out, or remove the folder of this stage and of those after it"
BASE_ROWS = 6_000
"""Rows that vocabulary and documents are made from; of every agent, so that no arm is at home."""


@dataclass(frozen=True)
class School:
    """What all students of a lab share.

    Attributes:
        config: recipe, budget, device and threads.
        seeds: folder SEED/base of the checkpoints that all arms of a seed start from.
        firehose: every row.
        ground: training problems, for stages that roll out.
        clock: seconds.
        keys: bearer tokens for the servers that stages ask.
    """

    config: LabConfig
    seeds: Path
    firehose: Sequence[FirehoseRow]
    ground: Ground
    clock: Callable[[], float]
    keys: Keys = NO_KEYS


@dataclass
class Taught:
    """A trained student and what it was trained on."""

    checkpoint: Path
    base: str = ""
    rows: int = 0
    trajectories: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    loss_counted: int = 0
    steps: int = 0
    measures: dict[str, float] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """The fields of a run's record that training decides."""
        return {
            "rows": self.rows,
            "trajectories": self.trajectories,
            "tokens": self.tokens,
            "loss_tokens": self.loss_tokens,
            "loss_counted": self.loss_counted,
            "steps": self.steps,
            "measures": self.measures,
            "checkpoint": file_digest(self.checkpoint / WEIGHTS),
            "base": self.base,
            "tool": __version__,
        }


class Student:
    """Carries the stages of one arm out, each once.

    Args:
        school: rows, ground and configuration.
        task: what is run.
        folder: of this run.
        note: told what is going on.
    """

    def __init__(
        self, school: School, task: Task, folder: Path, note: Callable[[str], None]
    ) -> None:
        self.school, self.folder, self.note = school, folder, note
        self.plan, self.arm, self.seed = task.plan, task.arm, task.seed
        self.recipe = school.config.recipe_of(task.seed)

    def teach(self) -> Taught:
        """All stages of the arm.

        Raises:
            InputError: the arm that this one starts from was not run to its end, or there is no row
                to fine-tune on.
            ConfigError: a stage of the plan cannot be read, or has settings that nothing here can
                be used with (`train.ready`).
            MissingDependencyError: a stage needs what is not installed.
            ResumeError: a stage began, or another arm has learned, with another model behind the
                same address (`train.servers`); or the arm that this one starts from was run by the
                plan before it was changed.
            UpstreamError: a server that a stage asks cannot be reached.
        """
        entries = self._entries()  # what cannot be done is told before hours of work
        rows = self._rows() if self.arm.sft or self.arm.stages else []  # else it is the base itself
        taught = Taught(self._start())
        taught.rows = len(rows)
        if self.arm.sft:
            self._fine_tune(taught, rows)
        for number, entry in enumerate(entries, start=1):
            made = self._stage(entry, rows, taught.checkpoint, f"{number}-{entry.name}")
            taught.checkpoint = made.checkpoint
            taught.measures |= {f"{entry.name}.{k}": v for k, v in made.measures.items()}
            taught.measures |= {f"{entry.name}.{k}": float(v) for k, v in made.counts.items()}
        taught.base = self._origin(taught.checkpoint)
        return taught

    def _entries(self) -> tuple[StageEntry, ...]:
        entries = further(self.plan, self.arm)
        left = [
            entry
            for number, entry in enumerate(entries, start=1)
            if not (self.folder / f"{number}-{entry.name}" / DONE).exists()
        ]
        check_stages(left, _named(self.plan, self.arm), keys=self.school.keys)
        return entries

    def _rows(self) -> list[CorpusRow]:
        rows = draw(self.plan, self.arm, self.school.firehose, salt_of(self.seed))
        if self.arm.sft and not rows:
            raise InputError(
                "no row of the firehose passes this arm",
                where=_named(self.plan, self.arm),
                remedy="ask less of it (gates, agents, share, banks_out), or make a larger lab",
            )
        return rows

    def _start(self) -> Path:
        """The checkpoint that the arm starts from."""
        if not self.arm.start:
            return self._base()
        before = self.plan.arm(self.arm.start)
        earlier = self._folder_of(before)
        held_to(earlier, self.plan)
        stages = stage_folders(self.plan, before)
        missing = [name for name in stages if not (earlier / name / DONE).exists()]
        if missing or not stages:
            raise InputError(
                f"arm {before.name!r} was not run to its end under seed {self.seed}"
                + (f": stage {missing[0]!r} is missing" if missing else ""),
                where=str(earlier),
                remedy="the same command runs it first; see why it failed",
            )
        return _finished(earlier / stages[-1] / DONE).checkpoint

    def _folder_of(self, arm: Arm) -> Path:
        """Of the run of another arm of the plan under this seed."""
        return self.folder.parent.parent / arm.name / str(self.seed)

    def _origin(self, checkpoint: Path) -> str:
        """Digest of the base that the first stage on the way to a checkpoint began with.

        The stage itself noted it: the folder of the base may hold another one by now.
        """
        first = self.arm
        while first.start:
            first = self.plan.arm(first.start)
        stages = stage_folders(self.plan, first)
        if not stages:  # an arm that trains nothing is the base
            return file_digest(checkpoint / WEIGHTS)
        return _marked(self._folder_of(first) / stages[0] / DONE).start

    def _base(self) -> Path:
        """Weights and vocabulary of a seed, made of rows of every agent, shared by all arms."""
        entry = self.recipe.stages[0]
        folder = self.school.seeds / str(self.seed) / "base"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("ab") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # another process of this lab may be making it
            if (folder / DONE).exists():
                return _finished(folder / DONE).checkpoint
            rows = base_rows(self.school.firehose, self.seed)
            return self._stage(entry, rows, None, folder).checkpoint

    def _fine_tune(self, taught: Taught, rows: Sequence[CorpusRow]) -> None:
        """Fine-tuning for the lab's loss tokens; input tokens follow from the arm's own rows."""
        entry = self.recipe.stages[1]
        settings = entry.settings
        assert isinstance(settings, SftSettings)
        examples = examples_of(rows, self._context(entry, rows), taught.checkpoint)
        trained = sum(len(example.targets) for example in examples)
        given = sum(len(example.ids) - 1 for example in examples)
        wanted = round(self.school.config.loss_tokens * self.arm.tokens)
        budget = msgspec.structs.replace(settings, tokens=round(wanted * given / trained))
        entry = msgspec.structs.replace(entry, settings=budget)
        made = self._stage(entry, rows, taught.checkpoint, SFT)
        taught.checkpoint = made.checkpoint
        taught.trajectories, taught.loss_tokens = len(examples), wanted
        taught.tokens, taught.steps = made.counts["tokens"], made.counts["steps"]
        taught.loss_counted = made.counts.get(LOSS_TOKENS, 0)  # 0: a stage of an older version

    def _stage(
        self,
        entry: StageEntry,
        rows: Sequence[CorpusRow],
        previous: Path | None,
        name: str | Path,
    ) -> StageResult:
        """Carry one stage out, or take what a finished one left."""
        folder = self.folder / name if isinstance(name, str) else name
        if (folder / DONE).exists():
            return _finished(folder / DONE)
        folder.mkdir(parents=True, exist_ok=True)
        kind = kind_named(entry.kind)
        if kind.ground and not self.school.ground.problems:
            raise ConfigError(
                f"stage {entry.name!r} needs training problems, and the lab has none",
                where=str(folder),
                remedy="raise `problems` or `train_share` in the lab's configuration",
            )
        said = self._hold(entry, previous, folder)
        context = self._context(entry, rows, said)
        made = kind.run(entry.settings, context, previous, folder, self._report(entry.name))
        give_back()
        mark = _Mark(
            checkpoint=str(made.checkpoint.relative_to(folder)),
            counts=made.counts,
            measures=made.measures,
            endpoint=dict(said),
            start=file_digest(previous / WEIGHTS) if previous else "",
        )
        write_lines(folder / DONE, [to_json(mark) + b"\n"])
        drop_spent(folder)
        return made

    def _hold(self, entry: StageEntry, previous: Path | None, folder: Path) -> Said:
        """Hold a stage to the server that it asks, and its teacher to that of the lab's other runs.

        Arms that learned of different models behind one address would be compared as if of one.
        """
        endpoint = kind_named(entry.kind).asks(entry.settings, previous)
        if endpoint is None:
            return {}
        servers = Servers(self.school.keys, again=_AGAIN)
        arms = self.folder.parents[2]
        begun = (path.parent for path in sorted(arms.glob(f"*/*/*/*/{FILE}")))
        servers.meet((other for other in begun if other != folder), arms)
        held = {
            "lab": self.school.config.digest(),
            "stage": plain_stage(entry),
            TEACHER: endpoint.teacher,
        }
        return servers.hold(folder, held, endpoint, finished=False)

    def _context(
        self, entry: StageEntry, rows: Sequence[CorpusRow], said: Said | None = None
    ) -> Context:
        config = self.school.config
        recipe: Recipe = msgspec.structs.replace(self.recipe, stages=(entry,))
        return Context(
            recipe=recipe,
            name=entry.name,
            number=1,
            seed=recipe.seed + entry.settings.seed,
            rows=rows,
            ground=self.school.ground if kind_named(entry.kind).ground else None,
            backend=backend_of(recipe),
            inputs={
                "firehose": config.digest(),
                "arm": digest(self.arm),
                "plan": self.plan.digest(),
                **({ENDPOINT: digest(said)} if said else {}),
            },
            threads=config.workers,
            device=config.device,
            keys=self.school.keys,
            clock=self.school.clock,
        )

    def _report(self, stage: str) -> Callable[[float, str], None]:
        return lambda share, text: self.note(f"{stage} {100 * share:.0f} %, {text}")


def base_rows(firehose: Sequence[FirehoseRow], seed: int) -> list[CorpusRow]:
    """The rows that a seed's base is made of, whatever the plans."""
    everyone = Plan(
        name="base",
        question="",
        hypothesis="",
        primary="",
        analysis="",
        arms=(Arm(name="base"),),
        contrasts=(),
    )
    return draw(everyone, everyone.arms[0], firehose, salt_of(seed))[:BASE_ROWS]


def further(plan: Plan, arm: Arm) -> tuple[StageEntry, ...]:
    """The stages of an arm after fine-tuning.

    Raises:
        ConfigError: one cannot be read.
    """
    if not arm.stages:
        return ()
    plain = {"name": plan.name, "stage": [dict(stage) for stage in arm.stages]}
    return read_recipe(plain, where=_named(plan, arm)).stages


def _named(plan: Plan, arm: Arm) -> str:
    """What messages call the place of an arm's stages."""
    return f"plan {plan.name}, arm {arm.name}"


def stage_folders(plan: Plan, arm: Arm) -> list[str]:
    """Names of the folders of an arm's own stages, in order; [] for the base itself.

    Raises:
        ConfigError: a stage cannot be read.
    """
    more = [f"{at}-{entry.name}" for at, entry in enumerate(further(plan, arm), start=1)]
    return [SFT, *more] if arm.sft else more


def base_digest(seeds: Path, seed: int) -> str:
    """Digest of the weights that a seed's arms start from now; "" while they are not made.

    Args:
        seeds: folder SEED/base of a lab.
        seed: of the runs.
    """
    done = seeds / str(seed) / "base" / DONE
    return file_digest(_finished(done).checkpoint / WEIGHTS) if done.exists() else ""


class _Mark(Record, frozen=True):
    """Written last in the folder of a stage: it is finished, and this is what it made.

    Attributes:
        endpoint: what the server that it asked said of itself, a `broker.pin.ModelPin`.
        start: digest of the weights that it began with; "": none, or not recorded.
    """

    checkpoint: str
    counts: dict[str, int] = {}
    measures: dict[str, float] = {}
    endpoint: dict[str, Any] = {}
    start: str = ""


def _marked(path: Path) -> _Mark:
    return from_json(path.read_bytes(), _Mark, where=str(path))


def _finished(path: Path) -> StageResult:
    mark = _marked(path)
    checkpoint = path.parent / mark.checkpoint
    return StageResult(checkpoint=checkpoint, counts=mark.counts, measures=mark.measures)
