"""Every unit stands in the pool that the published rule draws for it, or it is named.

Two pools that were exchanged in all files leak nothing into each other, so that no comparison of
rows tells: only the rule does. Written from its description in docs/leak-guard.md alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from palio.corpus.verify import texts
from palio.corpus.verify.clusters import components
from palio.corpus.verify.evidence import SHOWN, Evidence
from palio.corpus.verify.files import NEVER, POOLS, canonical_digest
from palio.corpus.verify.shapes import PoolRule, Task
from palio.corpus.verify.wordings import MEASURING, banks_of, check_wordings, is_held_out

PLAIN, WORDED = "palio-pools-1", "palio-pools-2"
"""The rule, and the same with wordings that are held out."""
ORDER = (*POOLS, NEVER)
"""In which order shares are added up."""

Unit = tuple[str, ...]


def check_split(
    evidence: Evidence,
    clusters: Sequence[Unit],
    pool_of: Mapping[str, str],
    suspected: Iterable[Sequence[str]],
    earlier: Mapping[str, str] | None,
) -> tuple[str, ...]:
    """Compare the pool of every unit with the rule; gives what could not be compared, and why.

    Args:
        evidence: the corpus.
        clusters: its clusters, computed again.
        pool_of: assigned pools.
        suspected: sets of problems that are suspected of being one.
        earlier: the assignment that pools were kept from, None when it is not at hand.
    """
    rule = evidence.stated.rule
    if rule is None:
        return (
            "pools: this certificate is older than the statement by which rule units became pools, "
            "so that exchanged pools would not be seen; build the corpus again",
        )
    wanted = WORDED if banks_of(rule) else PLAIN
    if rule.version != wanted or not _open(rule, held=wanted == WORDED):
        what = f"the pool rule {rule.version!r} with {rule.fractions} is not known here"
        evidence.complain("split", what)
        return ()
    every = _units(evidence, clusters, pool_of, suspected)
    check_wordings(evidence, rule, every, pool_of)
    # a unit in two pools is a leak, and named as one
    units = [unit for unit in every if len({pool_of[name] for name in unit}) == 1]
    carried = _carried(evidence, rule, pool_of, earlier)
    if evidence.rules.split != "stratified":
        unsure = _check_drawn(evidence, rule, units, pool_of, carried)
    elif NEVER in pool_of.values():
        return (
            "pools: a stratified split depends on all problems, and the never-touch ones are not "
            "published",
        )
    else:
        unsure = _check_placed(evidence, rule, units, pool_of, carried)
    evidence.checked["split"] = len(units) - len(unsure)
    if not unsure or earlier is not None:
        return ()
    first = f"{unsure[0][0]!r} in {pool_of[unsure[0][0]]}"
    return (
        f"pools: {len(unsure)} of {len(units)} units, the first with {first}, are said to stand "
        "where an earlier corpus put them, and nothing here shows it; give that corpus with "
        "--previous",
    )


def _units(
    evidence: Evidence,
    clusters: Sequence[Unit],
    pool_of: Mapping[str, str],
    suspected: Iterable[Sequence[str]],
) -> list[Unit]:
    """Clusters, joined where they share a family, and where suspicions were to stand together."""
    named = [name for name in sorted(evidence.tasks) if name in pool_of]
    inside = {str(n): [m for m in unit if m in pool_of] for n, unit in enumerate(clusters)}
    families = {
        family: [name for name in held if name in pool_of]
        for family, held in evidence.keys["family"].items()
    }
    keys = [{key: held for key, held in each.items() if held} for each in (inside, families)]
    pairs = []
    if evidence.rules.weak == "together":
        pairs = [(names[0], other) for names in suspected for other in names[1:]]
    return components(named, keys, pairs)


def _carried(
    evidence: Evidence,
    rule: PoolRule,
    pool_of: Mapping[str, str],
    earlier: Mapping[str, str] | None,
) -> frozenset[str]:
    """The problems that are said to have kept their pools; with the earlier corpus this is so."""
    if rule.carried and not rule.earlier:
        evidence.complain("split", "pools are said to be kept, and not from where")
        return frozenset()
    if earlier is not None and rule.carried:
        if canonical_digest(dict(earlier)) != rule.earlier:
            evidence.complain("split", "the pools were kept from another corpus than this one")
        for name in rule.carried:
            if earlier.get(name) != pool_of.get(name):
                was, now = earlier.get(name, "no pool"), pool_of.get(name, "none")
                what = f"{name!r} is said to have kept its pool: it had {was}, it has {now}"
                evidence.complain("split", what, *evidence.places.get(name, ())[:SHOWN])
    return frozenset(rule.carried)


def _check_drawn(
    evidence: Evidence,
    rule: PoolRule,
    units: Sequence[Unit],
    pool_of: Mapping[str, str],
    carried: frozenset[str],
) -> list[Unit]:
    """Units by the salted hash of their anchor; gives those that only an earlier corpus explains.

    A unit that grew keeps the pool that a smaller one was drawn, whose anchor was the anchor of one
    of its problems alone: the smallest of many hashes is the smallest of each problem's.
    """
    unsure = []
    for unit in units:
        pool = pool_of[unit[0]]
        held = is_held_out(evidence, rule, unit)
        wanted = draw(anchor([evidence.tasks[name] for name in unit], rule.salt), rule, held)
        if pool == wanted:
            continue
        kept = [name for name in unit if name in carried]
        if any(pool in _drawn_before(evidence.tasks[name], rule, held) for name in kept):
            continue
        if kept:
            unsure.append(unit)
        else:
            _misplaced(evidence, unit, pool, wanted)
    return unsure


def _drawn_before(task: Task, rule: PoolRule, held: bool) -> set[str]:
    """The pools that a problem's anchor alone draws; the smaller unit may have been held out."""
    name = anchor([task], rule.salt)
    return {draw(name, rule, each) for each in {False, held}}


