"""One more catalogue with problems of its own, of which none shares a leak cluster with others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from palio.evaluate.mainjob.measure import Exam
from palio.evaluate.mainjob.worlds import open_world
from palio.records import Problem, Suite
from palio.suites import leak_clusters, read_suite, write_suite
from palio.world.catalogue import write_catalogue
from palio.world.synthesis.config import SynthesisConfig
from palio.world.synthesis.synthesise import synthesise

SUITE = "suite.json"


def make_apart(
    wanted: SynthesisConfig, known: Iterable[Problem], folder: Path, suite_id: str
) -> dict[str, Any]:
    """Make the catalogue and the problems, and leave out those that share a cluster with others.

    Args:
        wanted: of the catalogue and its problems.
        known: the others.
        folder: for catalogue and suite.
        suite_id: of the suite.
    """
    known = tuple(known)
    made = synthesise(wanted)
    write_catalogue(made.catalogue, folder / made.catalogue.catalogue_id)
    cluster_of = leak_clusters([*known, *made.problems]).cluster_of
    taken = {cluster_of[problem.problem_id] for problem in known}
    apart = tuple(each for each in made.problems if cluster_of[each.problem_id] not in taken)
    suite = Suite(suite_id=suite_id, version="1", problems=apart)
    write_suite(suite, folder / SUITE)
    return {
        "problems": len(apart),
        "left out": len(made.problems) - len(apart),
        "suite": suite.content_digest(),
    }


def open_apart(folder: Path) -> Exam:
    """Read what `make_apart` wrote; nothing of it is sampled."""
    problems = read_suite(folder / SUITE).problems
    names = sorted({problem.catalogue for problem in problems})
    worlds = {name: open_world(folder, name) for name in names}
    return Exam(problems, (), worlds, leak_clusters(problems).cluster_of)
