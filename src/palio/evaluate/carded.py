"""What an evaluation measured, as rows of a checkpoint's card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from palio.evaluate.loading import check_greedy, evaluated, load_result
from palio.evaluate.results import OVERALL
from palio.evaluate.rollouts import read_identity
from palio.records import Problem
from palio.train.card import Measured, pool_told


def card_rows(
    folder: Path, problems: Iterable[Problem], suite_id: str, pools: Mapping[str, str]
) -> list[Measured]:
    """What an evaluation measured, a row for all problems and for each intent.

    Args:
        folder: of greedy rollouts.
        problems: of the suite, more than were evaluated maybe.
        suite_id: what the rows call them.
        pools: problem id -> pool of the corpus that was trained on; empty: nobody told.

    Raises:
        InputError: there is no evaluation, or of another suite.
        ConfigError: its rollouts are sampled.
    """
    check_greedy(folder, "a card shows greedy success")
    asked = evaluated(folder, problems)
    found = load_result(folder, asked)
    tools = len(read_identity(folder)["settings"]["tools"])
    rows = []
    for intent, group in found.intents.items():
        rate = group.asr["oro"]
        if rate.rate is None:
            continue
        ids = [each.problem_id for each in asked if intent in (OVERALL, each.kind)]
        rows.append(
            Measured(
                measure=f"{found.mode} ASR (oro), {intent}, {suite_id}, {tools} tools, "
                f"titles by {found.encoder}",
                value=rate.rate,
                low=rate.low,
                high=rate.high,
                n=rate.n,
                weights=found.model.weights if found.model else "",
                pool=pool_told(ids, pools) if pools else "",
                unscored=group.unscored_rollouts,
            )
        )
    return rows
