"""BM25 search over a catalogue with the arena's semantics: rank, filter, stop at 50, sort, page.

Semantics (ShoppingBench's search server): hits in BM25 order, at most `capacity` of them; those
that pass the filters, until `pool` are kept; a stable sort of these; a page of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from palio.records import SERVICES, InputError, Product, Record
from palio.world.analyser import ANALYSER_ID, analyse
from palio.world.catalogue import Catalogue

Sort = Literal["default", "order", "priceasc", "pricedesc"]
SORTS: tuple[Sort, ...] = ("default", "order", "priceasc", "pricedesc")
"""By rank, by sold_count descending, by price ascending, by price descending."""

MAX_TERMS = 1024
"""Distinct terms of a query that are searched: Lucene's limit of clauses."""

PriceBounds = tuple[float | None, float | None]

_SERVICE_BIT = {name: 1 << place for place, name in enumerate(SERVICES)}
_CLEANED = str.maketrans(dict.fromkeys('+-&|!(){}[]^"~*?:\\/', " "))


class SearchSpec(Record, frozen=True, omit_defaults=False):
    """Everything that decides a result list; its JSON stands in full in every artefact.

    Attributes:
        capacity: how deep BM25 hits are looked at when filters are applied after retrieval
            (10,000 in the arena, 100,000 in ShoppingBench).
        pool: how many hits that pass the filters are kept.
        filters: "after" retrieval as the arena does, or "before": every match can be reached.
        tie: hits of equal score stand in ascending order of this.
    """

    version: str = "1"
    k1: float = 0.9
    b: float = 0.4
    capacity: int = 10_000
    pool: int = 50
    page_size: int = 10
    pages: int = 5
    filters: Literal["after", "before"] = "after"
    tie: Literal["product_id"] = "product_id"
    analyser: str = ANALYSER_ID


def clean_query(query: str) -> str:
    """The query as the arena's server reads it: query-language characters become spaces."""
    return query.translate(_CLEANED).strip()


