"""Stage 0 of a model from scratch: documents that teach copying, looking up and comparing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from palio.records import ConfigError, InputError
from palio.train.backends.loop import LoopBackend
from palio.train.batches import Example
from palio.train.context import Context, Kind, Source
from palio.train.documents import Author, Material
from palio.train.settings import SftSettings, small_training
from palio.train.stage import Report, StageResult
from palio.train.tokenizer import ChatTokenizer

_DOCUMENT_TOKENS = 130
"""Mean length of a document; decides only how many are written."""

_MOST = 40_000
"""Documents written at most (5 M tokens); a longer stage sees some of them again."""


def run_base(
    settings: SftSettings, context: Context, previous: Path | None, out: Path, report: Report
) -> StageResult:
    """Write documents from the corpus' tool results and train on them.

    Raises:
        ConfigError: the model is a pretrained one.
        InputError: the corpus has only rows that are too long for the stages that follow.
    """
    backend = loop_backend(context)
    checkpoint = backend.open(previous, context)
    some_row_is_short(context, checkpoint.tokenizer)
    examples = documents(settings.kinds, settings.tokens, context, checkpoint.tokenizer)
    sources = [Source("documents", examples)]
    return backend.sft(sources, settings, previous, out, context, report)


def some_row_is_short(context: Context, tokenizer: ChatTokenizer) -> None:
    """Before minutes go into the base, not after.

    Raises:
        InputError: every row is longer than the recipe's `longest`.
    """
    longest = context.recipe.data.longest
    for row in context.rows:
        if Example.of(tokenizer.encode_chat(row.typed()), longest) is not None:
            return
    raise InputError(
        f"no trajectory is as short as {longest} tokens", remedy="raise `longest` in the recipe"
    )


def loop_backend(context: Context) -> LoopBackend:
    """Documents are for models from scratch.

    Raises:
        ConfigError: the model is a pretrained one.
    """
    if not isinstance(context.backend, LoopBackend):
        raise ConfigError(
            f"stage {context.name!r}: documents are for models from scratch",
            remedy="leave the base stage and `documents` out of a recipe with a pretrained model",
        )
    return context.backend


def documents(
    kinds: Mapping[str, float], tokens: int, context: Context, tokenizer: ChatTokenizer
) -> list[Example]:
    """About `tokens` tokens of documents that are short enough."""
    author = Author(Material(loop_backend(context).sample(context)), context.seed)
    written = author.write(kinds, max(1, min(tokens // _DOCUMENT_TOKENS, _MOST)))
    longest = context.recipe.data.longest
    made = [Example.of(one, longest) for one in tokenizer.encode_segments(written)]
    return [one for one in made if one is not None]


BASE = Kind(settings=SftSettings, run=run_base, shrink=small_training, first=True)
