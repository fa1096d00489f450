"""palio train card: the card of a run's last checkpoint, with results and what they are of."""

from __future__ import annotations

from pathlib import Path

import typer

from palio.cli.eval_inputs import rollouts_at
from palio.cli.given import refuse_idle


def card(
    context: typer.Context,
    run_folder: Path = typer.Argument(
        help="Run folder of `palio train`; or a checkpoint alone, whose card gets new results."
    ),
    evaluation: list[Path] = typer.Option([], help="Folder of a greedy evaluation; repeatable."),
    suite: Path | None = typer.Option(None, help="Suite of the evaluations."),
    corpus: Path | None = typer.Option(
        None, help="Corpus that the run was trained on: tells the pools of the problems."
    ),
) -> None:
    """Write the card of a run's last checkpoint: lineage, seeds, results."""
    from palio.corpus.membership import check_problems
    from palio.evaluate.carded import card_rows
    from palio.records import ConfigError
    from palio.suites.files import read_suite
    from palio.train.card import CARD, renew_results, write_card
    from palio.train.checkpoint import checkpoint_folder
    from palio.train.run import CHAIN

    if evaluation and suite is None:
        raise ConfigError("evaluations need the suite that they were made on: --suite")
    if not evaluation:
        remedy = "name evaluations with --evaluation"
        refuse_idle(context, ["--suite", "--corpus"], "without results", remedy)
    read = read_suite(suite) if suite and evaluation else None
    pools = _pools(run_folder, corpus) if corpus else {}
    if corpus and read is not None and suite:
        check_problems(corpus, read.problems, suite)
    results = [
        row
        for folder in evaluation
        if read is not None
        for row in card_rows(rollouts_at(folder), read.problems, read.suite_id, pools)
    ]
    lone = checkpoint_folder(run_folder)
    alone = not (run_folder / CHAIN).is_file() and (lone / CARD).is_file()
    made = renew_results(lone, results) if alone else write_card(run_folder, results)
    typer.echo(f"wrote {made}")


def _pools(run: Path, corpus: Path) -> dict[str, str]:
    """Problem id -> pool, of the corpus that a run, or a checkpoint alone, was trained on.

    Raises:
        InputError: it was trained on another one.
    """
    from palio.corpus.build import read_pools
    from palio.records import InputError
    from palio.train.checkpoint import MANIFEST, checkpoint_folder
    from palio.train.inputs import open_corpus
    from palio.train.run import CHAIN
    from palio.world.artefacts import read_manifest

    chain = read_manifest(run / CHAIN) or read_manifest(checkpoint_folder(run) / MANIFEST)
    found = open_corpus(corpus, uncertified=True).digests["corpus"]
    if chain is not None and chain.inputs.get("corpus") != found:
        raise InputError(
            "the run was trained on another corpus, whose pools are others",
            where=str(corpus),
            remedy="name the corpus of the run",
        )
    return dict(read_pools(corpus))
