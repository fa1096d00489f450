"""The rows of an arm: one row a problem, the same problems for every arm, chosen by digest alone.

Two arms that differ in one gate share the row of every problem whose row passes it in both, and
the order in which rows stand: what differs between them is the treatment and nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from palio.corpus.rows import CorpusRow
from palio.evaluate.experiment.firehose import FirehoseRow
from palio.evaluate.experiment.plan import Arm, Plan
from palio.records import InputError, digest, from_json

TRAIN, HELDOUT = "train", "heldout"

Candidates = dict[str, list[FirehoseRow]]
"""Problem id -> its eligible rows, the preferred one first."""


def eligible(arm: Arm, rows: Iterable[FirehoseRow], salt: str) -> Candidates:
    """The rows that an arm may train on, by problem.

    A row's place within its problem is a digest of salt and trajectory, so that it is the same in
    every arm of a seed.
    """
    found: defaultdict[str, list[FirehoseRow]] = defaultdict(list)
    for row in rows:
        if row.pool == TRAIN and _fits(arm, row):
            found[row.problem_id].append(row)
    kept = {}
    for problem in sorted(found):
        inside = _share_of(problem, salt) < arm.share
        rows_of = [row for row in found[problem] if _belongs(arm, row, inside=inside)]
        if rows_of:
            kept[problem] = sorted(rows_of, key=lambda row: digest([salt, row.trajectory_id]))
    return kept


def _belongs(arm: Arm, row: FirehoseRow, *, inside: bool) -> bool:
    """Whether a row is of the arm's share: agentic ones inside of it, salvaged ones beyond it."""
    return inside != row.salvaged if arm.salvaged and arm.share < 1 else inside


def _fits(arm: Arm, row: FirehoseRow) -> bool:
    if row.bank in arm.banks_out or (row.salvaged and not arm.salvaged):
        return False
    if row.salvaged:
        # written by a narrator: its thinking is neither gated nor counted
        return {"outcome", "structural"} <= set(row.passed)
    if arm.agents and row.agent not in arm.agents:
        return False
    return set(arm.gates) <= set(row.passed)


def _share_of(problem: str, salt: str) -> float:
    """A number in [0, 1) that is uniform over problems; shares of a salt are nested."""
    return int(digest([salt, "share", problem])[7:23], 16) / 16**16


def problems_of(plan: Plan, candidates: dict[str, Candidates]) -> dict[str, tuple[str, ...]]:
    """The problems that each arm trains on.

    Raises:
        InputError: the arms have no problem in common.
    """
    if plan.support == "own" or not candidates:
        return {name: tuple(each) for name, each in candidates.items()}
    shared = set.intersection(*(set(each) for each in candidates.values()))
    if not shared:
        raise InputError(
            f"no problem has a row in every arm of plan {plan.name}",
            remedy='ask less of its arms (gates, agents, share), or say support = "own"',
        )
    return dict.fromkeys(candidates, tuple(sorted(shared)))


def draw(plan: Plan, arm: Arm, rows: Sequence[FirehoseRow], salt: str) -> list[CorpusRow]:
    """The training rows of an arm under one seed, in an order that all arms share.

    Args:
        plan: its arms decide the shared support.
        arm: one of them.
        rows: the firehose.
        salt: of the seed.
    """
    # where no arm is fine-tuned, the stages that mix rows in decide what the plan trains on
    trained = [one for one in plan.arms if one.sft] or [one for one in plan.arms if one.stages]
    candidates = {each.name: eligible(each, rows, salt) for each in trained}
    chosen = problems_of(plan, candidates)
    own = candidates[arm.name] if arm.sft else eligible(arm, rows, salt)
    if not arm.sft:  # its stages mix rows in; they may be of any problem that the plan trains on
        shared = own if plan.support == "own" else next(iter(chosen.values()), ())
        chosen[arm.name] = tuple(problem for problem in shared if problem in own)
    picked = [_picked(arm, own[problem], salt) for problem in chosen[arm.name]]
    if arm.exposed:
        picked += _exposed(arm, rows, salt)
    picked.sort(key=lambda row: digest([salt, "order", row.problem_id]))
    return [from_json(bytes(row.row), CorpusRow, where=row.trajectory_id) for row in picked]


def _picked(arm: Arm, rows: Sequence[FirehoseRow], salt: str) -> FirehoseRow:
    """The row of one problem: a salvaged one for its share of the problems, where there is one."""
    wants = _share_of(rows[0].problem_id, f"{salt}-salvaged") < arm.salvaged
    for row in rows:
        if row.salvaged == wants:
            return row
    return rows[0]


def exposed_clusters(arm: Arm, rows: Iterable[FirehoseRow], salt: str) -> frozenset[str]:
    """Held-out clusters that this seed exposes, drawn by digest."""
    clusters = {row.cluster_id for row in rows if row.pool == HELDOUT}
    chosen = (c for c in clusters if _share_of(c, f"{salt}-exposed") < arm.exposed)
    return frozenset(chosen)


def _exposed(arm: Arm, rows: Sequence[FirehoseRow], salt: str) -> list[FirehoseRow]:
    """`copies` rows of every exposed problem, different ones first."""
    exposed = exposed_clusters(arm, rows, salt)
    found: defaultdict[str, list[FirehoseRow]] = defaultdict(list)
    for row in rows:
        good = set(arm.gates) <= set(row.passed) and not row.salvaged
        if row.pool == HELDOUT and row.cluster_id in exposed and good:
            found[row.problem_id].append(row)
    taken = []
    for problem in sorted(found):
        each = sorted(found[problem], key=lambda row: digest([salt, row.trajectory_id]))
        taken += [each[place % len(each)] for place in range(arm.copies)]
    return taken


def salt_of(seed: int) -> str:
    """What decides the draws of a seed; the same for every plan and arm."""
    return digest(["lab", seed])
