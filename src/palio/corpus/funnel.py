"""Every row that enters a step leaves it as kept or as rejected with a counted reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from palio.records import InputError, IntegrityError, Record, from_json
from palio.records.base import current_schema

FUNNEL = "funnel.json"


class FunnelStep(Record, frozen=True, omit_defaults=False):
    """One step: rows in, rows kept, rows rejected by reason in falling order of count."""

    name: str
    taken: int
    kept: int
    rejected: dict[str, int]


class PoolCount(Record, frozen=True, omit_defaults=False):
    """What a pool holds. `queries` counts different normalised texts: rows are not problems."""

    rows: int
    problems: int
    clusters: int
    queries: int


class AgentCount(Record, frozen=True, omit_defaults=False):
    """Rows of one agent: how many came in, how many stayed."""

    taken: int
    kept: int


class Funnel(Record, frozen=True, omit_defaults=False):
    """Ordered counts of a corpus build.

    Attributes:
        steps: in the order in which they were applied; each takes what the one before kept.
        pools: what the kept rows became.
        agents: rows in and kept by agent name, most kept first.
    """

    steps: tuple[FunnelStep, ...]
    pools: dict[str, PoolCount] = {}
    agents: dict[str, AgentCount] = {}
    schema_version: str = msgspec.field(default_factory=current_schema)

    @property
    def taken(self) -> int:
        """Rows that came in."""
        return self.steps[0].taken if self.steps else 0

    @property
    def kept(self) -> int:
        """Rows that came out."""
        return self.steps[-1].kept if self.steps else 0

    def counts(self) -> dict[str, int]:
        """Flat counts for a manifest: in, kept, rejected:<reason>, rows:<pool>."""
        flat = {"in": self.taken, "kept": self.kept}
        for step in self.steps:
            for reason, count in step.rejected.items():
                flat[f"rejected:{reason}"] = flat.get(f"rejected:{reason}", 0) + count
        return flat | {f"rows:{pool}": count.rows for pool, count in self.pools.items()}

    def check(self) -> Funnel:
        """The funnel itself, once every step adds up and takes what the one before kept.

        Raises:
            IntegrityError: a row was lost or counted twice; names the step.
        """
        before = None
        for step in self.steps:
            lost = step.taken - step.kept - sum(step.rejected.values())
            if lost:
                raise IntegrityError(
                    f"step {step.name!r} took {step.taken} rows and accounts for "
                    f"{step.taken - lost}",
                    remedy="this is a defect of palio: a row was dropped without a reason",
                )
            if before is not None and before.kept != step.taken:
                raise IntegrityError(
                    f"step {step.name!r} took {step.taken} rows, {before.name!r} kept {before.kept}"
                )
            before = step
        if self.pools and sum(pool.rows for pool in self.pools.values()) != self.kept:
            raise IntegrityError(f"the pools do not hold the {self.kept} kept rows")
        return self


class Tally:
    """Counts rows through named steps in a fixed order; the one place where rows are counted."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._rejected: dict[str, Counter[str]] = {name: Counter() for name in names}
        self._kept: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def take(self, step: str, rows: int = 1) -> None:
        """`rows` rows enter a step."""
        self._taken[step] += rows

    def keep(self, step: str, rows: int = 1) -> None:
        """`rows` rows pass a step."""
        self._kept[step] += rows

    def drop(self, step: str, reason: str) -> None:
        """One row is rejected by a step."""
        self._rejected[step][reason] += 1

    def steps(self) -> tuple[FunnelStep, ...]:
        """The counts so far."""
        return tuple(
            FunnelStep(
                name=name,
                taken=self._taken[name],
                kept=self._kept[name],
                rejected=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
            )
            for name, reasons in self._rejected.items()
        )


def read_funnel(folder: Path) -> Funnel:
    """The funnel of a corpus folder.

    Raises:
        InputError: there is none, or it is not a funnel.
    """
    path = folder / FUNNEL
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"no funnel here: {error.strerror}",
            where=str(path),
            remedy="name the --out folder of a finished `palio corpus build`",
        ) from error
    return from_json(data, Funnel, where=str(path))


def agent_counts(taken: Mapping[str, int], kept: Iterable[str]) -> dict[str, AgentCount]:
    """Rows that came in and that stayed by agent, those with the most kept rows first.

    Args:
        taken: agent -> rows that came in.
        kept: the agent of each kept row.
    """
    stayed = Counter(kept)
    names = sorted(taken, key=lambda name: (-stayed[name], name))
    return {name: AgentCount(taken=taken[name], kept=stayed[name]) for name in names}
