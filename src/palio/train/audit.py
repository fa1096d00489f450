"""What a run was trained on, held against what it must not know: counted, stage by stage.

Two questions. Did any stage roll out, or read a row of, a problem that is not in the training pool?
That must not be. And how often did results show it the target of a problem it is measured on? That
cannot be ruled out in a shared catalogue, where every search shows neighbours, so it is counted.

Weights remember: what a run began with, and what taught it, is followed to the run that made it
(`ancestry`), and what that saw counts like its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from palio.corpus.build import read_pools
from palio.corpus.membership import check_problems
from palio.corpus.rows import CorpusRow
from palio.records import InputError, Problem, Provenance, Record, from_json, to_json
from palio.suites.files import read_suite
from palio.train.ancestry import Known, Role, Weights, stages_of, weights_of
from palio.train.ground import TRAIN
from palio.train.inputs import Corpus, open_corpus, taught
from palio.train.recipe import DataConfig
from palio.train.rollouts import FILE, read_rollouts
from palio.train.rows import TEMPLATE, told_digests
from palio.train.run import CHAIN
from palio.train.seen import Seen, products_shown, read_seen
from palio.world.artefacts import read_manifest, write_lines

AUDIT = "audit.json"
_READS_ROWS = ("base", "sft")
_KEEPS_ROLLOUTS = ("rejection", "teacher")


class StageAudit(Record, frozen=True, omit_defaults=False):
    """What one stage saw.

    Attributes:
        rows: rows of the corpus, each once.
        rollouts: rollouts; None where the stage was run before such a record was kept.
        problems: different problems of both.
        outside: problems that are not in the training pool, those that the suite does not have too.
        targets: pool -> different products that results showed and that are targets of a problem of
            that pool and of no training problem.
        showing: rows and rollouts in which at least one of them was shown.
        digests: of the chat template (`template`) and of every id and mask (`rows`) that it was
            trained on, as its checkpoint's manifest tells.
    """

    name: str
    kind: str
    rows: int
    rollouts: int | None
    problems: int
    outside: tuple[str, ...]
    targets: dict[str, int]
    showing: int
    digests: dict[str, str] = {}


class Origin(Record, frozen=True, omit_defaults=False):
    """Weights that a run began with, or that taught it; or a run did that made such weights.

    Attributes:
        role: whether they were its start or its teacher.
        run: name of the run's folder whose stage read them.
        stage: that stage.
        named: as the recipe names them.
        known: `run`: what made them was followed; `public`: of the hub or a package, what they were
            pre-trained on cannot be known; `unknown`.
        why: they were not followed, in words.
        made_by: name of the folder of the run that made them.
        stages: what the stages saw that made them; those that read other weights have origins of
            their own.
    """

    role: Role
    run: str
    stage: str
    named: str
    known: Known
    why: str = ""
    made_by: str = ""
    stages: tuple[StageAudit, ...] = ()

    def __str__(self) -> str:
        what = "began with" if self.role == "start" else "was taught by"
        head = f"stage {self.stage} of {self.run} {what} {self.named}"
        return f"{head}, which {self.made_by} made" if self.made_by else f"{head}: {self.why}"


Verdict = Literal["clean", "unknown", "outside"]


class RunAudit(Record, frozen=True, omit_defaults=False):
    """What a run saw.

    Attributes:
        suite: digest of the suite.
        targets: pool -> products that are targets there and in no training problem.
        stages: in order.
        origins: weights of others that it has something of, each once; None: nobody asked.
    """

    suite: str
    targets: dict[str, int]
    stages: tuple[StageAudit, ...]
    origins: tuple[Origin, ...] | None = None

    @property
    def every(self) -> tuple[StageAudit, ...]:
        """The stages of those that made the weights it began with, and its own."""
        before = [stage for origin in self.origins or () for stage in origin.stages]
        return (*before, *self.stages)

    @property
    def outside(self) -> tuple[str, ...]:
        """Problems outside the training pool that any stage saw."""
        return tuple(sorted({one for stage in self.every for one in stage.outside}))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Stages that rolled out and left no record of it."""
        return tuple(stage.name for stage in self.every if stage.rollouts is None)

    @property
    def templates(self) -> tuple[str, ...]:
        """Digests of the chat templates of the stages; one is as it should be."""
        told = [stage.digests[TEMPLATE] for stage in self.stages if TEMPLATE in stage.digests]
        return tuple(dict.fromkeys(told))

    @property
    def lost(self) -> tuple[Origin, ...]:
        """Weights of which a run could tell what they were trained on, and none does."""
        return tuple(each for each in self.origins or () if each.known == "unknown")

    @property
    def public(self) -> tuple[Origin, ...]:
        """Public models; nobody here can tell what they were pre-trained on."""
        return tuple(each for each in self.origins or () if each.known == "public")

    @property
    def verdict(self) -> Verdict:
        """`outside`: something was seen that must not be; `unknown`: not all that was seen is.

        `clean`: all that the weights were ever trained on is known, and of the training pool.
        """
        if self.outside:
            return "outside"
        known = self.origins is not None and not (self.unknown or self.lost or self.public)
        return "clean" if known else "unknown"

    @property
    def clean(self) -> bool:
        """Whether all that the weights were trained on is known, and is of the training pool."""
        return self.verdict == "clean"


