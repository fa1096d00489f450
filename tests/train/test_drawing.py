"""Tokens drawn for many rows at once are those of the plain formula, row by row."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palio.train.drawing import draw


class Choice(NamedTuple):
    temperature: float = 1.0
    top_p: float = 1.0


CHOICES = st.builds(
    Choice,
    st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0, 50.0]),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
)


def plain(row: Tensor, choice: Choice, rng: random.Random) -> tuple[int, float]:
    """The definition: one row, everything sorted."""
    scores = torch.log_softmax(row.double() / (choice.temperature or 1.0), -1)
    if not choice.temperature:
        return int(row.argmax()), float(scores[row.argmax()])
    ordered, tokens = scores.exp().sort(descending=True)
    total = ordered.cumsum(0)
    allowed = min(int((total < choice.top_p).sum()) + 1, len(tokens))
    point = torch.tensor(rng.random() * float(total[allowed - 1]), dtype=total.dtype)
    place = min(int(torch.searchsorted(total[:allowed], point, right=True)), allowed - 1)
    return int(tokens[place]), float(scores[tokens[place]])


def normal(rows: int, size: int, seed: int) -> Tensor:
    return 3.0 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


@given(
    choices=st.lists(CHOICES, max_size=12),
    size=st.sampled_from([1, 2, 63, 64, 65, 1024]),
    seed=st.integers(0, 2**31),
)
def test_every_row_gets_what_the_definition_gives_it(
    choices: list[Choice], size: int, seed: int
) -> None:
    logits = normal(len(choices), size, seed)
    rngs = [random.Random(seed + row) for row in range(len(choices))]
    drawn = draw(logits, choices, rngs)
    wanted = [
        plain(row, choice, random.Random(seed + at))
        for at, (row, choice) in enumerate(zip(logits, choices, strict=True))
    ]
    assert drawn.tokens == [token for token, _ in wanted]
    assert drawn.logprobs == pytest.approx([logprob for _, logprob in wanted], abs=1e-12)


@given(choices=st.lists(CHOICES, min_size=2, max_size=12), seed=st.integers(0, 2**31))
def test_a_row_gets_the_same_alone_even_where_tokens_are_equally_likely(
    choices: list[Choice], seed: int
) -> None:
    logits = normal(len(choices), 300, seed).round()
    together = draw(logits, choices, [random.Random(row) for row in range(len(choices))])
    for at, choice in enumerate(choices):
        alone = draw(logits[at : at + 1], [choice], [random.Random(at)])
        assert (alone.tokens, alone.logprobs) == (
            together.tokens[at : at + 1],
            together.logprobs[at : at + 1],
        )


def test_where_all_tokens_are_equally_likely_all_are_drawn_equally_often() -> None:
    rng = random.Random(0)
    counts = torch.zeros(1024)
    for _ in range(40):
        counts += torch.bincount(
            torch.tensor(draw(torch.zeros(256, 1024), [Choice()] * 256, [rng] * 256).tokens),
            minlength=1024,
        )
    assert counts.sum() == 10_240
    assert counts.max() < 30, "ten each are expected"
    assert (counts > 0).sum() > 1000


def test_top_p_keeps_to_the_likeliest() -> None:
    logits = torch.log(torch.tensor([[0.05, 0.4, 0.3, 0.25]]))
    rng = random.Random(1)
    drawn = {draw(logits, [Choice(top_p=0.6)], [rng]).tokens[0] for _ in range(200)}
    assert drawn == {1, 2}


def test_the_likeliest_token_takes_no_random_number_and_nothing_unwanted_is_told() -> None:
    rng = random.Random(2)
    before = rng.getstate()
    drawn = draw(normal(3, 100, 0), [Choice(temperature=0.0)] * 3, [rng] * 3, scored=False)
    assert drawn.tokens == normal(3, 100, 0).argmax(-1).tolist()
    assert drawn.logprobs == []
    assert rng.getstate() == before
