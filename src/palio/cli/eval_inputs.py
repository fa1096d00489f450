"""What every evaluation is about: problems of a suite, their worlds, and the scorer's encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from palio.cli.given import refuse_idle
from palio.cli.world import warn_of

if TYPE_CHECKING:
    from palio.evaluate.floors import FloorResult
    from palio.judging.encoders import TitleEncoder
    from palio.records import Problem
    from palio.world.world import World

MODEL_URL = typer.Option(
    "", "--model-url", "--base-url", help="OpenAI-compatible endpoint, with /v1."
)
API_KEY = typer.Option("", envvar="PALIO_API_KEY", help="Bearer token of --model-url.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
SUITE = typer.Option(..., "--suite", help="Suite file.")
CATALOGUES = typer.Option(..., "--catalogue", help="Catalogue of the suite; repeat for several.")
ENCODER = typer.Option("lexical", "--encoder", help="Title similarity: lexical or minilm.")
LIMIT = typer.Option(0, "--limit", min=0, help="Only N problems, of all kinds; 0 = all.")
CORPUS = typer.Option(None, "--corpus", help="Only problems of a pool of this corpus.")
POOL = typer.Option(
    "", "--pool", help="Pool of --corpus: heldout where none is named, or development."
)


def profile_named(name: str) -> Literal["oro", "strict"]:
    """A profile that evaluations are scored under.

    Raises:
        ConfigError: there is no such profile, or evaluations do not have it.
    """
    from palio.records import ConfigError

    if name == "oro":
        return "oro"
    if name == "strict":
        return "strict"
    raise ConfigError(f"profile {name!r} is not evaluated", remedy="oro or strict")


def check_key(context: typer.Context, model_url: str) -> None:
    """Refuse a key that no server would be shown; one in the environment may stay.

    Raises:
        ConfigError: see `refuse_idle`.
    """
    if not model_url:
        refuse_idle(context, ["--api-key"], "without --model-url", "name a server with --model-url")


def rollouts_at(folder: Path) -> Path:
    """The folder of rollouts that is named: itself, or the greedy one of `palio eval run --out`."""
    from palio.evaluate.learned_floor import evaluation_at

    return evaluation_at(folder) or folder


class Exam(NamedTuple):
    """What a policy and its floors are scored on.

    Attributes:
        worlds: catalogue id -> world.
        titles: title similarity of the scorer.
        clusters: problem id -> leak cluster, the intervals' unit.
    """

    problems: tuple[Problem, ...]
    worlds: dict[str, World]
    titles: TitleEncoder
    clusters: dict[str, str]

    def below(self, seed: int, tools: tuple[str, ...]) -> list[FloorResult]:
        """All floors that no policy stands behind; the ceiling has these tools."""
        from palio.evaluate.floors import evaluate_floor, floors_under

        return [
            evaluate_floor(
                floor, self.problems, self.worlds, self.titles, clusters=self.clusters, seed=seed
            )
            for floor in floors_under(tools)
        ]


def problems_of(suite: Path, limit: int, corpus: Path | None, pool: str) -> tuple[Problem, ...]:
    """The suite's problems, or those of them that a corpus has in a pool ("": the held-out one).

    Raises:
        ConfigError: a pool is named and no corpus, or sealed problems would be among them.
        InputError: no problem of the suite is in that pool, the suite has none at all, or one that
            the corpus has otherwise.
    """
    from palio.corpus.build import read_pools
    from palio.corpus.membership import check_problems
    from palio.records import ConfigError, InputError
    from palio.suites.files import read_suite
    from palio.suites.taking import first_of_each_kind

    if pool and corpus is None:
        raise ConfigError(
            f"--pool {pool} without --corpus: a suite alone does not know its pools",
            remedy="name the corpus that split it with --corpus",
        )
    problems = read_suite(suite).problems
    if not problems:
        raise InputError(
            "the suite has no problem, so there is nothing to evaluate",
            where=str(suite),
            remedy="name another one; `palio suite` makes and splits them",
        )
    if corpus is not None:
        pool = pool or "heldout"
        pool_of = read_pools(corpus)
        check_problems(corpus, problems, suite)
        held = tuple(each for each in problems if pool_of.get(each.problem_id) == pool)
        if not held:
            raise InputError(
                f"none of the suite's {len(problems)} problems is in pool {pool!r} of the corpus",
                where=str(corpus),
                remedy=f"its pools are {', '.join(sorted(set(pool_of.values())))}; "
                "name the suite that it was built with",
            )
        problems = held
    check_unsealed(problems, suite.parent, *([corpus] if corpus else []))
    return first_of_each_kind(problems, limit)


def check_unsealed(problems: tuple[Problem, ...], *folders: Path) -> None:
    """Refuse sealed problems: what opens their pool logs it, and this does not.

    Args:
        problems: to be evaluated or raced on.
        folders: where their pools may be told; a lab's stand beside its suite.

    Raises:
        ConfigError: one of them is sealed.
    """
    from palio.corpus.build import POOL_FILE, read_pools
    from palio.records import ConfigError
    from palio.suites.pools import SEALED

    for folder in folders:
        if not (folder / POOL_FILE).is_file():
            continue
        pools = read_pools(folder)
        hidden = [each for each in problems if pools.get(each.problem_id) == SEALED]
        if hidden:
            raise ConfigError(
                f"{len(hidden)} of these problems are sealed, {hidden[0].problem_id!r} first",
                where=str(folder / POOL_FILE),
                remedy="`palio experiment sealed` opens their pool, and logs it; to evaluate "
                f"without them: --corpus {folder} --pool heldout",
            )


def exam_of(
    problems: tuple[Problem, ...],
    catalogue: list[Path],
    world: str,
    encoder: str,
    corpus: Path | None = None,
) -> Exam:
    """The problems with their worlds, built now; rejected rows are told on standard error.

    Raises:
        ConfigError: a problem is sealed, as the pools beside its catalogue tell.
        InputError: a catalogue is another one than that of its name in the corpus.
    """
    from palio.agents.solvable import unsolvable
    from palio.corpus.membership import check_catalogues
    from palio.judging.encoders import encoder_named
    from palio.suites.clusters import leak_clusters
    from palio.world.catalogue import read_catalogues
    from palio.world.world import world_of_catalogue

    check_unsealed(problems, *sorted({path.absolute().parent for path in catalogue}))
    found, rejects = read_catalogues(catalogue)
    warn_of(rejects)
    if corpus is not None:
        check_catalogues(corpus, {name: each.digest for name, each in found.items()})
    titles = encoder_named(encoder)
    for name, lost in unsolvable(problems, found, titles).items():
        text = f"warning: {len(lost)} problems cannot be solved in {name!r}, {lost[0]!r} first"
        typer.secho(text, fg="yellow", err=True)
    worlds = {name: world_of_catalogue(held, world) for name, held in found.items()}
    clusters = leak_clusters(problems).cluster_of
    return Exam(problems, worlds, titles, clusters)