def audit_run(run: Path, corpus: Path, suite: Path, also: Sequence[Path] = ()) -> RunAudit:
    """Look at everything that the finished stages of a run saw; nothing is written.

    Args:
        run: run folder of `palio train`.
        corpus: the corpus folder that it was trained on.
        suite: the suite that the corpus was built with.
        also: corpus folders of the runs whose weights it began with or was taught by.

    Raises:
        InputError: no run, a dry one, none of its stages is finished, it was trained on another
            corpus, or the suite is another one that shares ids with the corpus.
    """
    chain = read_manifest(run / CHAIN)
    if chain is None:
        raise InputError("no run here", where=str(run), remedy="name a run folder of palio train")
    if chain.config.get("dry"):
        raise InputError(
            "a dry run reads no corpus: it was trained on rows of its own, which are gone",
            where=str(run),
            remedy="audit a run that was made without --dry-run",
        )
    opened = {found.digests["corpus"]: found for found in _opened([corpus, *also])}
    if chain.inputs.get("corpus") != next(iter(opened)):
        raise InputError("the run was trained on another corpus", where=str(corpus))
    if not stages_of(run, chain):
        raise InputError("no stage of this run is finished", where=str(run))
    held = read_suite(suite)
    check_problems(corpus, held.problems, suite)
    auditor = _Auditor(Watch(held.problems, read_pools(corpus)), opened)
    return RunAudit(
        suite=held.content_digest(),
        targets=auditor.watch.sizes(),
        stages=auditor.stages(run, chain),
        origins=tuple(auditor.origins(run, chain)),
    )


def write_audit(folder: Path, found: Record) -> str:
    """Write `audit.json` beside what was audited, which may be a folder that takes no files.

    Args:
        folder: of the run, or of the lab.
        found: its audit.

    Returns:
        Why it was not written, in words; "" where it was.
    """
    path = folder / AUDIT
    try:
        write_lines(path, [to_json(found), b"\n"])
    except OSError as error:
        old = "; what lies there is another audit" if path.exists() else ""
        return f"{path}: not written: {error.strerror or error}{old}"
    return ""


def _opened(folders: Iterable[Path]) -> Iterator[Corpus]:
    return (open_corpus(folder, uncertified=True) for folder in folders)


