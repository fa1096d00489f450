"""Nothing trains, and nothing is chosen, on a wording that is said to be held out.

Written from its description in docs/leak-guard.md alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from palio.corpus.verify.evidence import SHOWN, Evidence
from palio.corpus.verify.files import NEVER
from palio.corpus.verify.shapes import PoolRule

MEASURING = ("heldout", NEVER)
"""The pools that a held-out wording may stand in."""


def is_held_out(evidence: Evidence, rule: PoolRule, unit: Sequence[str]) -> bool:
    """Whether a unit holds a problem of a held-out wording."""
    return any(evidence.tasks[name].bank in banks_of(rule) for name in unit)


def banks_of(rule: PoolRule) -> tuple[str, ...]:
    """The banks that are said to be held out."""
    return rule.wordings.banks if rule.wordings is not None else ()


def check_wordings(
    evidence: Evidence,
    rule: PoolRule,
    units: Sequence[Sequence[str]],
    pool_of: Mapping[str, str],
) -> None:
    """Name every row and problem of a held-out wording that stands elsewhere, and count again.

    Args:
        evidence: the corpus.
        rule: as stated.
        units: all split units.
        pool_of: assigned pools.
    """
    banks = banks_of(rule)
    if not banks or rule.wordings is None:
        return
    rows: dict[tuple[str, str], list[str]] = {}
    for row in evidence.rows:
        task = evidence.tasks.get(row.problem_id)
        if task is not None and task.bank in banks and row.pool not in MEASURING:
            rows.setdefault((row.problem_id, row.pool), []).append(row.place)
    for name, pool in pool_of.items():
        task = evidence.tasks.get(name)
        if task is not None and task.bank in banks and pool not in MEASURING:
            rows.setdefault((name, pool), [])
    for (name, pool), places in sorted(rows.items()):
        bank = evidence.tasks[name].bank
        what = f"{name!r} stands in {pool}, and its wording {bank!r} is held out"
        evidence.complain("wording", what, *places[:SHOWN])
    held = [[evidence.tasks[name].bank in banks for name in unit] for unit in units]
    found = [inside for inside in held if any(inside)]
    counts = {
        "problems": sum(map(sum, found)),
        "units": len(found),
        "mixed": sum(not all(inside) for inside in found),
        "along": sum(len(inside) - sum(inside) for inside in found),
    }
    for key, own in counts.items():
        if own != (said := getattr(rule.wordings, key)):
            what = f"it states wordings {key} = {said}, found {own}"
            evidence.complain("certificate", what)
    evidence.checked["wording"] = counts["problems"]
