"""Stage 1: training on the corpus, loss on assistant tokens only."""

from __future__ import annotations

from pathlib import Path

import msgspec

from palio.records import ConfigError
from palio.train.context import Context, Kind, Source
from palio.train.settings import SftSettings, small_training
from palio.train.stage import Report, StageResult
from palio.train.stages.base import documents, loop_backend
from palio.train.stages.examples import examples_of

TRAJECTORIES = "trajectories"


def run_sft(
    settings: SftSettings, context: Context, previous: Path | None, out: Path, report: Report
) -> StageResult:
    """Train on the rows of the corpus.

    Raises:
        InputError: no row is short enough.
    """
    examples = examples_of(context.rows, context, previous)
    sources = [Source(TRAJECTORIES, examples, 1.0 - settings.documents)]
    if settings.documents:
        sources.append(more_documents(settings, context, previous))
    made = context.backend.sft(sources, settings, previous, out, context, report)
    dropped = len(context.rows) - len(examples)
    return msgspec.structs.replace(made, counts={**made.counts, "dropped": dropped})


def more_documents(settings: SftSettings, context: Context, previous: Path | None) -> Source:
    """The documents that a stage goes on seeing: its own kinds, or those of the base stage."""
    kinds = settings.kinds
    for stage in context.recipe.of_kind("base"):
        assert isinstance(stage.settings, SftSettings)
        kinds = kinds or stage.settings.kinds
    if not kinds:
        raise ConfigError(f"stage {context.name!r} has documents but no kinds of them")
    tokenizer = loop_backend(context).open(previous, context).tokenizer
    wanted = round(settings.tokens * settings.documents)
    return Source("documents", documents(kinds, wanted, context, tokenizer), settings.documents)


SFT = Kind(settings=SftSettings, run=run_sft, shrink=small_training, first=True)