class _Auditor:
    """Looks at runs, those that others began with included.

    Args:
        watch: knows the pools.
        corpora: digest -> corpus.
    """

    def __init__(self, watch: Watch, corpora: Mapping[str, Corpus]) -> None:
        self.watch, self._corpora = watch, corpora
        self._met: set[tuple[Path, str]] = set()

    def stages(self, run: Path, chain: Provenance, last: str = "") -> tuple[StageAudit, ...]:
        """What the stages of a run saw, up to the one called `last`; its corpus is at hand."""
        data = msgspec.convert(chain.config["data"], DataConfig)
        rows, _ = taught(self._corpora[chain.inputs["corpus"]].rows(), data)
        seen = [seen_row(row) for row in rows]
        return tuple(
            self.watch.stage(stage, run / stage["name"], seen)
            for stage in stages_of(run, chain, last)
        )

    def origins(self, run: Path, chain: Provenance, last: str = "") -> Iterator[Origin]:
        """Weights that a run read, each followed by those that went into them; none twice."""
        for weights in weights_of(run, chain, last):
            place = (weights.run.resolve(), weights.last)
            if weights.known == "run" and place in self._met:
                continue
            self._met.add(place)
            made = read_manifest(weights.run / CHAIN) if weights.known == "run" else None
            yield self._origin(run.resolve().name, weights, made)
            if made is not None:
                yield from self.origins(weights.run, made, weights.last)

    def _origin(self, run: str, weights: Weights, made: Provenance | None) -> Origin:
        found = Origin(
            role=weights.role,
            run=run,
            stage=weights.stage,
            named=weights.named,
            known=weights.known,
            why=weights.why,
        )
        if made is None:
            return found
        if made.inputs.get("corpus") not in self._corpora:
            why = f"{weights.run.name} made it of another corpus, which nobody named"
            return msgspec.structs.replace(found, known="unknown", why=why)
        stages = self.stages(weights.run, made, weights.last)
        return msgspec.structs.replace(found, made_by=weights.run.name, stages=stages)


def read_audit(run: Path) -> RunAudit | None:
    """The audit that was made of a run, None where there is none."""
    path = run / AUDIT
    return from_json(path.read_bytes(), RunAudit, where=str(path)) if path.is_file() else None


def seen_row(row: CorpusRow) -> Seen:
    """What training on a row of a corpus sees."""
    return Seen(problem_id=row.problem_id, products=products_shown(row.typed()))


class Watch:
    """Knows the pools of problems and of their targets.

    Product ids repeat from one catalogue to the next, so a target is a catalogue with an id.
    """

    def __init__(self, problems: Sequence[Problem], pools: dict[str, str]) -> None:
        self._pools = pools
        self._catalogue = {each.problem_id: each.catalogue for each in problems}
        targets: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        for problem in problems:
            pool = pools.get(problem.problem_id, "unassigned")
            targets[pool] |= {(problem.catalogue, each.product_id) for each in problem.rewards}
        trained = targets.pop(TRAIN, set())
        self._targets = {pool: found - trained for pool, found in sorted(targets.items())}

    def sizes(self) -> dict[str, int]:
        """Pool -> targets."""
        return {pool: len(found) for pool, found in self._targets.items()}

    def stage(self, stage: dict[str, Any], folder: Path, corpus: Sequence[Seen]) -> StageAudit:
        """What one stage saw."""
        kind = stage["kind"]
        reads = kind in _READS_ROWS or stage.get("mix", 0) > 0 or stage.get("reward") == "prefix"
        rows = corpus if reads else ()
        rollouts = _rollouts(kind, folder)
        seen = [*rows, *(rollouts or ())]
        names = {each.problem_id for each in seen}
        shown = [self._shown(each) for each in seen]
        every = set().union(*shown)
        return StageAudit(
            name=stage["name"],
            kind=kind,
            rows=len(rows),
            rollouts=None if rollouts is None else len(rollouts),
            problems=len(names),
            outside=tuple(sorted(name for name in names if not self._trains(name))),
            targets={pool: len(found & every) for pool, found in self._targets.items()},
            showing=sum(bool(each & self._all) for each in shown),
            digests=told_digests(folder),
        )

    @property
    def _all(self) -> set[tuple[str, str]]:
        return set().union(*self._targets.values())

    def _trains(self, problem: str) -> bool:
        return problem in self._catalogue and self._pools.get(problem) == TRAIN

    def _shown(self, seen: Seen) -> set[tuple[str, str]]:
        catalogue = self._catalogue.get(seen.problem_id, "")
        return {(catalogue, each) for each in seen.products}


def _rollouts(kind: str, folder: Path) -> list[Seen] | None:
    """Rollouts of a stage; None where it made some and nothing tells which."""
    if kind in _READS_ROWS:
        return []
    if kind in _KEEPS_ROLLOUTS:
        if not (folder / FILE).is_file():
            return None
        return list(_of_rollouts(folder))
    return read_seen(folder)


def _of_rollouts(folder: Path) -> Iterable[Seen]:
    for each in read_rollouts(folder):
        yield Seen(problem_id=each.problem_id, products=products_shown(each.trajectory.messages))
