"""Training problems and their worlds: only problems of the training pool ever come out of here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from palio.agents.solvable import unsolvable
from palio.corpus.build import POOL_FILE
from palio.corpus.membership import check_problems
from palio.judging.encoders import TitleEncoder
from palio.records import InputError, Problem, digest, from_json
from palio.suites.files import read_suite
from palio.train.inputs import check_listed
from palio.world.catalogue import read_catalogues
from palio.world.tools import SEVEN_TOOLS
from palio.world.world import World, world_of_catalogue

LOG = logging.getLogger(__name__)
TRAIN = "train"


class Worlds(Mapping[str, World]):
    """Worlds by catalogue id, each built when it is first asked for; safe from many threads."""

    def __init__(self, makers: Mapping[str, Callable[[], World]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, World] = {}
        self._lock = threading.Lock()

    def __getitem__(self, catalogue: str) -> World:
        with self._lock:
            if catalogue not in self._made:
                self._made[catalogue] = self._makers[catalogue]()
            return self._made[catalogue]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True)
class Ground:
    """Where training problems are run.

    Attributes:
        problems: of the training pool, in suite order.
        worlds: catalogue id -> world, for every catalogue that a problem names.
        encoder: title similarity of the scorer.
        tools: that a policy is told of, as far as they can be carried out.
    """

    problems: tuple[Problem, ...]
    worlds: Mapping[str, World]
    encoder: TitleEncoder
    tools: tuple[str, ...] = SEVEN_TOOLS

    def digest(self) -> str:
        """Digest of problems, scorer and other tools than all; problems name the catalogues."""
        told = [] if self.tools == SEVEN_TOOLS else [list(self.tools)]
        return digest([self.encoder.encoder_id, list(self.problems), *told])

    def worlds_digest(self) -> str:
        """Digest of the worlds that problems name; builds those that were not yet."""
        named = sorted({problem.catalogue for problem in self.problems})
        return digest({name: self.worlds[name].digest for name in named})

    def only(self, wanted: Callable[[str], bool]) -> Ground:
        """The same worlds with the problems whose id is wanted."""
        kept = tuple(each for each in self.problems if wanted(each.problem_id))
        return replace(self, problems=kept)

    def evenly(self, count: int, salt: str) -> tuple[Problem, ...]:
        """At most `count` problems, see `evenly`."""
        return evenly(self.problems, count, salt, lambda problem: problem.problem_id)


class Kinded(Protocol):
    """What has a kind of problem."""

    @property
    def kind(self) -> str:
        """E.g. product."""


K = TypeVar("K", bound=Kinded)


def evenly(held: Sequence[K], count: int, salt: str, name: Callable[[K], str]) -> tuple[K, ...]:
    """At most `count`, the kinds evenly, chosen by salted digest, in their old order; 0: all.

    Args:
        held: problems, or rows of a corpus.
        count: how many; 0: all.
        salt: of the digests.
        name: what a digest is taken of.
    """
    if not count or count >= len(held):
        return tuple(held)
    by_kind: dict[str, list[int]] = {}
    for place in sorted(range(len(held)), key=lambda place: digest([salt, name(held[place])])):
        by_kind.setdefault(held[place].kind, []).append(place)
    chosen: list[int] = []
    queues = [by_kind[kind] for kind in sorted(by_kind)]
    while len(chosen) < count:
        queues = [queue for queue in queues if queue]
        chosen += [queue.pop(0) for queue in queues[: count - len(chosen)]]
    return tuple(held[place] for place in sorted(chosen))


def open_ground(
    suite: Path,
    catalogues: Sequence[Path],
    pools: Path | None = None,
    *,
    encoder: TitleEncoder,
    world: str = "auto",
) -> Ground:
    """The training problems of a suite.

    Args:
        suite: suite file.
        catalogues: catalogue folders of the suite.
        pools: a corpus folder or a file problem id -> pool; None: every problem of the suite is
            for training.
        encoder: title similarity of the scorer.
        world: configuration of the worlds; "auto": as the catalogue says.

    Raises:
        InputError: a problem's catalogue is missing or another's, where most of its problems cannot
            be solved; no problem is in the training pool; or one is not the corpus' of that id.
        IntegrityError: the pools of a corpus are not those that its manifest lists.
    """
    problems = read_suite(suite).problems
    if pools is not None:
        path = pools / POOL_FILE if pools.is_dir() else pools
        try:
            pool_of = from_json(path.read_bytes(), dict[str, str], where=str(path))
        except OSError as error:
            raise InputError(
                f"cannot read the pools: {error.strerror}",
                where=str(path),
                remedy="`palio corpus build` writes them",
            ) from error
        if pools.is_dir():
            check_listed(pools, POOL_FILE)
            check_problems(pools, problems, suite)
        problems = tuple(each for each in problems if pool_of.get(each.problem_id) == TRAIN)
    if not problems:
        raise InputError("no problem of the suite is in the training pool", where=str(suite))
    found, rejects = read_catalogues(catalogues)
    if rejects:
        first = rejects[0]
        told = "%d lines of the catalogues are no products, %s:%d first: %s"
        LOG.warning(told, len(rejects), first.file, first.line, first.detail)
    missing = sorted({problem.catalogue for problem in problems} - found.keys())
    if missing:
        raise InputError(
            f"no catalogue {missing[0]!r}, which training problems name",
            where=str(suite),
            remedy="name every catalogue of the suite with --catalogue",
        )
    for name, lost in unsolvable(problems, found, encoder).items():
        told = "%d training problems cannot be solved in catalogue %r, %r first"
        LOG.warning(told, len(lost), name, lost[0])
    makers = {
        name: (lambda held=catalogue: world_of_catalogue(held, world))
        for name, catalogue in found.items()
    }
    return Ground(problems, Worlds(makers), encoder)
