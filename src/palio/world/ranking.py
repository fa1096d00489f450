"""Exact top hits over a BM25 score matrix: score descending, then row ascending, filters after.

Scores are summed in double precision and compared as single precision, as Lucene does, so the
order of the query's words decides nothing. Every posting of the query is read: on 200,000 products
that takes 0.1 to 0.4 ms, and MaxScore pruning measured slower, for few queries have rare words
enough. One call is one search; it leaves its scratch clean.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from palio.world.compiling import compiled

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
ByteArray = NDArray[np.uint8]


class Postings(NamedTuple):
    """BM25 scores by term: term t owns `starts[t]:starts[t + 1]` of `scores` and `rows`.

    Attributes:
        scores: score of the term in each of its documents.
        rows: document rows, ascending within a term.
        starts: one more than terms.
    """

    scores: FloatArray
    rows: IntArray
    starts: LongArray


class Columns(NamedTuple):
    """What filters look at, one entry a document: PHP, service bits, shop numbers."""

    prices: DoubleArray
    services: ByteArray
    shops: IntArray


class Scratch(NamedTuple):
    """Work space, one entry a document (`touched` one more); `sums` is zero between searches."""

    sums: DoubleArray
    touched: IntArray
    values: FloatArray


class Wanted(NamedTuple):
    """Filters: inclusive price bounds, service bits that must be set, a shop number or -1."""

    low: float
    high: float
    need: int
    shop: int


@compiled
def top_rows(
    postings: Postings,
    columns: Columns,
    scratch: Scratch,
    terms: IntArray,
    weights: DoubleArray,
    wanted: Wanted,
    capacity: int,
    pool: int,
) -> IntArray:
    """The best rows, at most `pool`, best first.

    Args:
        postings: the score matrix.
        columns: what the filters look at.
        scratch: work space.
        terms: distinct query terms.
        weights: how often each stands in the query.
        wanted: the filters.
        capacity: rows ranked worse than this, before filters, are not found; 0 = no such cut.
        pool: most rows to return.
    """
    count = _add_scores(postings, scratch, terms, weights)
    best_rows = np.empty(pool, np.int32)
    best = np.empty(pool, np.float32)
    kept = _select(scratch, count, columns, wanted, best_rows, best)
    if 0 < capacity < count:
        kept = _within_capacity(scratch, count, capacity, best_rows, best, kept)
    for place in range(count):
        scratch.sums[scratch.touched[place]] = 0.0
    return best_rows[:kept]


@compiled
def _add_scores(postings: Postings, scratch: Scratch, terms: IntArray, weights: DoubleArray) -> int:
    """Sum the terms' scores by document; returns how many rows were touched."""
    sums, touched = scratch.sums, scratch.touched
    count = 0
    for place in range(terms.shape[0]):
        weight = weights[place]
        for cell in range(postings.starts[terms[place]], postings.starts[terms[place] + 1]):
            row = postings.rows[cell]
            before = sums[row]
            # written always, counted when new: without a branch to mispredict it is 3 times faster
            touched[count] = row
            count += before == 0.0
            sums[row] = before + weight * postings.scores[cell]
    return count


@compiled
def _select(
    scratch: Scratch,
    count: int,
    columns: Columns,
    wanted: Wanted,
    best_rows: IntArray,
    best: FloatArray,
) -> int:
    """Fill `best` with the best touched rows that pass the filters; returns how many."""
    sums, touched = scratch.sums, scratch.touched
    size = best_rows.shape[0]
    kept = 0
    for place in range(count):
        row = touched[place]
        score = np.float32(sums[row])
        if kept == size and score < best[size - 1]:
            continue
        if wanted.shop >= 0 and columns.shops[row] != wanted.shop:
            continue
        if not wanted.low <= columns.prices[row] <= wanted.high:
            continue
        if (columns.services[row] & wanted.need) != wanted.need:
            continue
        at = kept if kept < size else size - 1
        if kept == size and score == best[at] and row > best_rows[at]:
            continue
        while at > 0 and (
            best[at - 1] < score or (best[at - 1] == score and best_rows[at - 1] > row)
        ):
            best[at], best_rows[at] = best[at - 1], best_rows[at - 1]
            at -= 1
        best[at], best_rows[at] = score, row
        if kept < size:
            kept += 1
    return kept


@compiled
def _within_capacity(
    scratch: Scratch,
    count: int,
    capacity: int,
    best_rows: IntArray,
    best: FloatArray,
    kept: int,
) -> int:
    """How many of the kept rows rank among the first `capacity` of all scored rows.

    Halves over the kept rows, which are in rank order; each step counts the rows ahead of one.
    """
    touched, values = scratch.touched, scratch.values
    for place in range(count):
        values[place] = np.float32(scratch.sums[touched[place]])
    first, last = 0, kept
    while first < last:
        middle = (first + last) // 2
        score, row = best[middle], best_rows[middle]
        ahead = 0
        for place in range(count):
            value = values[place]
            ahead += (value > score) | ((value == score) & (touched[place] < row))
        if ahead < capacity:
            first = middle + 1
        else:
            last = middle
    return first
