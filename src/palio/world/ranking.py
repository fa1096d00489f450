"""Exact top hits over a BM25 score matrix: score descending, then row ascending, filters after.

Scores are summed in double precision and compared as single precision, as Lucene does, so the
order of the query's words decides nothing. One call is one search; it leaves its scratch clean.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
ByteArray = NDArray[np.uint8]


def _kernel(function: Any) -> Any:
    return numba.njit(cache=True, error_model="numpy")(function)


@_kernel
def _accumulate(
    data: FloatArray,
    rows: IntArray,
    starts: LongArray,
    terms: IntArray,
    weights: DoubleArray,
    scores: DoubleArray,
    touched: IntArray,
) -> int:
    """Add each query term's column into `scores`; returns how many rows got a score."""
    count = 0
    for place in range(terms.shape[0]):
        term = terms[place]
        weight = weights[place]
        for cell in range(starts[term], starts[term + 1]):
            row = rows[cell]
            if scores[row] == 0.0:
                touched[count] = row
                count += 1
            scores[row] += weight * data[cell]
    return count


@_kernel
def _select(
    scores: DoubleArray,
    touched: IntArray,
    count: int,
    prices: DoubleArray,
    services: ByteArray,
    shops: IntArray,
    low: float,
    high: float,
    need: int,
    shop: int,
    best_rows: IntArray,
    best_scores: FloatArray,
) -> int:
    """Fill `best_*` with the best rows that pass the filters; returns how many there are."""
    size = best_rows.shape[0]
    kept = 0
    for place in range(count):
        row = touched[place]
        score = np.float32(scores[row])
        if kept == size and score < best_scores[size - 1]:
            continue
        if shop >= 0 and shops[row] != shop:
            continue
        if not low <= prices[row] <= high or (services[row] & need) != need:
            continue
        at = kept if kept < size else size - 1
        if kept == size and score == best_scores[at] and row > best_rows[at]:
            continue
        while at > 0 and (
            best_scores[at - 1] < score
            or (best_scores[at - 1] == score and best_rows[at - 1] > row)
        ):
            best_scores[at] = best_scores[at - 1]
            best_rows[at] = best_rows[at - 1]
            at -= 1
        best_scores[at] = score
        best_rows[at] = row
        if kept < size:
            kept += 1
    return kept


@_kernel
def _within_capacity(
    scores: DoubleArray,
    touched: IntArray,
    values: FloatArray,
    count: int,
    capacity: int,
    best_rows: IntArray,
    best_scores: FloatArray,
    kept: int,
) -> int:
    """How many of the kept rows rank among the first `capacity` of all scored rows.

    Halves over the kept rows, which are in rank order; each step counts the rows ahead of one.
    """
    for place in range(count):
        values[place] = np.float32(scores[touched[place]])
    first, last = 0, kept
    while first < last:
        middle = (first + last) // 2
        score, row = best_scores[middle], best_rows[middle]
        ahead = 0
        for place in range(count):
            value = values[place]
            ahead += (value > score) | ((value == score) & (touched[place] < row))
        if ahead < capacity:
            first = middle + 1
        else:
            last = middle
    return first


@_kernel
def top_rows(
    data: FloatArray,
    rows: IntArray,
    starts: LongArray,
    terms: IntArray,
    weights: DoubleArray,
    scores: DoubleArray,
    touched: IntArray,
    values: FloatArray,
    prices: DoubleArray,
    services: ByteArray,
    shops: IntArray,
    low: float,
    high: float,
    need: int,
    shop: int,
    capacity: int,
    pool: int,
) -> IntArray:
    """The best rows, at most `pool`, best first.

    Args:
        data: score of a term in a document, column by column (CSC), length of all postings.
        rows: document row of each score.
        starts: term t owns the postings `starts[t]:starts[t + 1]`.
        terms: distinct query terms.
        weights: how often each stands in the query.
        scores: scratch, one a document, all zero; zero again afterwards.
        touched: scratch, one a document.
        values: scratch, one a document.
        prices: of each document, PHP.
        services: service bits of each document.
        shops: shop number of each document.
        low: inclusive price bound.
        high: inclusive price bound.
        need: service bits that must all be set.
        shop: the only shop number wanted, -1 for any.
        capacity: rows ranked worse than this, before filters, are not found; 0 = no such cut.
        pool: most rows to return.
    """
    count = _accumulate(data, rows, starts, terms, weights, scores, touched)
    best_rows = np.empty(pool, np.int32)
    best_scores = np.empty(pool, np.float32)
    kept = _select(
        scores, touched, count, prices, services, shops, low, high, need, shop, best_rows,
        best_scores,
    )  # fmt: skip
    if 0 < capacity < count:
        kept = _within_capacity(
            scores, touched, values, count, capacity, best_rows, best_scores, kept
        )
    for place in range(count):
        scores[touched[place]] = 0.0
    return best_rows[:kept]
