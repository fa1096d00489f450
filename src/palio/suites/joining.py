"""All pairs of weighted word sets that are similar enough, found without comparing all pairs.

Exact: a pair is missed by no threshold. Rows are sorted by weight, so that the first of a pair is
the lighter one; if its overlap with the other must reach a share of its own weight, then its rarest
words that hold the rest cannot all be missing from the other (prefix filter; Chaudhuri, Ganti and
Kaushik, ICDE 2006).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from palio.world.compiling import compiled

LongArray = NDArray[np.int64]
IntArray = NDArray[np.int32]


class Sets(NamedTuple):
    """Weighted sets in rows by rising total; row r owns `starts[r]:starts[r + 1]` of `words`.

    Attributes:
        words: word numbers, ascending within a row; the rarer a word, the smaller its number.
        starts: one more than rows.
        weights: weight of each word number, positive, falling.
        totals: sum of the weights of each row.
    """

    words: IntArray
    starts: LongArray
    weights: LongArray
    totals: LongArray


class Bounds(NamedTuple):
    """A pair is wanted when its overlap reaches `least` and one of the two similarities its bound.

    Attributes:
        jaccard: overlap over the union's weight.
        containment: overlap over the lighter row's weight.
        least: weight.
    """

    jaccard: float
    containment: float
    least: int


@compiled
def similar_rows(
    sets: Sets, bounds: Bounds, postings: IntArray, heads: LongArray
) -> tuple[IntArray, IntArray, LongArray]:
    """All wanted pairs: lighter rows, heavier rows and the overlaps of their weights.

    Args:
        sets: the rows.
        bounds: what is wanted.
        postings: rows that hold each word, ascending; word w owns `heads[w]:heads[w + 1]`.
        heads: one more than words.
    """
    rows = sets.totals.shape[0]
    share = min(bounds.containment, 2 * bounds.jaccard / (1 + bounds.jaccard))
    seen = np.full(rows, -1, np.int32)
    size, count = 1024, 0
    ones, others, overlaps = (
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int64),
    )
    for row in range(rows):
        rest = sets.totals[row]
        needed = max(share * rest, bounds.least)
        for cell in range(sets.starts[row], sets.starts[row + 1]):
            if rest < needed:
                break
            word = sets.words[cell]
            rest -= sets.weights[word]
            first, last = heads[word], heads[word + 1]
            place = first + np.searchsorted(postings[first:last], row) + 1
            for slot in range(place, last):
                other = postings[slot]
                if seen[other] == row:
                    continue
                seen[other] = row
                overlap = _overlap(sets, row, other)
                if not _wanted(sets, bounds, row, other, overlap):
                    continue
                if count == size:
                    size *= 2
                    ones, others = _grown(ones, size), _grown(others, size)
                    wider = np.empty(size, np.int64)
                    wider[:count] = overlaps
                    overlaps = wider
                ones[count], others[count], overlaps[count] = row, other, overlap
                count += 1
    return ones[:count], others[:count], overlaps[:count]


@compiled
def _grown(values: IntArray, size: int) -> IntArray:
    wider = np.empty(size, np.int32)
    wider[: values.shape[0]] = values
    return wider


@compiled
def _wanted(sets: Sets, bounds: Bounds, row: int, other: int, overlap: int) -> bool:
    light, heavy = sets.totals[row], sets.totals[other]
    inside = overlap >= bounds.containment * light
    alike = overlap >= bounds.jaccard * (light + heavy - overlap)
    return bool(overlap >= bounds.least and (inside or alike))


@compiled
def _overlap(sets: Sets, row: int, other: int) -> int:
    """Weight of the words that two rows share: one merge of two ascending lists."""
    here, there = sets.starts[row], sets.starts[other]
    here_end, there_end = sets.starts[row + 1], sets.starts[other + 1]
    total = 0
    while here < here_end and there < there_end:
        one, two = sets.words[here], sets.words[there]
        if one == two:
            total += sets.weights[one]
        here += one <= two
        there += two <= one
    return total
