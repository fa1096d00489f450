"""Heavy paraphrases of the product's own generator by meaning: recall, and false merges beside it.

`python -m bench.leak_banks` prints the table of docs/leak-guard.md. A wish is written by each
paraphrase bank of its world; two banks share no template, so that every pair of them is a heavy
paraphrase. The cosines were chosen on public tasks (`bench.leak_embedding`), and nothing of the
generator took part in that choice; the suites have seeds from 300.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from palio.evaluate.statistics import wilson
from palio.records import Problem
from palio.suites.embedding import EmbeddingRule, VectorStore, embedder_of
from palio.suites.keys import family_keys, product_keys
from palio.world.synthesis import compact_config, full_config, synthesise

COSINES = (0.8392, 0.8025)
"""Calibrated at false-pair rates of 1e-5 and 1e-4 of pairs of public tasks."""
FULL = ("full-direct", "full-polite", "full-note", "full-short")
COMPACT = ("compact-prose", "compact-ask", "compact-list")
SEEDS = (300, 301)


class Beside(NamedTuple):
    """Two wordings of the same wishes.

    Attributes:
        same: cosine of each wish with itself in other words.
        others: cosines of different wishes, one in each wording.
    """

    names: tuple[str, str]
    same: NDArray[np.float32]
    others: NDArray[np.float32]


def written(world: str, seed: int, bank: str, count: int) -> tuple[Problem, ...]:
    """The wishes of a seed in the words of one bank."""
    if world == "compact":
        return synthesise(compact_config(seed, banks=(bank,))).problems[:count]
    config = full_config(seed, products=10 * count, problems=count, banks=(bank,))
    return synthesise(config).problems


def beside(world: str, banks: Sequence[str], store: VectorStore, count: int) -> Iterator[Beside]:
    """Every pair of banks over all seeds."""
    found: dict[tuple[str, str], list[tuple[NDArray[np.float32], NDArray[np.float32]]]] = {}
    for seed in SEEDS:
        made = {bank: written(world, seed, bank, count) for bank in banks}
        vectors = {bank: store.of([p.query for p in made[bank]]) for bank in banks}
        for one, other in combinations(banks, 2):
            assert [p.rewards for p in made[one]] == [p.rewards for p in made[other]]
            cosines = vectors[one] @ vectors[other].T
            found.setdefault((one, other), []).append(
                (np.diagonal(cosines), cosines[_differ(made[one])])
            )
    for names, parts in found.items():
        same, others = (np.concatenate(each) for each in zip(*parts, strict=True))
        yield Beside(names, same, others)


def _differ(problems: Sequence[Problem]) -> NDArray[np.bool_]:
    """Pairs that share neither product nor title family."""
    keys = [{*product_keys(problem), *family_keys(problem)} for problem in problems]
    return np.array([[not here & there for there in keys] for here in keys], bool)


def measure(count: int = 300) -> None:
    """Print the table."""
    store = VectorStore(embedder_of(EmbeddingRule()), None)
    heads = " | ".join(f"cosine {c} | false merges at {c}" for c in COSINES)
    print(f"{store.model_id}\n| wordings | planted | {heads} |\n|---|---|---|---|---|---|")
    every: list[Beside] = []
    for world, banks in (("full", FULL), ("compact", COMPACT)):
        mine = list(beside(world, banks, store, count))
        for each in mine:
            print(line(" and ".join(each.names), each), flush=True)
        every += mine
    whole = (np.concatenate(each) for each in zip(*(b[1:] for b in every), strict=True))
    print(line("all", Beside(("", ""), *whole)))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of processor time")


def line(name: str, found: Beside) -> str:
    """A row: recall and false merges with Wilson 95 % at each cosine."""
    cells = []
    for cosine in COSINES:
        hits, wrong = int((found.same >= cosine).sum()), int((found.others >= cosine).sum())
        near, far = wilson(hits, len(found.same)), wilson(wrong, len(found.others))
        cells.append(f"{hits / len(found.same):.3f} ({near.low:.3f}-{near.high:.3f})")
        rate = f"{wrong / len(found.others):.1e} ({far.low:.1e}-{far.high:.1e})"
        cells.append(f"{wrong:,} of {len(found.others):,}: {rate}")
    return f"| {name} | {len(found.same):,} | {' | '.join(cells)} |"


if __name__ == "__main__":
    measure()
