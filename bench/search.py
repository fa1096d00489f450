"""Index and search of 200,000 products, palio beside SQLite FTS5 on the same rows and queries."""

from __future__ import annotations

import itertools
import random
import sqlite3
import statistics
import time
from collections.abc import Callable
from typing import Any

from palio.records import SERVICES, Product
from palio.world.analyser import words
from palio.world.catalogue import Catalogue
from palio.world.search import SearchIndex

PEER = "SQLite FTS5"
PIECES = ("ba", "ko", "ri", "tu", "mel", "san", "der", "pli", "vo", "ne", "gra", "shi", "lum", "ex")
QUERIES = 200


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of the benchmark table; `quick` uses a tenth of the products."""
    rng = random.Random(20_001)
    vocabulary = make_vocabulary(rng)
    catalogue = make_catalogue(rng, vocabulary, 20_000 if quick else 200_000)
    queries = make_queries(rng, catalogue)
    size = f"{len(catalogue) // 1000},000 products"

    SearchIndex.build(make_catalogue(random.Random(1), vocabulary, 100))  # loads the machine code
    start = time.process_time()
    index = SearchIndex.build(catalogue)
    built = time.process_time() - start
    start = time.process_time()
    database = make_fts5(catalogue)
    peer_built = time.process_time() - start
    rows = [
        row(
            f"index build, {size}",
            len(catalogue) / built,
            len(catalogue) / peer_built,
            "products/core-second",
            ">= 10000",
        )
    ]
    for name, filters, clause, values, target in filter_cases(catalogue):
        ours = p50(lambda q, filters=filters: index.ranked(q, **filters), queries)
        sql = SELECT.format(clause=clause)
        peer = p50(
            lambda q, sql=sql, values=values: database.execute(sql, (match(q), *values)).fetchall(),
            queries[: QUERIES // 4],
        )
        rows.append(row(f"search p50, {name}, {size}", ours, peer, "ms", target))
    database.close()
    return rows


SELECT = (
    "SELECT p.id FROM words JOIN p ON p.row = words.rowid WHERE words MATCH ? {clause} "
    "ORDER BY rank LIMIT 50"
)


def filter_cases(
    catalogue: Catalogue,
) -> list[tuple[str, dict[str, Any], str, tuple[Any, ...], str]]:
    """(name, palio filters, SQL clause, its values, target in ms)."""
    shop = next(iter(catalogue.by_shop))
    return [
        ("plain", {}, "", (), "<= 0.5"),
        ("price", {"price": (100.0, 600.0)}, "AND p.price BETWEEN ? AND ?", (100, 600), "<= 1"),
        ("shop", {"shop_id": shop}, "AND p.shop = ?", (shop,), "<= 1"),
        ("service", {"services": ("COD",)}, "AND p.services LIKE ?", ("%COD%",), "<= 1"),
    ]


def make_vocabulary(rng: random.Random) -> list[str]:
    """20,000 words of two to four syllables."""
    return ["".join(rng.choices(PIECES, k=rng.choice((2, 3, 4)))) for _ in range(20_000)]


def make_catalogue(rng: random.Random, vocabulary: list[str], size: int) -> Catalogue:
    """Products of 20 words each, word frequencies falling as 1 / (rank + 10)."""
    heights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(vocabulary))))
    drawn = rng.choices(vocabulary, cum_weights=heights, k=size * 20)
    return Catalogue.from_products(
        "bench",
        (
            Product(
                product_id=str(1_000_000_000 + n),
                shop_id=str(rng.randrange(max(1, size // 16))),
                title=" ".join(drawn[n * 20 : n * 20 + 12]),
                price=float(rng.randrange(20, 2000)),
                service=tuple(tag for tag in SERVICES if rng.random() < 0.5),
                attributes={"material": tuple(drawn[n * 20 + 12 : n * 20 + 20])},
            )
            for n in range(size)
        ),
    )


def make_queries(rng: random.Random, catalogue: Catalogue) -> list[str]:
    """Three to eight words of a product each, as a request repeats words of its target."""
    targets = rng.sample(list(catalogue), QUERIES)
    return [" ".join(rng.sample(words(t.contents()), rng.randint(3, 8))) for t in targets]


def make_fts5(catalogue: Catalogue) -> sqlite3.Connection:
    """An in-memory FTS5 table with Porter stemming, filter columns in a table beside it."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE words USING fts5(contents, tokenize='porter')")
    database.execute("CREATE TABLE p (row INTEGER PRIMARY KEY, id, shop, price REAL, services)")
    with database:
        database.executemany(
            "INSERT INTO words (rowid, contents) VALUES (?, ?)",
            ((row, product.contents()) for row, product in enumerate(catalogue)),
        )
        database.executemany(
            "INSERT INTO p VALUES (?, ?, ?, ?, ?)",
            (
                (row, p.product_id, p.shop_id, p.price, ",".join(p.service))
                for row, p in enumerate(catalogue)
            ),
        )
    return database


def match(query: str) -> str:
    """The query as an FTS5 expression: any of the words."""
    return " OR ".join(f'"{word}"' for word in query.split())


def p50(search: Callable[[str], Any], queries: list[str]) -> float:
    """Median wall time of a search in milliseconds, after one pass over ten queries."""
    for query in queries[:10]:
        search(query)
    times = []
    for query in queries:
        start = time.perf_counter()
        search(query)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def row(name: str, palio: float, peer: float, unit: str, target: str) -> dict[str, Any]:
    """One line of the table."""
    return {
        "name": name,
        "palio": palio,
        "peer": peer,
        "peer_name": PEER,
        "unit": unit,
        "target": target,
    }
