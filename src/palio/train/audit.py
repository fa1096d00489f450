"""What a run was trained on, held against what it must not know: counted, stage by stage.

Two questions. Did any stage roll out, or read a row of, a problem that is not in the training pool?
That must not be. And how often did results show it the target of a problem it is measured on? That
cannot be ruled out in a shared catalogue, where every search shows neighbours, so it is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from palio.corpus.build import read_pools
from palio.corpus.rows import CorpusRow
from palio.records import InputError, Problem, Record, from_json, to_json
from palio.suites.files import read_suite
from palio.train.ground import TRAIN
from palio.train.inputs import open_corpus, taught
from palio.train.recipe import DataConfig
from palio.train.rollouts import FILE, read_rollouts
from palio.train.rows import TEMPLATE, told_digests
from palio.train.run import CHAIN, DONE
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


class RunAudit(Record, frozen=True, omit_defaults=False):
    """What a run saw.

    Attributes:
        suite: digest of the suite.
        targets: pool -> products that are targets there and in no training problem.
        stages: in order.
    """

    suite: str
    targets: dict[str, int]
    stages: tuple[StageAudit, ...]

    @property
    def outside(self) -> tuple[str, ...]:
        """Problems outside the training pool that any stage saw."""
        return tuple(sorted({one for stage in self.stages for one in stage.outside}))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Stages that rolled out and left no record of it."""
        return tuple(stage.name for stage in self.stages if stage.rollouts is None)

    @property
    def templates(self) -> tuple[str, ...]:
        """Digests of the chat templates of the stages; one is as it should be."""
        told = [stage.digests[TEMPLATE] for stage in self.stages if TEMPLATE in stage.digests]
        return tuple(dict.fromkeys(told))

    @property
    def clean(self) -> bool:
        """Whether all that any stage saw is known, and is of the training pool."""
        return not self.outside and not self.unknown


def audit_run(run: Path, corpus: Path, suite: Path) -> RunAudit:
    """Look at everything that the finished stages of a run saw, and write `audit.json` into it.

    Args:
        run: run folder of `palio train`.
        corpus: the corpus folder that it was trained on.
        suite: the suite that the corpus was built with.

    Raises:
        InputError: no run, a dry one, none of its stages is finished, or it was trained on another
            corpus.
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
    opened = open_corpus(corpus, uncertified=True)
    if chain.inputs.get("corpus") != opened.digests["corpus"]:
        raise InputError("the run was trained on another corpus", where=str(corpus))
    held = read_suite(suite)
    watch = Watch(held.problems, read_pools(corpus))
    rows, _ = taught(opened.rows(), msgspec.convert(chain.config["data"], DataConfig))
    done = [stage for stage in chain.config["stages"] if (run / stage["name"] / DONE).is_file()]
    if not done:
        raise InputError("no stage of this run is finished", where=str(run))
    seen = [seen_row(row) for row in rows]
    stages = tuple(watch.stage(stage, run / stage["name"], seen) for stage in done)
    found = RunAudit(suite=held.content_digest(), targets=watch.sizes(), stages=stages)
    write_lines(run / AUDIT, [to_json(found), b"\n"])
    return found


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