def _misplaced(evidence: Evidence, unit: Unit, pool: str, wanted: str) -> None:
    more = f" and {len(unit) - SHOWN} more" if len(unit) > SHOWN else ""
    names = ", ".join(repr(name) for name in unit[:SHOWN])
    rows = [place for name in unit for place in evidence.places.get(name, ())]
    what = f"the rule puts {names}{more} into {wanted}, here {pool} is the pool"
    evidence.complain("split", what, *rows[:SHOWN])


def anchor(tasks: Sequence[Task], salt: str) -> str:
    """What names a unit: of its families, else products, else ids the one of smallest hash."""
    keys = [texts.keys(task) for task in tasks]
    for rule in ("family", "product", "problem"):
        named = {f"{rule} {key}" for each in keys for key in each[rule]}
        if named:
            return min(named, key=lambda name: (_hash(salt, "anchor", name), name))
    return ""


def draw(name: str, rule: PoolRule, held: bool = False) -> str:
    """The pool of an anchor: its hash as a number from 0 to 1 among the shares, added up.

    A unit of a held-out wording is drawn among the measuring pools: the number times their sum.
    """
    pools = _open(rule, held)
    whole = sum(rule.fractions[pool] for pool in pools) if held else 1.0
    position = int(_hash(rule.salt, "pool", name)[:13], 16) / 16**13 * whole
    reached, pool = 0.0, ""
    for pool in pools:
        reached += rule.fractions[pool]
        if position < reached:
            break
    return pool


def _shared(rule: PoolRule) -> list[str]:
    return [pool for pool in ORDER if rule.fractions.get(pool, 0.0) > 0]


def _open(rule: PoolRule, held: bool) -> list[str]:
    """The pools that a unit may be put into."""
    return [pool for pool in _shared(rule) if not held or pool in MEASURING]


def _hash(salt: str, purpose: str, text: str) -> str:
    return hashlib.sha256(f"{salt}\0{purpose}\0{text}".encode()).hexdigest()


def _check_placed(
    evidence: Evidence,
    rule: PoolRule,
    units: Sequence[Unit],
    pool_of: Mapping[str, str],
    carried: frozenset[str],
) -> list[Unit]:
    """Units of a stratified split, placed again after those that were there before."""
    counts = {unit: _strata(evidence, unit) for unit in units}
    total: Counter[str] = Counter()
    for each in counts.values():
        total.update(each)
    held: defaultdict[str, Counter[str]] = defaultdict(Counter)
    kept = [unit for unit in units if not carried.isdisjoint(unit)]
    for unit in kept:
        held[pool_of[unit[0]]].update(counts[unit])
    fresh = [unit for unit in units if carried.isdisjoint(unit)]
    for unit in sorted(
        fresh, key=lambda each: (-len(each), _hash(rule.salt, "stratified", each[0]))
    ):
        wanted = min(
            _open(rule, is_held_out(evidence, rule, unit)),
            key=lambda pool: _farther(counts[unit], held[pool], total, rule.fractions[pool]),
        )
        held[wanted].update(counts[unit])
        if pool_of[unit[0]] != wanted:
            _misplaced(evidence, unit, pool_of[unit[0]], wanted)
    return kept


def _strata(evidence: Evidence, unit: Unit) -> Counter[str]:
    """Problems by kind, by difficulty and by size of the unit, in order of appearance."""
    size = len(unit)
    told = "1" if size == 1 else "2-3" if size < 4 else "4-7" if size < 8 else "8+"
    found: Counter[str] = Counter()
    for name in unit:
        task = evidence.tasks[name]
        found.update((f"kind {task.kind}", f"difficulty {task.difficulty}", f"size {told}"))
    return found


def _farther(
    more: Mapping[str, int], held: Mapping[str, int], total: Mapping[str, int], share: float
) -> float:
    """By how much a pool comes to stand farther from its share of every stratum."""
    change = 0.0
    for stratum, count in more.items():
        wanted = share * total[stratum]
        change += count * (2 * (held.get(stratum, 0) - wanted) + count) / wanted
    return change
