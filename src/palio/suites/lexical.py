"""Requests that share most of their rare words are found exactly: every pair, no hashing.

A word weighs what it tells: the logarithm of how many requests do not hold it, in whole
thousandths of a nat, so that two implementations agree to the last bit. Similarities are the
weight that two requests share over the weight of their union (Jaccard) and over that of the
lighter one (containment), which finds a request inside a longer one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from palio.records import ConfigError, Problem, Record, digest
from palio.suites.joining import Bounds, Sets, similar_rows
from palio.suites.words import content_words

PRIOR_REQUESTS = 100
"""Imagined requests without any of the words: in a suite of ten problems a word of one problem is
no more telling than that (log 110/2), and a word of all ten still tells something (log 110/11)."""


class LexicalRule(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """From which similarity two requests are one problem, and from which they are kept together.

    Calibrated on the 403,977 pairs of the 900 public tasks that share no product and on paraphrases
    of them; docs/leak-guard.md has the table.

    Attributes:
        jaccard, containment: an edge that merges.
        weak_jaccard, weak_containment: an edge that only constrains the split.
        least: weight that must be shared at all, in nats; two rare words have 12.
        inside: weight that must be shared where containment alone speaks. A request of two common
            words ("cutting board") stands inside every longer one that mentions them: at 8 nats it
            merged with 52 of 3,900 generated problems, at 12 with none.
    """

    jaccard: float = 0.5
    containment: float = 0.85
    weak_jaccard: float = 0.3
    weak_containment: float = 0.65
    least: float = 8.0
    inside: float = 12.0

    def checked(self) -> LexicalRule:
        """The rule itself, once its thresholds are in order.

        Raises:
            ConfigError: a threshold outside (0, 1], or a weak one above its strong one.
        """
        for name, weak, strong in (
            ("jaccard", self.weak_jaccard, self.jaccard),
            ("containment", self.weak_containment, self.containment),
        ):
            if not 0 < weak <= strong <= 1:
                raise ConfigError(f"0 < weak_{name} {weak} <= {name} {strong} <= 1 does not hold")
        if not 0 < self.least <= self.inside:
            raise ConfigError(f"0 < least {self.least} <= inside {self.inside} does not hold")
        return self


class Likeness(Record, frozen=True, omit_defaults=False):
    """Two problems with similar requests; `strong` when the rule merges them."""

    one: str
    other: str
    jaccard: float
    containment: float
    strong: bool


class WordWeights(Record, frozen=True):
    """Weight of every word of a set of requests, in thousandths of a nat.

    Attributes:
        documents: requests that were counted.
        weight: word -> weight, in order of the word.
    """

    documents: int
    weight: dict[str, int]

    @classmethod
    def of(cls, requests: Iterable[Iterable[str]]) -> WordWeights:
        """Count in how many requests each word stands."""
        counts: Counter[str] = Counter()
        documents = 0
        for words in requests:
            counts.update(set(words))
            documents += 1
        total = documents + PRIOR_REQUESTS
        weight = {word: _weight(word, total / (n + 1)) for word, n in counts.items()}
        return cls(documents=documents, weight=dict(sorted(weight.items())))

    def digest(self) -> str:
        """Digest over all words and weights."""
        return digest(self)


def _weight(word: str, odds: float) -> int:
    """A number weighs half: prices of a re-expressed voucher change, those of a paraphrase do not.

    At full weight 94.4 % of re-expressed vouchers were found and 99.7 % of paraphrases, at half
    97.6 % and 99.1 %, at a quarter 99.6 % and 98.4 % with twice the false pairs.
    """
    return max(1, round((500 if word.isdigit() else 1000) * math.log(odds)))


def word_weights(problems: Iterable[Problem]) -> WordWeights:
    """The weights of the words of these problems' requests."""
    return WordWeights.of(content_words(problem.query) for problem in problems)


