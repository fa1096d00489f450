"""Which problems of an evaluation a model may have been trained on, and how it does on the others.

The two groups are different problems, so the gap between them is no measure of inflation: harder
problems may be the ones that leaked. It is a warning, and the clean rate is the one to report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from palio.corpus.decontaminate import Hit, contamination
from palio.evaluate.results import RolloutScore
from palio.evaluate.statistics import Proportion, wilson
from palio.records import KINDS, InputError, Problem, Profile, Record

SUITE = "suite"


class Contaminated(Record, frozen=True, omit_defaults=False):
    """One evaluated problem that the training pool holds in some form."""

    problem_id: str
    kind: str
    rules: tuple[str, ...]
    trained: tuple[str, ...]
    rows: int


class ContaminationReport(Record, frozen=True, omit_defaults=False):
    """An evaluation split by what the model was trained on.

    Attributes:
        corpus: folder of the training corpus.
        pools: pools of the corpus that count as trained on.
        problems: of the suite.
        found: those that the pools hold, with rule, training problems and their rows.
        clean, contaminated: success rates of scored problems; None without an evaluation.
        unscored: problems of the evaluation that infrastructure broke; they are in neither.
        clean_by_kind: success rate on clean problems by kind.
    """

    corpus: str
    pools: tuple[str, ...]
    problems: int
    found: tuple[Contaminated, ...]
    clean: Proportion | None = None
    contaminated: Proportion | None = None
    clean_by_kind: dict[str, Proportion] = {}
    unscored: int = 0


def contamination_report(
    corpus: Path,
    problems: Sequence[Problem],
    scores: Iterable[RolloutScore] | None = None,
    *,
    pools: Sequence[str] = ("train",),
    profile: Profile = "oro",
) -> ContaminationReport:
    """Compare a suite with what a corpus trained on: products, specifications, texts, rare words.

    Args:
        corpus: the corpus folder that the model was trained on.
        problems: of the evaluated suite.
        scores: rollouts of the evaluation; the first sample of each problem counts.
        pools: pools of the corpus that were trained on.
        profile: whose success counts.

    Raises:
        InputError: the folder is no corpus, or has no such pool; or a rollout is of a problem that
            is not of the suite, so that nobody can say whether it was trained on.
    """
    hits = contamination(corpus, {SUITE: problems}, registry=()).hits
    known = {hit.pool for hit in hits}
    unknown = sorted(set(pools) - known - {"train", "development", "heldout"})
    if unknown:
        raise InputError(f"a corpus has no pool {unknown[0]!r}", where=str(corpus))
    kinds = {problem.problem_id: problem.kind for problem in problems}
    found = _found([hit for hit in hits if hit.pool in pools and hit.task in kinds], kinds)
    report = ContaminationReport(
        corpus=str(corpus), pools=tuple(pools), problems=len(problems), found=found
    )
    return report if scores is None else _split(report, scores, kinds, profile)


def _found(hits: Sequence[Hit], kinds: Mapping[str, str]) -> tuple[Contaminated, ...]:
    by_task: dict[str, list[Hit]] = {}
    for hit in hits:
        by_task.setdefault(hit.task, []).append(hit)
    return tuple(
        Contaminated(
            problem_id=task,
            kind=kinds[task],
            rules=tuple(sorted({hit.rule for hit in found})),
            trained=tuple(sorted({hit.problem_id for hit in found})),
            rows=sum({hit.problem_id: hit.rows for hit in found}.values()),
        )
        for task, found in sorted(by_task.items())
    )


def _split(
    report: ContaminationReport,
    scores: Iterable[RolloutScore],
    kinds: Mapping[str, str],
    profile: Profile,
) -> ContaminationReport:
    first = [row for row in scores if row.sample == 0]
    strange = sorted({row.problem_id for row in first} - kinds.keys())
    if strange:
        raise InputError(
            f"the suite does not have the evaluated problem {strange[0]!r}",
            remedy="name the suite that the evaluation used",
        )
    success = {
        row.problem_id: row.success.get(profile, False) for row in first if row.status == "scored"
    }
    dirty = {each.problem_id for each in report.found}
    clean = {name: good for name, good in success.items() if name not in dirty}
    leaked = [good for name, good in success.items() if name in dirty]
    present = [kind for kind in KINDS if kind in set(kinds.values())]
    return msgspec.structs.replace(
        report,
        clean=wilson(sum(clean.values()), len(clean)),
        contaminated=wilson(sum(leaked), len(leaked)),
        clean_by_kind={kind: _rate(clean, kinds, kind) for kind in present},
        unscored=len({row.problem_id for row in first}) - len(success),
    )


def _rate(success: dict[str, bool], kinds: Mapping[str, str], kind: str) -> Proportion:
    found = [good for name, good in success.items() if kinds.get(name) == kind]
    return wilson(sum(found), len(found))
