"""A recipe and a corpus become checkpoints, once: finished stages are kept, broken ones resumed.

The folder of a run::

    chain.json              the recipe and its digest
    NAME/                   one folder a stage
        run.json            what decides the stage: its configuration and input digests
        checkpoint/         complete with its manifest
        metrics.jsonl       what was measured on the way
        stage.json          written last: the proof that the stage is finished
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from palio import __version__
from palio.records import (
    InputError,
    IntegrityError,
    Provenance,
    Record,
    ResumeError,
    digest,
)
from palio.rollout.journal import lock_folder
from palio.train.backends.choice import backend_of
from palio.train.checkpoint import CHECKPOINT, MANIFEST, check_whole, checkpoint_folder
from palio.train.context import Context
from palio.train.disk import saving
from palio.train.ground import Ground
from palio.train.held import WORLDS, held_inputs
from palio.train.inputs import Reserve, learned_digests, model_digests, open_corpus, taught
from palio.train.loop import Point
from palio.train.memory import give_back
from palio.train.ranges import check_lengths
from palio.train.ready import check_chain, check_stages
from palio.train.recipe import Recipe, StageEntry, plain_stage
from palio.train.reporting import drop_spent
from palio.train.servers import ENDPOINT, Said, Servers
from palio.train.stage import METRICS, NO_KEYS, Endpoint, Keys, StageResult, Step, read_metrics
from palio.train.stages import kind_named
from palio.world.artefacts import file_digest, read_manifest, write_manifest

CHAIN, DONE = "chain.json", "stage.json"


class StageDone(Record, frozen=True):
    """A finished stage.

    Attributes:
        kind, name: as the recipe says.
        folder: of the stage, inside the run folder.
        checkpoint: folder of its checkpoint.
        skipped: whether it was found finished.
    """

    kind: str
    name: str
    folder: Path
    checkpoint: Path
    counts: dict[str, int] = {}
    measures: dict[str, float] = {}
    shortened: bool = False
    skipped: bool = False


class Trained(NamedTuple):
    """What a run made."""

    stages: tuple[StageDone, ...]

    @property
    def final(self) -> Path:
        """The last stage's checkpoint folder."""
        return self.stages[-1].checkpoint

    @property
    def shortened(self) -> bool:
        """Whether a time limit cut a stage short."""
        return any(stage.shortened for stage in self.stages)

    def named(self, name: str) -> StageDone:
        """The stage called `name`."""
        return next(stage for stage in self.stages if stage.name == name)


@dataclass(frozen=True)
class Options:
    """How a run is carried out; none of it decides the result.

    Attributes:
        threads: worker threads.
        save_every: seconds between two saved states inside a stage.
        redo: do a changed stage and all after it again instead of refusing.
        uncertified: train on a corpus that has no certificate of its split.
        keys: bearer tokens for the servers that stages ask.
        recipe: its file, for messages; "": they say its name.
        report: progress.
        clock: seconds.
    """

    threads: int = 2
    save_every: float = 60.0
    redo: bool = False
    uncertified: bool = False
    keys: Keys = NO_KEYS
    recipe: str = ""
    report: Callable[[Step], None] | None = None
    clock: Callable[[], float] = time.monotonic


def train(
    recipe: Recipe,
    corpus: Path,
    out: Path,
    *,
    ground: Ground | None = None,
    options: Options | None = None,
) -> Trained:
    """Run all stages of a recipe.

    Args:
        recipe: all choices.
        corpus: a corpus folder, or one of its files; only `train.jsonl` of a folder is read.
        out: run folder; a run that was stopped, even by SIGKILL, goes on from its last state.
        ground: training problems, for the stages that roll out.
        options: how.

    Raises:
        InputError: the corpus cannot be read, has nothing to train on, or has no certificate.
        ConfigError: a stage needs training problems or a checkpoint before it, or one that is not
            finished has settings that nothing here can be used with (`ready`).
        MissingDependencyError: such a stage needs a package or a launcher that is not installed.
        ResumeError: a stage in the folder was made from other settings or inputs; names them.
        IntegrityError: the loss is not a number, or a finished stage's files were changed.
        PalioError: the disk is full; nothing that was there is overwritten.
    """
    return _Chain(recipe, corpus, out, ground, options or Options()).go()


_HELD = {True: "held back", False: "left to be shown"}


