"""A wording that is kept for the measuring side never trains, whatever unit it stands in.

A paraphrase bank that is held out takes every split unit that holds one of its problems out of
train and development. The unit goes whole, problems of other wordings with it, and a hash of the
same anchor chooses between held-out and never-touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from palio.records import ConfigError, IntegrityError, Problem, Record

MEASURING = ("heldout", "never-touch", "sealed")
"""The pools of which nothing trains and on which nothing is chosen; a lab has the last of them."""


class HeldoutWordings(Record, frozen=True, omit_defaults=False):
    """Which wordings were held out and what went with them; all counts are of published problems.

    Attributes:
        banks: names of the paraphrase banks, sorted.
        problems: problems in the words of one of them.
        units: split units that hold such a problem.
        mixed: those of them that hold problems of other wordings too.
        along: these other problems, which went along.
    """

    banks: tuple[str, ...]
    problems: int
    units: int
    mixed: int
    along: int


def check_banks(banks: Sequence[str], fractions: Mapping[str, float]) -> None:
    """Raise ConfigError for a bank without a name, or where no pool may take what is held out."""
    if not all(banks):
        raise ConfigError('heldout_banks names "", which is the bank of imported problems')
    if banks and not any(fractions.get(pool, 0.0) > 0 for pool in MEASURING):
        raise ConfigError(
            f"heldout_banks {', '.join(banks)} have no pool to go to",
            remedy=f"give a share to {' or '.join(MEASURING[:2])}",
        )


def check_known(banks: Iterable[str], problems: Iterable[Problem]) -> None:
    """Raise ConfigError when no problem is in the words of a bank: its name must be wrong."""
    known = {problem.bank for problem in problems} - {""}
    unknown = sorted(set(banks) - known)
    if unknown:
        raise ConfigError(
            f"no problem is in the words of bank {unknown[0]!r}",
            remedy=f"the banks of these problems are {', '.join(sorted(known)) or 'unknown'}",
        )


def open_shares(
    unit: Iterable[Problem], fractions: Mapping[str, float], banks: Sequence[str]
) -> Mapping[str, float]:
    """The shares among which the pool of a unit is chosen, in their order."""
    if not any(problem.bank in banks for problem in unit):
        return fractions
    return {pool: share for pool, share in fractions.items() if pool in MEASURING}


def check_kept(
    units: Sequence[Sequence[Problem]], kept: Sequence[str], banks: Sequence[str]
) -> None:
    """Raise IntegrityError when an earlier assignment has a held-out wording where it may not be.

    Args:
        units: split units.
        kept: for each the pool that it had, "" for a new one.
        banks: the held-out banks.
    """
    for unit, pool in zip(units, kept, strict=True):
        if not pool or pool in MEASURING:
            continue
        held = [problem for problem in unit if problem.bank in banks]
        if held:
            raise IntegrityError(
                f"problem {held[0].problem_id!r} is in the words of bank {held[0].bank!r}, which "
                f"is held out, and its unit is kept in {pool}",
                remedy="split anew, without the earlier pools, or leave heldout_banks out: "
                "nothing is moved silently",
            )


def count_wordings(
    units: Iterable[Sequence[str]],
    problems: Mapping[str, Problem],
    banks: Sequence[str],
    published: Iterable[str],
) -> HeldoutWordings:
    """Count the published problems of held-out wordings, their units, and what went along.

    Args:
        units: split units, as problem ids.
        problems: by id.
        banks: the held-out banks.
        published: ids of the problems that are counted.
    """
    public = frozenset(published)
    found = []
    for unit in units:
        inside = [problems[name].bank in banks for name in unit if name in public]
        if any(inside):
            found.append(inside)
    return HeldoutWordings(
        banks=tuple(sorted(banks)),
        problems=sum(map(sum, found)),
        units=len(found),
        mixed=sum(not all(inside) for inside in found),
        along=sum(len(inside) - sum(inside) for inside in found),
    )
