"""What changed between two versions of a judge, on the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from palio.evaluate.calibration.labels import LabelledRow
from palio.evaluate.calibration.report import bin_of
from palio.evaluate.comparison import McNemar, PairedDifference, mcnemar, paired_difference
from palio.evaluate.comparison import paired_table as table_of
from palio.evaluate.statistics import Estimate, Proportion, cluster_mean, wilson
from palio.records import InputError, Record
from palio.records.verdict import QUALITY_BINS, JudgeId, ReasoningVerdict


class Drift(Record, frozen=True, omit_defaults=False):
    """A newer judge against an older one.

    Attributes:
        n: rows that both judged.
        changed: rows whose bin differs.
        raised: rows that the newer put higher.
        shift: mean of newer minus older quality, in [-0.8, 0.8].
        accuracy: share in the label's bin, newer minus older (Tango's interval).
        test: McNemar's exact test of equal accuracy.
        moves: row id -> (label, older, newer) of the rows whose bin differs.
    """

    older: JudgeId | None
    newer: JudgeId | None
    n: int
    changed: Proportion
    raised: int
    lowered: int
    shift: Estimate
    accuracy: PairedDifference
    test: McNemar
    moves: dict[str, tuple[float, float, float]]


def drift(
    rows: Sequence[LabelledRow],
    older: Mapping[str, ReasoningVerdict],
    newer: Mapping[str, ReasoningVerdict],
) -> Drift:
    """Compare two sets of verdicts on the rows that both judged.

    Raises:
        InputError: no row was judged by both.
    """
    both = [
        (row, old, new)
        for row in rows
        if (old := bin_of(older.get(row.subject))) is not None
        and (new := bin_of(newer.get(row.subject))) is not None
    ]
    if not both:
        raise InputError("no labelled row was judged by both versions")
    table = table_of([n == r.bin for r, _, n in both], [o == r.bin for r, o, _ in both])
    moved = [(row, old, new) for row, old, new in both if old != new]
    value = QUALITY_BINS
    return Drift(
        older=next((v.judge for v in older.values()), None),
        newer=next((v.judge for v in newer.values()), None),
        n=len(both),
        changed=wilson(len(moved), len(both)),
        raised=sum(new > old for _, old, new in moved),
        lowered=sum(new < old for _, old, new in moved),
        shift=cluster_mean(
            [value[new] - value[old] for _, old, new in both],
            [row.cluster for row, _, _ in both],
            bounds=(-0.8, 0.8),
        ),
        accuracy=paired_difference(table),
        test=mcnemar(table),
        moves={
            row.row_id or row.subject: (row.label, value[old], value[new])
            for row, old, new in moved
        },
    )
