"""First part of the main job: worlds, their problems, and the pools they are split into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import msgspec

from palio.records import Problem, Suite, digest, from_json, to_json
from palio.rollout.workers import hear_interrupts, starting_workers
from palio.suites import (
    Clustering,
    assign_pools,
    check_disjoint,
    leak_clusters,
    read_suite,
    write_suite,
)
from palio.suites.wordings import check_known
from palio.world.artefacts import write_lines
from palio.world.catalogue import Catalogue, read_catalogue, write_catalogue
from palio.world.synthesis.config import SynthesisConfig, compact_config
from palio.world.synthesis.synthesise import synthesise
from palio.world.world import COMPACT, World

RACE = "compact-race"


class GroundConfig(Protocol):
    """What decides worlds and pools; the main job and the lab each have one."""

    @property
    def seed(self) -> int:
        """Of worlds and split."""

    @property
    def catalogues(self) -> int:
        """Worlds with their own brands."""

    @property
    def products(self) -> int:
        """Of each catalogue."""

    @property
    def problems(self) -> int:
        """Of each catalogue."""

    @property
    def race_problems(self) -> int:
        """Of the race's own catalogue."""

    @property
    def banks(self) -> tuple[str, ...]:
        """Paraphrase banks of the requests; empty = the compact world's usual ones."""

    @property
    def workers(self) -> int:
        """Processes."""

    @property
    def fractions(self) -> dict[str, float]:
        """Pool -> share."""


@dataclass(frozen=True)
class Ground:
    """Where everything happens: the problems by pool, and how to open their worlds.

    Attributes:
        folder: folder of the worlds.
        problems: all problems, those of the race too.
        race: the race's problems.
        pools: problem id -> train, development or heldout.
        clustering: leak clusters of all problems.
        composition: what the worlds are made of, summed over the catalogues.
    """

    folder: Path
    problems: tuple[Problem, ...]
    race: tuple[Problem, ...]
    pools: dict[str, str]
    clustering: Clustering
    composition: dict[str, dict[str, float]]

    def pool(self, name: str) -> tuple[Problem, ...]:
        """Problems of a pool, those of the race left out."""
        raced = {problem.problem_id for problem in self.race}
        return tuple(
            problem
            for problem in self.problems
            if self.pools[problem.problem_id] == name and problem.problem_id not in raced
        )

    def world(self, catalogue_id: str) -> World:
        """Open one world."""
        return open_world(self.folder, catalogue_id)

    def catalogue(self, catalogue_id: str) -> Catalogue:
        """Read one catalogue."""
        return read_catalogue(self.folder / catalogue_id)[0]

    @property
    def catalogue_ids(self) -> tuple[str, ...]:
        """Every catalogue, in order of first use."""
        return tuple(dict.fromkeys(problem.catalogue for problem in self.problems))


def open_world(folder: Path, catalogue_id: str) -> World:
    """The compact world over one catalogue of a folder of worlds."""
    return World.build(read_catalogue(folder / catalogue_id)[0], COMPACT)


def synthesis_configs(config: GroundConfig) -> list[SynthesisConfig]:
    """One configuration a catalogue; the race's comes last."""
    first = config.seed * 1_000
    banks = config.banks
    many = [
        compact_config(
            first + number, products=config.products, problems=config.problems, banks=banks
        )
        for number in range(config.catalogues)
    ]
    race = compact_config(
        first + config.catalogues,
        products=config.products,
        problems=config.race_problems,
        banks=banks,
    )
    return [*many, msgspec.structs.replace(race, catalogue_id=RACE)]