class SearchIndex:
    """An immutable index of one catalogue; picklable, and safe to share between threads.

    Attributes:
        spec: the semantics.
        product_ids: ids by row; rows are in ascending order of id, so row order is tie order.
    """

    def __init__(self, spec: SearchSpec, products: Iterable[Product]) -> None:
        products = list(products)
        self.spec = spec
        self.product_ids = [product.product_id for product in products]
        self._set_columns(products)
        self._vocabulary: dict[str, int] = {}
        documents = [self._term_ids(product.contents()) for product in products]
        self._matrix = _score_matrix(documents, self._vocabulary, spec)
        self._prepare()

    @classmethod
    def build(cls, catalogue: Catalogue, spec: SearchSpec | None = None) -> SearchIndex:
        """Index a catalogue and load the search's machine code, so that no search pays for it."""
        index = cls(spec or SearchSpec(), catalogue)
        index.ranked(next(iter(index._vocabulary), ""), sort="order")
        return index

    def ranked(
        self,
        query: str,
        *,
        shop_id: str = "",
        price: PriceBounds | None = None,
        services: Iterable[str] = (),
        sort: Sort = "default",
        filters: Literal["after", "before"] | None = None,
    ) -> list[str]:
        """Product ids of the kept hits, at most `spec.pool`, in display order.

        Args:
            query: analysed as text, never parsed; without a word it finds nothing.
            shop_id: only this shop; "" for any.
            price: inclusive (low, high) in PHP, None for an open side.
            services: all of these tags are required.
            sort: order of the kept hits, stable with respect to rank.
            filters: overrides the spec's.

        Raises:
            InputError: a service or sort that does not exist, or a NaN bound.
        """
        terms = Counter(self._query_terms(query))
        shop = self._shops.get(shop_id, -2) if shop_id else -1
        if not terms or shop == -2:
            return []
        low, high = _bounds(price)
        need = _service_bits(services)
        filtered = shop >= 0 or need != 0 or low > -math.inf or high < math.inf
        before = (filters or self.spec.filters) == "before"
        rows = self._top(
            self._postings,
            self._columns,
            self._scratch,
            np.fromiter(terms.keys(), np.int32, len(terms)),
            np.fromiter(terms.values(), np.float64, len(terms)),
            self._wanted(low, high, need, shop),
            self.spec.capacity if filtered and not before else 0,
            self.spec.pool,
        )
        return [self.product_ids[row] for row in self._sorted(rows, sort)]

    def page(self, query: str, page: int = 1, **filters: Any) -> list[str]:
        """One page of `ranked` (same keyword arguments); nothing outside 1..`spec.pages`."""
        if not 1 <= page <= self.spec.pages:
            return []
        size = self.spec.page_size
        return self.ranked(query, **filters)[(page - 1) * size : page * size]

    def in_shop(
        self,
        shop_id: str,
        query: str = "",
        *,
        price: PriceBounds | None = None,
        services: Iterable[str] = (),
        sort: Sort = "default",
    ) -> list[str]:
        """A shop's products that pass the filters: ranked by a query, or all in order of id.

        Filters come before retrieval here whatever the spec says, so every product is reachable;
        a listing without a query is not cut at `spec.pool`.
        """
        if query:
            return self.ranked(
                query,
                shop_id=shop_id,
                price=price,
                services=services,
                sort=sort,
                filters="before",
            )
        low, high = _bounds(price)
        need = _service_bits(services)
        fits = (
            (self._shop_rows == self._shops.get(shop_id, -1))
            & (self._prices >= low)
            & (self._prices <= high)
            & ((self._services & need) == need)
        )
        return [self.product_ids[row] for row in self._sorted(np.flatnonzero(fits), sort)]

    def __len__(self) -> int:
        return len(self.product_ids)

    def _set_columns(self, products: list[Product]) -> None:
        self._prices = np.array([product.price for product in products], np.float64)
        self._sold = np.array([product.sold_count for product in products], np.float64)
        self._services = np.array([_service_bits(p.service) for p in products], np.uint8)
        self._shops: dict[str, int] = {}
        self._shop_rows = np.array(
            [self._shops.setdefault(p.shop_id, len(self._shops)) for p in products], np.int32
        )

    def _term_ids(self, text: str) -> list[int]:
        known = self._vocabulary
        return [known.setdefault(term, len(known)) for term in analyse(text)]

    def _query_terms(self, query: str) -> list[int]:
        """Known terms with repetitions; those of the first `MAX_TERMS` distinct ones."""
        known = self._vocabulary
        found = [known[term] for term in analyse(clean_query(query)) if term in known]
        if len(found) > MAX_TERMS:
            allowed = set(list(dict.fromkeys(found))[:MAX_TERMS])
            found = [term for term in found if term in allowed]
        return found

    def _sorted(self, rows: Any, sort: Sort) -> list[int]:
        if sort == "default":
            key = None
        elif sort == "order":
            key = -self._sold[rows]
        elif sort in ("priceasc", "pricedesc"):
            key = self._prices[rows] if sort == "priceasc" else -self._prices[rows]
        else:
            raise InputError(f"sort {sort!r} is none of {', '.join(SORTS)}")
        chosen = rows if key is None else rows[np.argsort(key, kind="stable")]
        return list(chosen.tolist())

    def _prepare(self) -> None:
        """Make the scratch; a kernel call holds the interpreter lock, so threads never share it."""
        from palio.world.ranking import (  # numba takes 0.3 s to import
            Columns,
            Postings,
            Scratch,
            Wanted,
            top_rows,
        )

        size = len(self.product_ids)
        self._top, self._wanted = top_rows, Wanted
        self._postings = Postings(*self._matrix)
        self._columns = Columns(self._prices, self._services, self._shop_rows)
        self._scratch = Scratch(
            np.zeros(size, np.float64),
            np.zeros(size + 1, np.int32),
            np.zeros(size, np.float32),
        )

    def __getstate__(self) -> dict[str, Any]:
        scratch = {"_top", "_wanted", "_postings", "_columns", "_scratch"}
        return {name: value for name, value in vars(self).items() if name not in scratch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()


def _score_matrix(
    documents: list[list[int]], vocabulary: dict[str, int], spec: SearchSpec
) -> tuple[Any, Any, Any]:
    """BM25 scores by term: the fields of `ranking.Postings`."""
    if not vocabulary:
        return np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
    import bm25s  # takes 0.3 s to import and is needed only here

    model = bm25s.BM25(k1=spec.k1, b=spec.b, method="lucene", idf_method="lucene")
    model.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    matrix = model.scores
    return (
        np.ascontiguousarray(matrix["data"], np.float32),
        np.ascontiguousarray(matrix["indices"], np.int32),
        np.ascontiguousarray(matrix["indptr"], np.int64),
    )


def _bounds(price: PriceBounds | None) -> tuple[float, float]:
    low, high = price or (None, None)
    bounds = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
    if math.isnan(bounds[0]) or math.isnan(bounds[1]):
        raise InputError("a price bound is NaN")
    return bounds


def _service_bits(services: Iterable[str]) -> int:
    bits = 0
    for name in services:
        if name not in _SERVICE_BIT:
            raise InputError(f"service {name!r} is none of {', '.join(SERVICES)}")
        bits |= _SERVICE_BIT[name]
    return bits
