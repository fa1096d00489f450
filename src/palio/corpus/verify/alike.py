"""Similar requests by inverted lists and whole numbers, in plain Python.

A word that k of n requests hold weighs 1000 ln((n + 100) / (k + 1)) in whole numbers, half of it
when it is a number. Overlaps are sums of weights, so no rounding separates this from other
implementations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from palio.corpus.verify.shapes import LexicalBounds

IMAGINED = 100
FLOOR = 0.05
"""Below this similarity the nearest pair is not stated."""


def counted(requests: Mapping[str, set[str]]) -> dict[str, int]:
    """Weight of every word of the requests."""
    held = Counter(word for request in requests.values() for word in request)
    return {word: weigh(word, len(requests), count) for word, count in held.items()}


def weigh(word: str, requests: int, holders: int) -> int:
    """Weight of one word."""
    scale = 500 if word.isdigit() else 1000
    return max(1, round(scale * math.log((requests + IMAGINED) / (holders + 1))))


class Requests:
    """Requests as weighted word sets with inverted lists; a word without a weight is not held."""

    def __init__(self, requests: Mapping[str, set[str]], weights: Mapping[str, int]) -> None:
        self._weights = weights
        self.words = {
            name: {word for word in request if word in weights}
            for name, request in requests.items()
        }
        self.total = {
            name: sum(weights[word] for word in held) for name, held in self.words.items()
        }
        self._lists: dict[str, list[str]] = {}
        for name, held in self.words.items():
            for word in held:
                self._lists.setdefault(word, []).append(name)

    def overlap(self, one: str, other: str) -> int:
        """Weight of the shared words."""
        return sum(self._weights[word] for word in self.words[one] & self.words[other])

    def jaccard(self, one: str, other: str) -> float:
        """Overlap over union."""
        shared = self.overlap(one, other)
        union = self.total[one] + self.total[other] - shared
        return shared / union if union else 0.0

    def pairs(self, bounds: LexicalBounds) -> Iterator[tuple[str, str, int]]:
        """Pairs that are at least weakly similar: lighter, heavier, overlap.

        Whoever shares enough with the lighter request shares one of its rarest words: the common
        words left over weigh too little.
        """
        share = min(bounds.weak_containment, 2 * bounds.weak_jaccard / (1 + bounds.weak_jaccard))
        least, inside = math.ceil(1000 * bounds.least), math.ceil(1000 * bounds.inside)
        for name in self.words:
            mine = self.total[name]
            for other in self._candidates(name, max(share * mine, least)):
                theirs = self.total[other]
                if (theirs, other) <= (mine, name):
                    continue
                shared = self.overlap(name, other)
                within = shared >= inside and shared >= bounds.weak_containment * mine
                alike = shared / (mine + theirs - shared) >= bounds.weak_jaccard
                if shared >= least and (within or alike):
                    yield name, other, shared

    def strong(self, one: str, other: str, bounds: LexicalBounds) -> bool:
        """Whether a pair is similar enough to be merged."""
        shared, mine, theirs = self.overlap(one, other), self.total[one], self.total[other]
        within = shared / min(mine, theirs) >= bounds.containment
        telling = shared >= math.ceil(1000 * bounds.inside)
        return shared / (mine + theirs - shared) >= bounds.jaccard or (telling and within)

    def nearest(self, sides: Mapping[str, bool]) -> tuple[float, str, str] | None:
        """The most similar pair across sides: similarity, training side, other side.

        The best pair so far says how rare the words must be by which a better one is found.
        """
        lists: dict[str, list[str]] = {}
        for name, training in sides.items():
            for word in self.words[name] if training else ():
                lists.setdefault(word, []).append(name)
        best, pair = 0.0, ("", "")
        for name in sides:
            seen: set[str] = set()
            rest = 0 if sides[name] else self.total[name]
            for word in sorted(self.words[name], key=lambda word: -self._weights[word]):
                if rest <= best * self.total[name]:
                    break
                rest -= self._weights[word]
                for other in lists.get(word, ()):
                    if other not in seen:
                        seen.add(other)
                        found = self.jaccard(name, other)
                        if found > best:
                            best, pair = found, (other, name)
        return (best, *pair) if best >= FLOOR else None

    def _candidates(self, name: str, needed: float) -> set[str]:
        """All that hold one of the rarest words, until the rest weighs less than `needed`."""
        rest = self.total[name]
        found: set[str] = set()
        ranked = sorted(self.words[name], key=lambda word: -self._weights[word])
        for word in ranked:
            if rest < needed or rest == 0:
                break
            found.update(self._lists[word])
            rest -= self._weights[word]
        found.discard(name)
        return found
