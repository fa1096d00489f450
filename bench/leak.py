"""Leak guard: clusters of 100,000 requests, recall on planted variants, false merges, verifying.

The peer of the join is the same similarity by scipy's sparse product over all pairs, which is what
one writes first; both find the same pairs, which is asserted. It runs on fewer requests, since it
keeps every overlap in memory. `measure()` gives the numbers of docs/leak-guard.md.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.leak_variants import Pairs, of_tasks, planted
from palio.evaluate.statistics import wilson
from palio.records import Problem, Reward
from palio.suites.guard import guard
from palio.suites.keys import product_keys
from palio.suites.lexical import LexicalRule, likenesses, word_weights
from palio.suites.words import content_words
from palio.world.synthesis import compact_config, full_config, synthesise

SYLLABLES = tuple(re.findall("..", "karomizetabruvolidoshapenigoulafetriwacodynhe"))
FRAMES = (
    "I'm looking for a {t} with {v}, priced below {p} pesos.",
    "Show me {t}, {v}, costing more than {p} PHP.",
    "Find a shop that sells {t} in {v} for at most {p}, with free shipping.",
    "Can you help me get {v} {t}? I can pay {p} pesos, cash on delivery.",
)


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of the benchmark table."""
    return [
        join_row(3_000 if quick else 10_000),
        cluster_row(5_000 if quick else 100_000),
        verify_row(1_000 if quick else 20_000),
        *recall_rows(quick),
    ]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def vocabulary(rng: random.Random, size: int) -> list[str]:
    """Different made-up words."""
    words: dict[str, None] = {}
    while len(words) < size:
        words["".join(rng.choices(SYLLABLES, k=rng.choice((2, 3, 3, 4))))] = None
    return list(words)