class _Chain:
    def __init__(
        self, recipe: Recipe, corpus: Path, out: Path, ground: Ground | None, options: Options
    ) -> None:
        self.recipe, self.out, self.ground, self.options = recipe, out, ground, options
        self.kinds = [kind_named(stage.kind) for stage in recipe.stages]
        self._where = options.recipe or recipe.name
        check_chain(recipe, self._where, grounded=ground is not None)
        self._check([each for each in recipe.stages if not (out / each.name / DONE).exists()])
        self.corpus = open_corpus(corpus, uncertified=options.uncertified)
        self.inputs = {**self.corpus.digests, **model_digests(recipe.pretrained)}
        stages = zip(recipe.stages, self.kinds, strict=True)
        if ground is not None and any(kind.runs_problems(each.settings) for each, kind in stages):
            self.inputs["problems"] = ground.digest()
        self.start: Path | None = None
        if recipe.model is not None and recipe.model.start:
            self.start = checkpoint_folder(Path(recipe.model.start))
            if not (self.start / MANIFEST).is_file():
                raise InputError("no checkpoint to start from", where=recipe.model.start)
        check_lengths(recipe)
        self.backend = backend_of(recipe)
        self._servers = Servers(options.keys)
        self._rows: list[Any] | None = None
        self._reserve: Reserve | None = None
        self._told = False

    def _check(self, stages: Sequence[StageEntry]) -> None:
        pretrained = self.recipe.pretrained is not None
        check_stages(stages, self._where, keys=self.options.keys, pretrained=pretrained)

    def go(self) -> Trained:
        """All stages in order."""
        self.out.mkdir(parents=True, exist_ok=True)
        with lock_folder(self.out):
            done: list[StageDone] = []
            for number, stage in enumerate(self.recipe.stages, start=1):
                done.append(self._stage(number, stage, done[-1].checkpoint if done else self.start))
            self._tell()
        return Trained(tuple(done))

    def _tell(self) -> None:
        """Write the run's own manifest, when no stage can be refused any more."""
        if not self._told:
            write_manifest(self._manifest("chain", self.recipe.prefix(self.count)), self.chain)
            self._told = True

    @property
    def count(self) -> int:
        """Number of stages."""
        return len(self.recipe.stages)

    @property
    def chain(self) -> Path:
        """The run's own manifest."""
        return self.out / CHAIN

    def _manifest(self, kind: str, config: dict[str, Any], **more: Any) -> Provenance:
        named = {"recipe": self.recipe.name, **config}
        return Provenance(
            kind=kind,
            tool_version=__version__,
            config=named,
            config_digest=digest(named),
            **{"inputs": self.inputs, "seed": self.recipe.seed, **more},
        )

    def _stage(self, number: int, stage: StageEntry, previous: Path | None) -> StageDone:
        """One stage, or what is there of it."""
        folder, kind = self.out / stage.name, self.kinds[number - 1]
        read = kind.reads(stage.settings)
        inputs = {**self.inputs, **read}
        inputs["recipe"] = digest(self.recipe.prefix(number))
        if previous is not None:
            inputs["checkpoint"] = file_digest(previous / MANIFEST)
        said = self._hold(number, stage, folder, inputs, kind.asks(stage.settings, previous))
        found = self._finished(stage, folder)
        if found is not None:
            drop_spent(folder)
            self._report(number, stage, 1.0, "was finished")
            return found
        if previous is not None:
            check_whole(previous)
        if said:
            inputs[ENDPOINT] = digest(said)
        context = self._context(number, stage, inputs)
        self._tell()
        report = lambda share, note: self._report(number, stage, share, note)  # noqa: E731
        with saving(f"what stage {stage.name!r} writes", folder):
            made = kind.run(stage.settings, context, previous, folder, report)
            self.inputs |= learned_digests(self.recipe.pretrained, self.inputs)
            inputs = {**self.inputs, **inputs, **(read or kind.reads(stage.settings))}
            done = self._finish(stage, folder, made, inputs, said)
        give_back()
        return done

    def _held(self, stage: StageEntry, folder: Path, inputs: dict[str, str]) -> dict[str, Any]:
        """What decides a stage, and what it goes on from."""
        read = held_inputs(folder, inputs, finished=(folder / DONE).exists())
        held = {**self.recipe.prefix(0), "stage": plain_stage(stage), "inputs": read}
        del held["stages"]
        return held

    def _hold(
        self,
        number: int,
        stage: StageEntry,
        folder: Path,
        inputs: dict[str, str],
        endpoint: Endpoint | None,
    ) -> Said:
        """Refuse to mix two runs, if one did anything; `redo` drops the stage and all after it.

        The worlds of a stage that is not finished are added to `inputs`; they are built for their
        digest, so finished stages do without.
        """
        kind, ground = self.kinds[number - 1], self.ground

        def hold() -> Said:
            finished = (folder / DONE).exists()
            if not finished and ground is not None and kind.runs_problems(stage.settings):
                inputs[WORLDS] = ground.worlds_digest()
            held = self._held(stage, folder, inputs)
            return self._servers.hold(folder, held, endpoint, finished=finished)

        try:
            return hold()
        except ResumeError:
            if not self.options.redo:
                raise
            self._check(self.recipe.stages[number - 1 :])
            for later in self.recipe.stages[number - 1 :]:
                shutil.rmtree(self.out / later.name, ignore_errors=True)
            return hold()

    def _context(self, number: int, stage: StageEntry, inputs: dict[str, str]) -> Context:
        if self._rows is None:
            self._rows, self._reserve = taught(self.corpus.rows(), self.recipe.data)
        own = self.kinds[number - 1].own
        return Context(
            recipe=self.recipe,
            name=stage.name,
            number=number,
            seed=self.recipe.seed + stage.settings.seed,
            rows=self._rows,
            ground=self._ground(own=own),
            backend=self.backend,
            inputs=inputs,
            threads=self.options.threads,
            save_every=self.options.save_every,
            keys=self.options.keys,
            clock=self.options.clock,
        )

    def _ground(self, *, own: bool) -> Ground | None:
        """Problems of a stage: the student's own rollouts run what is held back, if anything is."""
        reserve = self._reserve
        if self.ground is None or reserve is None or not self.recipe.data.reserve:
            return self.ground
        ground = self.ground.only(lambda problem: reserve.holds(problem) == own)
        if not ground.problems:
            raise InputError(
                f"of {len(self.ground.problems)} training problems none is {_HELD[own]}",
                where=self.recipe.name,
                remedy="change `reserve` in the recipe, or bring more problems",
            )
        return ground

    def _finish(
        self, stage: StageEntry, folder: Path, made: StageResult, inputs: dict[str, str], said: Said
    ) -> StageDone:
        """Write the proof, last."""
        inside = made.checkpoint.relative_to(folder)
        outputs = {str(inside / MANIFEST): file_digest(made.checkpoint / MANIFEST)}
        if (folder / METRICS).exists():
            outputs[METRICS] = file_digest(folder / METRICS)
        told = {"stage": plain_stage(stage), "checkpoint": str(inside), "measures": made.measures}
        if said:
            told[ENDPOINT] = said
        manifest = self._manifest(
            "stage",
            told,
            inputs={**inputs, **made.inputs},
            outputs=outputs,
            counts={**made.counts, "shortened": int(made.shortened)},
            seed=self.recipe.seed + stage.settings.seed,
        )
        write_manifest(manifest, folder / DONE)
        drop_spent(folder)
        return _done(stage, folder, manifest, skipped=False)

    def _finished(self, stage: StageEntry, folder: Path) -> StageDone | None:
        manifest = read_manifest(folder / DONE)
        if manifest is None:
            return None
        for name, wanted in manifest.outputs.items():
            path = folder / name
            if not path.exists() or file_digest(path) != wanted:
                raise IntegrityError(
                    "a finished stage's file is not what it was",
                    where=str(path),
                    remedy=f"remove {folder} to do the stage again",
                )
        return _done(stage, folder, manifest, skipped=True)

    def _report(self, number: int, stage: StageEntry, share: float, note: str) -> None:
        if self.options.report is not None:
            step = Step(stage=stage.name, number=number, stages=self.count, share=share, note=note)
            self.options.report(step)


def _done(stage: StageEntry, folder: Path, manifest: Provenance, *, skipped: bool) -> StageDone:
    counts = dict(manifest.counts)
    return StageDone(
        kind=stage.kind,
        name=stage.name,
        folder=folder,
        checkpoint=folder / str(manifest.config.get("checkpoint", CHECKPOINT)),
        shortened=bool(counts.pop("shortened", 0)),
        counts=counts,
        measures=manifest.config.get("measures", {}),
        skipped=skipped,
    )


def read_curve(out: Path) -> list[Point]:
    """The learning curves of a run's stages, in order; [] when there is none yet.

    Measurements that are no points of a curve (other stages have columns of their own) are left
    out; `stage.read_metrics` gives all of them.
    """
    manifest = read_manifest(out / CHAIN)
    stages = manifest.config["stages"] if manifest else []
    names = set(Point.__struct_fields__)
    return [
        msgspec.convert(row, Point)
        for stage in stages
        for row in read_metrics(out / stage["name"])
        if names <= row.keys()
    ]
