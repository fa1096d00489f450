"""palio train card: the card of a run's last checkpoint, with results and what they are of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from palio.cli.given import refuse_idle

if TYPE_CHECKING:
    from palio.records import Suite
    from palio.train.card import Measured


def card(
    context: typer.Context,
    run_folder: Path = typer.Argument(help="Run folder of `palio train`."),
    evaluation: list[Path] = typer.Option([], help="Folder of a greedy evaluation; repeatable."),
    suite: Path | None = typer.Option(None, help="Suite of the evaluations."),
    corpus: Path | None = typer.Option(
        None, help="Corpus that the run was trained on: tells the pools of the problems."
    ),
) -> None:
    """Write the card of a run's last checkpoint: lineage, seeds, results."""
    from palio.records import ConfigError
    from palio.suites.files import read_suite
    from palio.train.card import write_card

    if evaluation and suite is None:
        raise ConfigError("evaluations need the suite that they were made on: --suite")
    if not evaluation:
        remedy = "name evaluations with --evaluation"
        refuse_idle(context, ["--suite", "--corpus"], "without results", remedy)
    read = read_suite(suite) if suite and evaluation else None
    pools = _pools(run_folder, corpus) if corpus else {}
    results = [
        row for folder in evaluation if read is not None for row in _measured(folder, read, pools)
    ]
    typer.echo(f"wrote {write_card(run_folder, results)}")


def _pools(run: Path, corpus: Path) -> dict[str, str]:
    """Problem id -> pool, of the corpus that a run was trained on.

    Raises:
        InputError: the run was trained on another one.
    """
    from palio.corpus.build import read_pools
    from palio.records import InputError
    from palio.train.inputs import open_corpus
    from palio.train.run import CHAIN
    from palio.world.artefacts import read_manifest

    chain = read_manifest(run / CHAIN)
    found = open_corpus(corpus, uncertified=True).digests["corpus"]
    if chain is not None and chain.inputs.get("corpus") != found:
        raise InputError(
            "the run was trained on another corpus, whose pools are others",
            where=str(corpus),
            remedy="name the corpus of the run",
        )
    return dict(read_pools(corpus))


def _measured(folder: Path, suite: Suite, pools: dict[str, str]) -> list[Measured]:
    """What an evaluation measured, a row for all problems and for each intent.

    Raises:
        InputError: there is no evaluation, or of another suite.
        ConfigError: its rollouts are sampled.
    """
    from palio.cli.eval_inputs import rollouts_at
    from palio.evaluate.loading import evaluated, load_result
    from palio.evaluate.results import OVERALL
    from palio.evaluate.rollouts import read_identity
    from palio.records import ConfigError
    from palio.train.card import Measured, pool_told

    folder = rollouts_at(folder)
    problems = evaluated(folder, suite.problems)
    found = load_result(folder, problems)
    if found.mode != "greedy":
        raise ConfigError(
            "these rollouts are sampled, and a card shows greedy success",
            where=str(folder),
            remedy="name the folder greedy beside it",
        )
    tools = len(read_identity(folder)["settings"]["tools"])
    rows = []
    for intent, group in found.intents.items():
        rate = group.asr["oro"]
        if rate.rate is None:
            continue
        asked = [each.problem_id for each in problems if intent in (OVERALL, each.kind)]
        rows.append(
            Measured(
                measure=f"{found.mode} ASR (oro), {intent}, {suite.suite_id}, {tools} tools, "
                f"titles by {found.encoder}",
                value=rate.rate,
                low=rate.low,
                high=rate.high,
                n=rate.n,
                weights=found.model.weights if found.model else "",
                pool=pool_told(asked, pools) if pools else "",
                unscored=group.unscored_rollouts,
            )
        )
    return rows
