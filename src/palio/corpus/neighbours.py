"""Of rows that say or do nearly the same in one leak cluster, the best-ranked one stays.

Only what the model wrote is compared, its thinking, text and calls: tool results are long and equal
whenever two runs see the same products, and would make any two runs of a problem alike. Clusters
are compared one at a time, so memory holds the texts of one cluster.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from palio.corpus.candidate import Candidate, Selected
from palio.corpus.config import CorpusConfig
from palio.corpus.gates import Drop
from palio.corpus.selection import without_duplicates
from palio.records import Message, canonical_json
from palio.world.arguments import canonical_arguments

Shingles: TypeAlias = npt.NDArray[np.uint64]
"""Different hashes of word windows, ascending."""
Read: TypeAlias = Callable[[Candidate], Sequence[Message]]

WINDOW = 4
"""Words a shingle: one changed word touches 4 shingles, so a run of 100 words that differs in one
of them has similarity 0.92, and in five of them at least 0.66."""
_WORD = re.compile(r"\w+")
_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd: multiplying by it loses no bit


@lru_cache(maxsize=65_536)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest())


def written(messages: Iterable[Message]) -> str:
    """What the model wrote: thinking, text, and each call with its raw arguments."""
    parts = []
    for message in messages:
        if message.role == "assistant":
            parts += [message.reasoning_content or "", message.content or ""]
            parts += [f"{c.function.name} {c.function.arguments}" for c in message.tool_calls]
    return "\n".join(parts)


def shingles(text: str) -> Shingles:
    """Hashes of all windows of `WINDOW` words, lower case; a shorter text is one window."""
    words = [_word_hash(word) for word in _WORD.findall(text.lower())]
    if not words:
        return np.empty(0, np.uint64)
    row = np.array(words, np.uint64)
    width = min(WINDOW, len(row))
    mixed = np.zeros(len(row) - width + 1, np.uint64)
    for offset in range(width):
        mixed = mixed * _STEP + row[offset : offset + len(mixed)]
    return np.unique(mixed)


def similarity(one: Shingles, other: Shingles) -> float:
    """Jaccard similarity in [0, 1]; two empty texts are equal."""
    if not len(one) and not len(other):
        return 1.0
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)


def call_sequence(messages: Iterable[Message]) -> bytes:
    """Digest of the calls in order, names and canonical arguments; b"" without calls."""
    calls = [
        [call.function.name, canonical_arguments(call.function.name, call.function.arguments)]
        for message in messages
        for call in message.tool_calls
    ]
    return hashlib.sha256(canonical_json(calls)).digest() if calls else b""


class Neighbourhood:
    """Rows of one cluster that were kept so far, searched exactly for a near-duplicate.

    Two sets of similarity t or more share an element among the first n - ceil(t n) + 1 of each in
    any common order (prefix filter, Chaudhuri et al. 2006; Bayardo et al. 2007), so only rows that
    meet there are compared.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._held: list[tuple[str, Shingles]] = []
        self._places: dict[int, list[int]] = {}

    def nearest(self, row: Shingles) -> tuple[str, float]:
        """(name, similarity) of the most similar kept row at or over the threshold, else ("", 0).

        Of equally similar rows the one that was kept first is named.
        """
        met = Counter(n for mark in self._prefix(row) for n in self._places.get(mark, ()))
        best = ("", 0.0)
        for number in sorted(met):
            name, other = self._held[number]
            found = similarity(row, other)
            if found >= self._threshold and found > best[1]:
                best = (name, found)
        return best

    def keep(self, name: str, row: Shingles) -> None:
        """Add a row that later ones are compared with."""
        for mark in self._prefix(row):
            self._places.setdefault(mark, []).append(len(self._held))
        self._held.append((name, row))

    def _prefix(self, row: Shingles) -> list[int]:
        # the threshold is lowered by a rounding error's worth: too long a prefix costs time only
        size = len(row) - math.ceil((self._threshold - 1e-9) * len(row)) + 1
        return [int(mark) for mark in row[:size]]


def distinct(
    candidates: Iterable[Candidate],
    config: CorpusConfig,
    cluster_of: Mapping[str, str],
    read: Read,
) -> Selected:
    """Drop equal conversations, then, where the configuration asks for it, near-equal ones.

    Args:
        candidates: rows that passed the gates, in any order.
        config: `same_calls` and `near_duplicates` switch the comparisons on.
        cluster_of: problem id -> leak cluster.
        read: the messages of a candidate; asked once, and only in clusters of two rows or more.
    """
    kept, dropped = without_duplicates(candidates)
    if not config.same_calls and not config.near_duplicates:
        return kept, dropped
    by_cluster: dict[str, list[Candidate]] = {}
    for candidate in kept:
        by_cluster.setdefault(cluster_of[candidate.problem_id], []).append(candidate)
    stayed: list[Candidate] = []
    for rows in by_cluster.values():
        if len(rows) == 1:
            stayed += rows
            continue
        different, near = _distinct_in_cluster(rows, config, read)
        stayed += different
        dropped += near
    return sorted(stayed, key=lambda c: c.trajectory_id), dropped


def _distinct_in_cluster(
    rows: Sequence[Candidate], config: CorpusConfig, read: Read
) -> tuple[list[Candidate], list[tuple[Candidate, Drop]]]:
    """The best row first: it stays, and whatever is like a row that stays goes."""
    kept, dropped = [], []
    acted: dict[bytes, str] = {}
    neighbours = Neighbourhood(config.near_duplicates)
    for row in sorted(rows, key=lambda c: c.standing):
        messages = read(row)
        calls = call_sequence(messages) if config.same_calls else b""
        if calls in acted:
            detail = f"same calls as {acted[calls]}"
            dropped.append((row, Drop(reason="same_calls", detail=detail)))
            continue
        if config.near_duplicates:
            text = shingles(written(messages))
            name, found = neighbours.nearest(text)
            if name:
                detail = f"similarity {found:.4f} to {name}"
                dropped.append((row, Drop(reason="near_duplicate", detail=detail)))
                continue
            neighbours.keep(row.trajectory_id, text)
        if calls:
            acted[calls] = row.trajectory_id
        kept.append(row)
    return kept, dropped
