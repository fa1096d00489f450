"""Lexical thresholds on requests that took no part in their choice: recall, and false hits.

`python -m bench.leak_lexical TASK_FILES` prints the held-out tables of docs/leak-guard.md. The
thresholds were chosen on the public tasks and variants of them with seed 11, and on generated
suites with seeds 0 to 2; here are suites with seeds from 300, pairs of banks that were not
compared before, and variants drawn with another seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from bench.leak import recall
from bench.leak_embedding import tasks_of
from bench.leak_variants import Pairs, paraphrased, reordered, revouchered
from palio.corpus.decontaminate import matches
from palio.evaluate.statistics import wilson
from palio.records import Problem
from palio.world.synthesis import compact_config, full_config, synthesise

BANKS = ("full-polite", "full-short", "full-note")
"""Pairs of these: the calibration compared each of them with "full-direct" alone."""
FRESH = 300
SEED = 2024


def fresh_variants(suites: int = 2, problems: int = 300) -> dict[str, Pairs]:
    """Variants of generated requests that nothing was chosen on."""
    found: dict[str, Pairs] = {"paraphrase": [], "reorder": [], "voucher": []}
    rng = random.Random(SEED)
    for seed in range(FRESH, FRESH + suites):
        made = {
            bank: synthesise(
                full_config(seed, products=10 * problems, problems=problems, banks=(bank,))
            ).problems
            for bank in BANKS
        }
        for one, other in combinations(BANKS, 2):
            found["paraphrase"] += zip(made[one], made[other], strict=True)
        found["reorder"] += [(p, reordered(p, rng)) for p in made[BANKS[0]]]
        found["voucher"] += [(p, revouchered(p, rng)) for p in made[BANKS[0]] if p.voucher]
    return found


def fresh_task_variants(tasks: Sequence[Problem]) -> dict[str, Pairs]:
    """Variants of public tasks, drawn with another seed than those of the calibration."""
    rng = random.Random(SEED)
    wishes = [task for task in tasks if task.kind != "web"]
    return {
        "paraphrase": [(task, paraphrased(task, rng)) for task in wishes],
        "reorder": [(task, reordered(task, rng)) for task in wishes],
        "voucher": [(task, revouchered(task, rng)) for task in wishes if task.voucher],
    }


def strangers(suites: int = 3, problems: int = 1_000) -> list[Problem]:
    """Generated problems, which are none of the public tasks."""
    made = [
        problem
        for seed in range(500, 500 + suites)
        for problem in (
            *synthesise(full_config(seed, products=8 * problems, problems=problems)).problems,
            *synthesise(compact_config(seed)).problems,
        )
    ]
    return [msgspec.structs.replace(p, problem_id=f"{n:06}") for n, p in enumerate(made)]


def hits(problems: Sequence[Problem], tasks: Sequence[Problem]) -> dict[str, int]:
    """Problems that `palio corpus decontaminate` takes for one of the tasks, by rule."""
    found: dict[str, set[str]] = {"any": set()}
    for name, rule, _, _ in matches(problems, tasks):
        found.setdefault(rule, set()).add(name)
        found["any"].add(name)
    return {rule: len(names) for rule, names in found.items()}


def found_in(pairs: Pairs) -> int:
    """How many planted variants decontamination finds, products and specifications hidden."""
    bare = [
        [
            Problem(problem_id=f"{n:06}", kind="web", query=problem.query, rewards=())
            for n, problem in enumerate(side)
        ]
        for side in zip(*pairs, strict=True)
    ]
    named = {problem for problem, _, _, _ in matches(bare[1], bare[0])}
    return len(named)


def measure(paths: Sequence[Path]) -> None:
    """Print the tables."""
    tasks = tasks_of(paths)
    print("| source | variant | planted | merged | or quarantined | decontaminated |")
    for source, kinds in (
        ("generated, fresh", fresh_variants()),
        ("public tasks, fresh variants", fresh_task_variants(tasks)),
    ):
        for kind, pairs in kinds.items():
            merged, reached, count = recall(pairs)
            cells = []
            for hit in (merged, reached, found_in(pairs)):
                interval = wilson(hit, count)
                cells.append(f"{hit / count:.3f} ({interval.low:.3f}-{interval.high:.3f})")
            print(f"| {source} | {kind} | {count} | {' | '.join(cells)} |", flush=True)
    made = strangers()
    found = hits(made, tasks)
    interval = wilson(found["any"], len(made))
    print(f"{found} of {len(made):,} generated problems hit by {len(tasks)} public tasks, ")
    print(f"Wilson 95 % {interval.low:.5f}-{interval.high:.5f}")


if __name__ == "__main__":
    measure([Path(name) for name in sys.argv[1:]])
