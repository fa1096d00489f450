"""Rows of a corpus as token ids and masks; what is over the budget is left out, never cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from palio.corpus.rows import CorpusRow
from palio.records import InputError
from palio.train.batches import Example
from palio.train.codec import Talk
from palio.train.context import Context


def examples_of(
    rows: Sequence[CorpusRow], context: Context, previous: Path | None
) -> list[Example]:
    """Rows as token ids and masks.

    Raises:
        InputError: no row is as short as the recipe's `longest`.
    """
    longest = context.recipe.data.longest
    codec = context.backend.codec(previous, context)
    encoded = codec.encode_talks([Talk(row.typed(), row.offered) for row in rows])
    made = [Example.of(one, longest) for one in encoded]
    kept = [one for one in made if one is not None]
    if not kept:
        raise InputError(
            f"no trajectory is as short as {longest} tokens",
            remedy="raise `longest` in the recipe",
        )
    return kept
