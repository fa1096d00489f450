"""How lexical thresholds were chosen: false pairs of public tasks, and recall on variants of them.

`python -m bench.leak_thresholds TASK_FILES` prints the table of docs/leak-guard.md, with the rule
on `inside` and without it, and the variants that the shipped thresholds miss.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.leak_embedding import tasks_of
from bench.leak_variants import Pairs, of_tasks
from palio.records import Problem
from palio.suites.keys import product_keys, text_key
from palio.suites.lexical import LexicalRule, likenesses
from palio.suites.words import content_words

GRID = ((0.25, 0.60), (0.30, 0.65), (0.40, 0.75), (0.50, 0.85), (0.60, 0.90))
KINDS = ("reorder", "paraphrase", "voucher")


def rule_of(jaccard: float, containment: float, inside: float) -> LexicalRule:
    """The thresholds as those of suspicion, whose pairs are all that is counted here."""
    base = LexicalRule()
    return LexicalRule(
        jaccard=max(jaccard, base.jaccard),
        containment=max(containment, base.containment),
        weak_jaccard=jaccard,
        weak_containment=containment,
        inside=inside,
    )


def bare(problems: Sequence[Problem]) -> list[Problem]:
    """Requests alone, under names that give their places."""
    return [
        Problem(problem_id=f"{place:06}", kind="web", query=problem.query, rewards=())
        for place, problem in enumerate(problems)
    ]


def false_pairs(tasks: Sequence[Problem], rule: LexicalRule) -> int:
    """Pairs of tasks that are taken for one and share no product."""
    products = [set(product_keys(task)) for task in tasks]
    found = likenesses(bare(tasks), rule)[0]
    return sum(not products[int(pair.one)] & products[int(pair.other)] for pair in found)


def missed(pairs: Pairs, rule: LexicalRule) -> list[int]:
    """Places of the planted variants that are not taken for their originals."""
    flat = bare([problem for pair in pairs for problem in pair])
    found = {(int(pair.one), int(pair.other)) for pair in likenesses(flat, rule)[0]}
    return [
        place
        for place in range(len(pairs))
        if (2 * place, 2 * place + 1) not in found
        and text_key(flat[2 * place]) != text_key(flat[2 * place + 1])
    ]


def measure(paths: Sequence[Path]) -> None:
    """Print the table."""
    tasks = tasks_of(paths)
    variants = of_tasks(tasks)
    least = LexicalRule().least
    print("| jaccard, containment | inside | false pairs | " + " | ".join(KINDS) + " |")
    for jaccard, containment in GRID:
        for inside in (LexicalRule().inside, least):
            rule = rule_of(jaccard, containment, inside)
            cells = []
            for kind in KINDS:
                lost = len(missed(variants[kind], rule))
                cells.append(f"{1 - lost / len(variants[kind]):.3f}")
            row = f"| {jaccard:.2f}, {containment:.2f} | {inside:.0f} | {false_pairs(tasks, rule)} "
            print(f"{row}| {' | '.join(cells)} |", flush=True)
    for kind in KINDS:
        for place in missed(variants[kind], LexicalRule()):
            one, other = (content_words(each.query) for each in variants[kind][place])
            print(kind, sorted(set(one)), "->", sorted(set(other)))


if __name__ == "__main__":
    measure([Path(name) for name in sys.argv[1:]])