def make_worlds(
    config: GroundConfig,
    folder: Path,
    advance: Callable[[int], None],
    heldout_banks: Sequence[str] = (),
) -> dict[str, Any]:
    """Synthesise every catalogue, split all problems into pools, and write both.

    Args:
        config: of worlds and pools.
        folder: where both are written.
        advance: called with the number of worlds that are made.
        heldout_banks: paraphrase banks whose problems never train; see `assign_pools`.

    Raises:
        ConfigError: no problem is in the words of such a bank.
    """
    wanted = synthesis_configs(config)
    made: list[tuple[tuple[Problem, ...], dict[str, dict[str, float]]]] = []
    context = get_context("spawn")
    with ProcessPoolExecutor(
        config.workers, mp_context=context, initializer=hear_interrupts
    ) as pool:
        with starting_workers():
            results = pool.map(_make_world, wanted, [folder] * len(wanted))
        for result in results:
            made.append(result)
            advance(len(made))
    problems = [problem for each, _ in made for problem in each]
    check_known(heldout_banks, problems)
    clustering = leak_clusters(problems)
    pools = assign_pools(
        problems,
        clustering,
        config.fractions,
        salt=f"main-{config.seed}",
        heldout_banks=heldout_banks,
    )
    by_pool: dict[str, list[Problem]] = {name: [] for name in config.fractions}
    for problem in problems:
        by_pool[pools[problem.problem_id]].append(problem)
    checked = check_disjoint(by_pool)
    suite = Suite(suite_id=f"main-{config.seed}", version="1", problems=tuple(problems))
    write_suite(suite, folder / "suite.json")
    write_lines(folder / "pools.json", [to_json(pools)])
    write_lines(folder / "composition.json", [to_json(_summed([each for _, each in made]))])
    return {
        "problems": len(problems),
        "clusters": len(clustering.members),
        "pools": checked.problems,
        "suite": suite.content_digest(),
        "catalogues": len(made),
        "products": sum(each.products for each in wanted),
    }


def _make_world(
    config: SynthesisConfig, folder: Path
) -> tuple[tuple[Problem, ...], dict[str, dict[str, float]]]:
    made = synthesise(config)
    write_catalogue(made.catalogue, folder / config.name)
    return made.problems, made.composition


def _summed(
    compositions: Sequence[dict[str, dict[str, float]]],
) -> dict[str, dict[str, float]]:
    """Composition tables over all worlds: counts added up; shares, of the problems of all."""
    total: dict[str, Counter[str]] = {}
    for each in compositions:
        problems = sum(each["problems"].values())
        for table, counts in each.items():
            weight = problems if table.startswith("share") else 1
            total.setdefault(table, Counter()).update(
                {key: weight * value for key, value in counts.items()}
            )
    problems = sum(total["problems"].values())
    return {
        table: {
            key: round(value / problems, 4) if table.startswith("share") else value
            for key, value in counts.items()
        }
        for table, counts in total.items()
    }


def open_ground(folder: Path) -> Ground:
    """Read what `make_worlds` wrote."""
    suite = read_suite(folder / "suite.json")
    pools, composition = folder / "pools.json", folder / "composition.json"
    return Ground(
        folder=folder,
        problems=suite.problems,
        race=tuple(problem for problem in suite.problems if problem.catalogue == RACE),
        pools=from_json(pools.read_bytes(), dict[str, str], where=str(pools)),
        clustering=leak_clusters(suite.problems),
        composition=from_json(
            composition.read_bytes(), dict[str, dict[str, float]], where=str(composition)
        ),
    )


def evenly(problems: Iterable[Problem], count: int, salt: str) -> tuple[Problem, ...]:
    """About `count` problems, as many of every kind, chosen by salted digest, not by order.

    A count that the number of kinds does not divide is rounded up, 2,000 of three kinds to 2,001;
    of a kind that has fewer, all are taken.
    """
    by_kind: dict[str, list[Problem]] = {}
    for problem in sorted(problems, key=lambda each: digest([salt, each.problem_id])):
        by_kind.setdefault(problem.kind, []).append(problem)
    share = -(-count // max(1, len(by_kind)))
    chosen = [problem for kind in sorted(by_kind) for problem in by_kind[kind][:share]]
    return tuple(sorted(chosen, key=lambda each: each.problem_id))