def requests(count: int, seed: int = 1) -> list[Problem]:
    """Requests with words by Zipf's law, 14 on average; one in twenty is a reordered other one."""
    rng = random.Random(seed)
    words = vocabulary(rng, 6_000 + count // 5)
    ranks = np.arange(1, len(words) + 1, dtype=np.float64)
    drawn = np.random.default_rng(seed).choice(
        len(words), size=(count, 11), p=ranks**-0.9 / (ranks**-0.9).sum()
    )
    problems: list[Problem] = []
    for number, row in enumerate(drawn.tolist()):
        held = [words[place] for place in row]
        query = rng.choice(FRAMES).format(
            t=" ".join(held[:6]), v=" ".join(held[6:]), p=rng.randrange(20, 3000)
        )
        if number and rng.random() < 0.05:
            other = problems[rng.randrange(number)].query.split()
            rng.shuffle(other)
            query = " ".join(other)
        reward = Reward(product_id=str(number - number % 40 // 39), title=(query[:60],))
        problems.append(
            Problem(problem_id=f"p{number:06}", kind="product", query=query, rewards=(reward,))
        )
    return problems


def join_row(count: int) -> dict[str, Any]:
    """Seconds to find all similar pairs, beside the full sparse product."""
    problems = requests(count)
    likenesses(problems[:10], LexicalRule())  # compiles
    seconds, found = timed(lambda: likenesses(problems, LexicalRule())[0])
    peer_seconds, peer = timed(lambda: sparse_pairs(problems, LexicalRule()))
    assert {(pair.one, pair.other) for pair in found} == peer, "the peer finds other pairs"
    return {
        "name": f"leak guard: all similar pairs of {count:,} requests ({len(found):,} pairs)",
        "palio": seconds,
        "peer": peer_seconds,
        "peer_name": "scipy sparse product",
        "unit": "s",
        "target": "",
    }


def sparse_pairs(problems: Sequence[Problem], rule: LexicalRule) -> set[tuple[str, str]]:
    """Similar pairs by multiplying the whole matrix with itself, a thousand rows at a time."""
    from scipy.sparse import csr_matrix

    weight = word_weights(problems).weight
    column = {word: place for place, word in enumerate(weight)}
    cells = [
        (row, column[word])
        for row, problem in enumerate(problems)
        for word in set(content_words(problem.query))
    ]
    rows, columns = zip(*cells, strict=True)
    held = csr_matrix(
        (np.ones(len(rows), np.int64), (rows, columns)), shape=(len(problems), len(column))
    )
    weighed = held.multiply(np.array(list(weight.values()), np.int64)).tocsr()
    totals = np.asarray(weighed.sum(1)).ravel()
    names = [problem.problem_id for problem in problems]
    found: set[tuple[str, str]] = set()
    for start in range(0, len(problems), 1000):
        block = (weighed[start : start + 1000] @ held.T).tocoo()
        ones, others, shared = block.row + start, block.col, block.data
        light = np.minimum(totals[ones], totals[others])
        inside = shared >= np.maximum(rule.weak_containment * light, 1000 * rule.inside)
        alike = shared >= rule.weak_jaccard * (totals[ones] + totals[others] - shared)
        keep = (ones < others) & (shared >= 1000 * rule.least) & (inside | alike)
        found.update((names[a], names[b]) for a, b in zip(ones[keep], others[keep], strict=True))
    return found


def cluster_row(count: int) -> dict[str, Any]:
    """Seconds from problems to clusters, suspicions and alarms, with all but embedding edges."""
    problems = requests(count)
    likenesses(problems[:10], LexicalRule())
    seconds, found = timed(lambda: guard(problems))
    return {
        "name": f"leak guard: {count:,} problems, exact and lexical edges, "
        f"{len(found.clustering.members):,} clusters",
        "palio": seconds,
        "peer": None,
        "unit": "s",
        "target": "<= 60",
    }


def verify_row(count: int) -> dict[str, Any]:
    """Seconds of the independent verifier over a corpus of `count` rows."""
    from bench.corpus import made_rows
    from palio.corpus.build import build
    from palio.corpus.config import CorpusConfig
    from palio.corpus.verify import verify

    problems = tuple(requests(count // 10))
    with tempfile.TemporaryDirectory() as name:
        config = CorpusConfig(token_budget=20_000, keep_bodies=False)
        build(made_rows(count, problems), problems, config, Path(name))
        rows = sum(json.loads((Path(name) / "certificate.json").read_bytes())["rows"].values())
        seconds, outcome = timed(lambda: verify(Path(name)))
        assert outcome.good, outcome.findings[:3]
    return {
        "name": f"palio corpus verify: {rows:,} rows of 13 KB, {len(problems):,} problems",
        "palio": seconds,
        "peer": None,
        "unit": "s",
        "target": "",
    }


def recall(pairs: Pairs) -> tuple[int, int, int]:
    """(merged, merged or quarantined, planted): by text and lexical edges alone.

    Products, specifications and families are hidden from the guard, which would find all by them.
    """
    hidden: list[Problem] = []
    for place, (one, other) in enumerate(pairs):
        for mark, problem in (("a", one), ("b", other)):
            name = f"{place:05}{mark}"
            hidden.append(Problem(problem_id=name, kind="web", query=problem.query, rewards=()))
    found = guard(hidden)
    cluster_of = found.clustering.cluster_of
    suspected = {names for each in found.suspicions for names in [each.problems]}
    merged = reached = 0
    for place in range(len(pairs)):
        one, other = f"{place:05}a", f"{place:05}b"
        same = cluster_of[one] == cluster_of[other]
        merged += same
        reached += same or any(one in names and other in names for names in suspected)
    return merged, reached, len(pairs)


def false_pairs(problems: Sequence[Problem]) -> tuple[int, int, int]:
    """(merging pairs, suspected pairs, all pairs) among problems that share no product."""
    bare = [
        Problem(problem_id=f"{n:06}", kind="web", query=problem.query, rewards=())
        for n, problem in enumerate(problems)
    ]
    pairs, _ = likenesses(bare, LexicalRule())
    products = [set(product_keys(problem)) for problem in problems]
    differ = [p for p in pairs if not products[int(p.one)] & products[int(p.other)]]
    strong = sum(pair.strong for pair in differ)
    return strong, len(differ) - strong, len(bare) * (len(bare) - 1) // 2


def worlds(quick: bool) -> list[Problem]:
    """Problems of several synthetic worlds: all different, by construction."""
    seeds = range(100, 101 if quick else 103)
    made = [synthesise(full_config(s, products=3_000, problems=300)).problems for s in seeds]
    made += [synthesise(compact_config(s)).problems for s in seeds]
    return [problem for problems in made for problem in problems]


def recall_rows(quick: bool) -> list[dict[str, Any]]:
    """Recall of each kind of variant, and the rate of false pairs, as table rows."""
    rows = []
    for kind, pairs in planted(quick).items():
        merged, reached, count = recall(pairs)
        low = wilson(reached, count).low
        rows.append(
            {
                "name": f"leak guard: {kind} variants kept on one side "
                f"({reached}/{count}, merged {merged}, Wilson 95 % from {low:.3f})",
                "palio": reached / count,
                "peer": None,
                "unit": "recall",
                "target": ">= 0.95",
            }
        )
    strong, weak, count = false_pairs(worlds(quick))
    rows.append(
        {
            "name": f"leak guard: false merges among {count:,} different pairs ({strong} merging, "
            f"{weak} suspected)",
            "palio": 1e6 * strong / count,
            "peer": None,
            "unit": "per million",
            "target": "<= 5",
        }
    )
    return rows


def measure(paths: Sequence[Path]) -> None:
    """Print the tables of docs/leak-guard.md: `python -m bench.leak TASK_FILES`."""
    from palio.suites.files import read_any_suite

    tasks = [
        msgspec.structs.replace(p, problem_id=f"{path.stem}/{p.problem_id}")
        for path in paths
        for p in read_any_suite(path)[0].problems
    ]
    tables = {"synthetic, another bank": planted(False)}
    if tasks:
        tables["public tasks"] = of_tasks(tasks)
    print(
        "| source | variant | planted | merged | merged or quarantined | Wilson 95 % |\n"
        + "|---" * 6
        + "|"
    )
    for source, kinds in tables.items():
        for kind, pairs in kinds.items():
            merged, reached, count = recall(pairs)
            low = wilson(reached, count)
            print(
                f"| {source} | {kind} | {count} | {merged / count:.3f} | {reached / count:.3f} "
                f"| {low.low:.3f}-{low.high:.3f} |"
            )
    print()
    for source, problems in (("synthetic", worlds(False)), ("public tasks", tasks)):
        strong, weak, count = false_pairs(problems)
        print(f"{source}: {strong} merging, {weak} suspected of {count:,} pairs")
    if tasks:
        found = guard(tasks)
        edges = {kind: len(each) for kind, each in found.clustering.edges.items()}
        print(
            f"{len(found.clustering.members)} clusters, largest {found.clustering.largest}, {edges}"
        )
        print(f"{len(found.suspicions)} suspicions, {len(found.alarms)} alarms")


__all__ = ["run"]

if __name__ == "__main__":
    measure([Path(name) for name in sys.argv[1:]])
