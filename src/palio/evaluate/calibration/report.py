"""One judge on one labelled set: overall, by population, by gate, and on minimal pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from palio.evaluate.calibration.agreement import Agreement, agreement
from palio.evaluate.calibration.labels import LabelledRow, labels_digest
from palio.evaluate.statistics import Estimate, Proportion, cluster_mean, wilson
from palio.records import InputError, Record, Trajectory
from palio.records.verdict import QUALITY_BINS, JudgeId, ReasoningVerdict

GATES = (
    "inference present",
    "results analysed",
    "datum cited",
    "comparison",
)
"""The questions of the decision tree, gates 1 to 4."""


class GateErrors(Record, frozen=True, omit_defaults=False):
    """Errors of one gate among the rows whose label reaches it.

    Attributes:
        refuted: rows whose label passes the gate and where the judge stopped at it: false
            refutations, mostly evidence that was there and was not found.
        admitted: rows whose label stops at the gate and which the judge let through.
    """

    gate: int
    question: str
    refuted: Proportion
    admitted: Proportion


class PairAccuracy(Record, frozen=True, omit_defaults=False):
    """Minimal pairs: both members right, and at least in the right order."""

    both_right: Estimate
    right_order: Estimate


class Miss(Record, frozen=True, omit_defaults=False):
    """A row that the judge put elsewhere."""

    row_id: str
    population: str
    script: str
    split: str
    label: float
    given: float
    rationale: str
    explanation: str


class Calibration(Record, frozen=True, omit_defaults=False):
    """Everything that is reported of a judge on a labelled set.

    Attributes:
        unjudged: reason -> rows without a judgement, "no verdict" for rows that have none at all.
        refuted: rows that the judge put below their label, over all judged rows.
        admitted: rows that it put above.
        groups: population, split, language or channel -> value -> agreement there.
        pairs: kind of pair ("all" and each population with pairs) -> accuracy on pairs.
    """

    judge: JudgeId | None
    labels: str
    overall: Agreement
    unjudged: dict[str, int]
    refuted: Proportion
    admitted: Proportion
    gates: tuple[GateErrors, ...]
    groups: dict[str, dict[str, Agreement]]
    pairs: dict[str, PairAccuracy]
    misses: tuple[Miss, ...]


def trajectories_of(rows: Iterable[LabelledRow]) -> tuple[Trajectory, ...]:
    """What a judge has to look at, in the order of the rows.

    Raises:
        InputError: a row has no trajectory to judge.
    """
    found = []
    for row in rows:
        if row.trajectory is None:
            raise InputError(
                f"row {row.row_id or row.subject!r} has no trajectory, so nothing can judge it",
                remedy="give stored verdicts instead of a judge",
            )
        found.append(row.trajectory)
    return tuple(found)


def calibrate(rows: Sequence[LabelledRow], verdicts: Mapping[str, ReasoningVerdict]) -> Calibration:
    """Compare verdicts with labels; a row without a verdict counts as unjudged.

    Raises:
        InputError: there are no rows, none of them has a verdict, or the verdicts are of
            several judges.
    """
    given = [verdicts.get(row.subject) for row in rows]
    if not any(given):
        raise InputError(
            f"none of the {len(rows)} labelled rows has a verdict",
            remedy="name verdicts of the trajectories that were labelled",
        )
    judges = {verdict.judge for verdict in given if verdict is not None}
    if len(judges) > 1:
        names = ", ".join(sorted(f"{judge.name} {judge.version}" for judge in judges))
        raise InputError(
            f"the verdicts are of several judges: {names}", remedy="calibrate one at a time"
        )
    bins = [bin_of(verdict) for verdict in given]
    misses = _misses(rows, given)
    judged = sum(place is not None for place in bins)
    below = sum(miss.given < miss.label for miss in misses)
    return Calibration(
        judge=next(iter(judges)),
        labels=labels_digest(rows),
        overall=_agreement(rows, bins),
        unjudged=_unjudged(given),
        refuted=wilson(below, judged),
        admitted=wilson(len(misses) - below, judged),
        gates=tuple(_gate(gate, rows, bins) for gate in range(1, 5)),
        groups={
            name: _by(name, rows, bins) for name in ("population", "split", "language", "channel")
        },
        pairs=_pairs(rows, bins),
        misses=misses,
    )


def bin_of(verdict: ReasoningVerdict | None) -> int | None:
    """Place of a verdict in `QUALITY_BINS`; None when there is none or it is unjudged.

    Raises:
        InputError: the quality is none of the five values.
    """
    if verdict is None or verdict.quality is None:
        return None
    if verdict.quality not in QUALITY_BINS:
        raise InputError(
            f"quality {verdict.quality:g} is no bin of the tree", where=verdict.trajectory_id
        )
    return QUALITY_BINS.index(verdict.quality)


def _unjudged(given: Sequence[ReasoningVerdict | None]) -> dict[str, int]:
    reasons = Counter(
        "no verdict" if verdict is None else verdict.reason or "no reason given"
        for verdict in given
        if verdict is None or verdict.quality is None
    )
    return dict(sorted(reasons.items()))


def _agreement(rows: Sequence[LabelledRow], bins: Sequence[int | None]) -> Agreement:
    return agreement([row.bin for row in rows], bins, [row.cluster for row in rows])


def _by(name: str, rows: Sequence[LabelledRow], bins: Sequence[int | None]) -> dict[str, Agreement]:
    found = {}
    for value in sorted({getattr(row, name) for row in rows} - {""}):
        chosen = [place for place, row in enumerate(rows) if getattr(row, name) == value]
        found[value] = _agreement([rows[p] for p in chosen], [bins[p] for p in chosen])
    return found


def _gate(gate: int, rows: Sequence[LabelledRow], bins: Sequence[int | None]) -> GateErrors:
    judged = [(row.bin, place) for row, place in zip(rows, bins, strict=True) if place is not None]
    passing = [place for label, place in judged if label >= gate]
    failing = [place for label, place in judged if label == gate - 1]
    return GateErrors(
        gate=gate,
        question=GATES[gate - 1],
        refuted=wilson(sum(place == gate - 1 for place in passing), len(passing)),
        admitted=wilson(sum(place >= gate for place in failing), len(failing)),
    )


def _pairs(rows: Sequence[LabelledRow], bins: Sequence[int | None]) -> dict[str, PairAccuracy]:
    members: dict[str, list[tuple[LabelledRow, int | None]]] = {}
    for row, place in zip(rows, bins, strict=True):
        if row.pair:
            members.setdefault(row.pair, []).append((row, place))
    results: dict[str, list[tuple[str, bool, bool]]] = {}
    for pair in members.values():
        if len(pair) != 2 or any(place is None for _, place in pair):
            continue
        (one, a), (two, b) = pair
        assert a is not None
        assert b is not None
        right = a == one.bin and b == two.bin
        order = (a - b) * (one.bin - two.bin) > 0
        for name in ("all", one.population):
            results.setdefault(name, []).append((one.cluster, right, order))
    return {
        name: PairAccuracy(
            both_right=cluster_mean([float(r) for _, r, _ in found], [c for c, _, _ in found]),
            right_order=cluster_mean([float(o) for _, _, o in found], [c for c, _, _ in found]),
        )
        for name, found in sorted(results.items())
    }


def _misses(
    rows: Sequence[LabelledRow], given: Sequence[ReasoningVerdict | None]
) -> tuple[Miss, ...]:
    found = []
    for row, verdict in zip(rows, given, strict=True):
        if verdict is None or verdict.quality is None or verdict.quality == row.label:
            continue
        found.append(
            Miss(
                row_id=row.row_id or row.subject,
                population=row.population,
                script=row.script,
                split=row.split,
                label=row.label,
                given=verdict.quality,
                rationale=row.rationale,
                explanation=verdict.explanation,
            )
        )
    return tuple(found)