def likenesses(
    problems: Sequence[Problem], rule: LexicalRule, weights: WordWeights | None = None
) -> tuple[tuple[Likeness, ...], WordWeights]:
    """Every pair of problems whose requests are at least weakly similar.

    100,000 requests take 8 s, of which the join takes 2 s.

    Args:
        problems: in the order in which pairs are to be named.
        rule: the thresholds.
        weights: counted from the problems themselves when None.

    Returns:
        The pairs, sorted by their ids, and the weights.
    """
    words = [sorted(set(content_words(problem.query))) for problem in problems]
    weights = weights or WordWeights.of(words)
    order, sets = _sets(words, weights.weight)
    bounds = Bounds(rule.weak_jaccard, rule.weak_containment, math.ceil(1000 * rule.least))
    inside = math.ceil(1000 * rule.inside)
    ones, others, overlaps = similar_rows(sets, bounds, *_postings(sets))
    found = []
    for one, other, overlap in zip(ones.tolist(), others.tolist(), overlaps.tolist(), strict=True):
        light, heavy = int(sets.totals[one]), int(sets.totals[other])
        low, high = sorted((problems[order[one]].problem_id, problems[order[other]].problem_id))
        jaccard, containment = overlap / (light + heavy - overlap), overlap / light
        telling = overlap >= inside
        if jaccard < rule.weak_jaccard and not telling:
            continue
        strong = jaccard >= rule.jaccard or (telling and containment >= rule.containment)
        found.append(
            Likeness(one=low, other=high, jaccard=jaccard, containment=containment, strong=strong)
        )
    return tuple(sorted(found, key=lambda pair: (pair.one, pair.other))), weights


def _sets(words: Sequence[Sequence[str]], weight: Mapping[str, int]) -> tuple[list[int], Sets]:
    """The requests as rows by rising weight, words numbered from the rarest; and whose each is."""
    known = {word for row in words for word in row if word in weight}
    ranked = sorted(known, key=lambda word: (-weight[word], word))
    number = {word: place for place, word in enumerate(ranked)}
    numbered = [sorted(number[word] for word in row if word in number) for row in words]
    weights = np.array([weight[word] for word in ranked], np.int64)
    values = weights.tolist()
    totals = [sum(values[word] for word in row) for row in numbered]
    order = sorted(range(len(words)), key=lambda place: (totals[place], place))
    lengths = [len(numbered[place]) for place in order]
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    flat = [word for place in order for word in numbered[place]]
    return order, Sets(
        words=np.array(flat, np.int32),
        starts=starts,
        weights=weights,
        totals=np.array([totals[place] for place in order], np.int64),
    )


def _postings(sets: Sets) -> tuple[np.ndarray, np.ndarray]:
    """Rows that hold each word, ascending, and where each word's begin."""
    rows = np.repeat(np.arange(len(sets.totals), dtype=np.int32), np.diff(sets.starts))
    order = np.argsort(sets.words, kind="stable")
    counts = np.bincount(sets.words, minlength=len(sets.weights))
    heads = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return rows[order], heads


STEPS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)
"""Bounds that are tried until a pair is found: the first one that finds any finds the nearest."""


def most_similar(
    problems: Sequence[Problem], sides: Mapping[str, bool], weights: WordWeights
) -> tuple[float, str, str] | None:
    """The two most similar requests of different sides: weighted Jaccard and ids in order.

    Exact down to a similarity of 0.05, below which None is given. Of equal pairs the first in id
    order.

    Args:
        problems: the problems.
        sides: problem id -> side.
        weights: word weights that know all words of the problems.
    """
    words = [sorted(set(content_words(problem.query))) for problem in problems]
    order, sets = _sets(words, weights.weight)
    postings = _postings(sets)
    side = np.array([sides[problems[place].problem_id] for place in order], np.bool_)
    if len(side) == 0 or side.all() or not side.any():
        return None
    for bound in STEPS:
        ones, others, overlaps = similar_rows(sets, Bounds(bound, 2.0, 1), *postings)
        crossing = side[ones] != side[others]
        if crossing.any():
            ones, others, overlaps = ones[crossing], others[crossing], overlaps[crossing]
            jaccard = overlaps / (sets.totals[ones] + sets.totals[others] - overlaps)
            best = np.flatnonzero(jaccard == jaccard.max())
            pairs = [
                sorted((problems[order[ones[k]]].problem_id, problems[order[others[k]]].problem_id))
                for k in best
            ]
            one, other = min(pairs)
            return float(jaccard.max()), one, other
    return None
