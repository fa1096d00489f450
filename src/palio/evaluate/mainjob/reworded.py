"""The trained policy asked in words that no training problem has, in a catalogue of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from palio.evaluate.mainjob.config import PRODUCTS_A_PROBLEM, MainJobConfig
from palio.evaluate.mainjob.measure import Exam
from palio.evaluate.mainjob.worlds import Ground, open_world
from palio.records import Suite
from palio.suites import leak_clusters, read_suite, write_suite
from palio.world.catalogue import write_catalogue
from palio.world.synthesis.config import compact_config
from palio.world.synthesis.synthesise import synthesise
from palio.world.synthesis.wording import banks_for

CATALOGUE = "compact-reworded"
SUITE = "suite.json"


def make_reworded(config: MainJobConfig, ground: Ground, folder: Path) -> dict[str, Any]:
    """Make the catalogue and the problems, and leave out those that share a cluster with others.

    Args:
        config: seed and sizes.
        ground: all other problems of the job.
        folder: for catalogue and suite.
    """
    wanted = compact_config(
        config.seed * 1_000 + config.catalogues + 1,
        products=max(config.products, PRODUCTS_A_PROBLEM * config.reworded),
        problems=config.reworded,
        banks=banks_for("compact", "measuring"),
    )
    made = synthesise(msgspec.structs.replace(wanted, catalogue_id=CATALOGUE))
    write_catalogue(made.catalogue, folder / CATALOGUE)
    clusters = leak_clusters([*ground.problems, *made.problems]).cluster_of
    known = {clusters[problem.problem_id] for problem in ground.problems}
    apart = tuple(problem for problem in made.problems if clusters[problem.problem_id] not in known)
    suite = Suite(suite_id=f"reworded-{config.seed}", version="1", problems=apart)
    write_suite(suite, folder / SUITE)
    return {
        "problems": len(apart),
        "left out": len(made.problems) - len(apart),
        "suite": suite.content_digest(),
    }


def open_reworded(folder: Path) -> Exam:
    """Read what `make_reworded` wrote; nothing of it is sampled."""
    problems = read_suite(folder / SUITE).problems
    worlds = {CATALOGUE: open_world(folder, CATALOGUE)}
    return Exam(problems, (), worlds, leak_clusters(problems).cluster_of)
