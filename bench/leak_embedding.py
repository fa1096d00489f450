"""Cosines of embedding edges: thresholds at two rates of false pairs, and what they find.

`python -m bench.leak_embedding TASK_FILES` prints the tables of docs/leak-guard.md. Thresholds are
chosen on pairs of public tasks that share no product; recall and false pairs of the generated
suites, which took no part in the choice, are printed beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.leak import worlds
from bench.leak_variants import Pairs, of_tasks, planted
from palio.evaluate.statistics import wilson
from palio.records import Problem
from palio.suites.embedding import EmbeddingRule, VectorStore, embedder_of
from palio.suites.files import read_any_suite
from palio.suites.keys import family_keys, product_keys

RATES = (1e-5, 1e-4, 1e-3)
"""The defaults merge at the first and suspect at the second; docs/leak-guard.md says why."""


class Apart(NamedTuple):
    """Cosines of pairs that are different problems, falling; and how many pairs there are."""

    cosines: NDArray[np.float32]

    def at(self, rate: float) -> float:
        """The least cosine, to four places, that at most a share `rate` of the pairs reaches."""
        most = int(rate * len(self.cosines))
        return float(np.ceil(self.cosines[most] * 1e4 + 1e-6) / 1e4)

    def reaching(self, cosine: float) -> int:
        """How many pairs reach a cosine."""
        return int((self.cosines >= cosine).sum())


def apart(problems: Sequence[Problem], store: VectorStore) -> Apart:
    """All pairs that share neither product nor title family."""
    vectors = store.of([problem.query for problem in problems])
    keys = [{*product_keys(problem), *family_keys(problem)} for problem in problems]
    holders: dict[str, list[int]] = {}
    for place, held in enumerate(keys):
        for key in held:
            holders.setdefault(key, []).append(place)
    cosines = vectors @ vectors.T
    for places in holders.values():
        cosines[np.ix_(places, places)] = np.nan
    upper = cosines[np.triu_indices(len(problems), 1)]
    return Apart(np.sort(upper[~np.isnan(upper)])[::-1])


def cosines_of(pairs: Pairs, store: VectorStore) -> NDArray[np.float32]:
    """The cosine of each planted pair."""
    ones = store.of([one.query for one, _ in pairs])
    others = store.of([other.query for _, other in pairs])
    return (ones * others).sum(axis=1)


def recall_lines(
    source: str, kinds: dict[str, Pairs], store: VectorStore, cosines: Sequence[float]
) -> list[str]:
    """Table rows: recall with its interval at each cosine."""
    lines = []
    for kind, pairs in kinds.items():
        found = cosines_of(pairs, store)
        cells = []
        for cosine in cosines:
            hits = int((found >= cosine).sum())
            interval = wilson(hits, len(pairs))
            cells.append(f"{hits / len(pairs):.3f} ({interval.low:.3f}-{interval.high:.3f})")
        lines.append(f"| {source} | {kind} | {len(pairs)} | {' | '.join(cells)} |")
    return lines


def tasks_of(paths: Sequence[Path]) -> list[Problem]:
    """The problems of task files under names of their own."""
    return [
        msgspec.structs.replace(problem, problem_id=f"{path.stem}/{problem.problem_id}")
        for path in paths
        for problem in read_any_suite(path)[0].problems
    ]


def measure(paths: Sequence[Path], folder: Path | None = None) -> None:
    """Print thresholds, false pairs and recall; vectors are kept in `folder`, if there is one."""
    store = VectorStore(embedder_of(EmbeddingRule()), folder)
    tasks, made = tasks_of(paths), worlds(quick=False)
    unlike, synthetic = apart(tasks, store), apart(made, store)
    cosines = [unlike.at(rate) for rate in RATES]
    print(f"{store.model_id}: cosines {cosines} at {RATES} of {len(unlike.cosines):,} pairs")
    for name, pairs in (("public tasks", unlike), ("generated", synthetic)):
        counts = [pairs.reaching(cosine) for cosine in cosines]
        uppers = [wilson(count, len(pairs.cosines)).high for count in counts]
        print(f"{name}: {counts} of {len(pairs.cosines):,} false pairs, upper {uppers}")
    print("generated at these rates:", [synthetic.at(rate) for rate in RATES])
    heads = " | ".join(f"cosine {cosine:.4f}" for cosine in cosines)
    print(f"| source | variant | planted | {heads} |\n|---|---|---|---|---|---|")
    for source, kinds in (("public tasks", of_tasks(tasks)), ("generated", planted(quick=False))):
        print("\n".join(recall_lines(source, kinds, store, cosines)), flush=True)


if __name__ == "__main__":
    measure([Path(name) for name in sys.argv[1:]])
