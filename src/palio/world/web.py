"""`web_search` asks a backend; the built-in one finds passages of given documents offline."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from palio.records import Product, Record
from palio.world.analyser import analyse
from palio.world.documents import Document, documents_digest
from palio.world.search import SearchIndex, SearchSpec

MAX_RESULTS = 10
PASSAGE = 300
"""Characters of a passage: two or three sentences."""
LOOKED_AT = 200
"""Passages of one document that are compared: 60,000 characters."""
_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")


class WebResult(Record, frozen=True, omit_defaults=False):
    """One row of `web_search`, in this order."""

    title: str
    snippet: str
    url: str


class WebSearch(Protocol):
    """Who answers `web_search`; safe to use from many threads.

    A backend that is not a function of its digest (a live search engine) makes runs that replay
    only from their record.
    """

    @property
    def digest(self) -> str:
        """Equal digests answer equally; part of the world's digest."""

    def search(self, q: str, max_results: int) -> Sequence[WebResult]:
        """The best `max_results` for a query, best first; nothing for a query without words."""


class DocumentIndex:
    """BM25 over title and text, with the products' analyser; equal scores keep the given order.

    Args:
        documents: what there is to find.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = tuple(documents)
        width = len(str(len(self.documents)))
        self._places = {str(place).zfill(width): place for place in range(len(self.documents))}
        # A product's title and attribute values are what the index reads: a document is one.
        rows = [
            Product(key, "", document.title, 0.0, attributes={"text": (document.text,)})
            for key, document in zip(self._places, self.documents, strict=True)
        ]
        self._index = SearchIndex(SearchSpec(pool=MAX_RESULTS, page_size=MAX_RESULTS), rows)
        self._holding = Counter(term for row in rows for term in set(analyse(row.contents())))
        self.digest = documents_digest(self.documents)

    def search(self, q: str, max_results: int) -> tuple[WebResult, ...]:
        """See `WebSearch.search`."""
        found = self._index.ranked(q)[:max_results]
        terms = frozenset(analyse(q))
        return tuple(self._result(self.documents[self._places[key]], terms) for key in found)

    def _result(self, document: Document, terms: frozenset[str]) -> WebResult:
        snippet = best_passage(document.text, terms, self._weight)
        return WebResult(title=document.title, snippet=snippet, url=document.url)

    def _weight(self, term: str) -> float:
        """How much a word says: BM25's inverse document frequency."""
        held = self._holding[term]
        return math.log(1 + (len(self.documents) - held + 0.5) / (held + 0.5))


class _Weight(Protocol):
    def __call__(self, term: str, /) -> float: ...


def best_passage(text: str, terms: frozenset[str], weight: _Weight) -> str:
    """The passage whose different query words weigh most; the first of equals."""
    parts = passages(text)
    return max(parts, key=lambda part: sum(weight(term) for term in terms & {*analyse(part)}))


def passages(text: str, size: int = PASSAGE) -> list[str]:
    """Runs of whole sentences of at most `size` characters, each starting at another sentence."""
    sentences = [
        piece
        for sentence in _BREAK.split(text[: LOOKED_AT * size])
        if (whole := " ".join(sentence.split()))
        for piece in (whole[at : at + size] for at in range(0, len(whole), size))
    ]
    made = []
    for start in range(min(len(sentences), LOOKED_AT)):
        part = sentences[start]
        for more in sentences[start + 1 :]:
            if len(part) + 1 + len(more) > size:
                break
            part = f"{part} {more}"
        made.append(part)
    return made or [""]
