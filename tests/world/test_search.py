"""Search semantics on a catalogue worked out by hand, and BM25 against a plain reading of it."""

from __future__ import annotations

import itertools
import math
import pickle
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.records import SERVICES, InputError
from palio.world.analyser import analyse
from palio.world.catalogue import Catalogue
from palio.world.search import SearchIndex, SearchSpec, clean_query
from tests.world.shelf import product, shelf

VOCABULARY = ["wool", "hat", "red", "blue", "kettle", "steel", "mug", "lamp", "zen", "pro"]


@pytest.fixture(scope="module")
def index() -> SearchIndex:
    return SearchIndex.build(shelf())


def reference_scores(catalogue: Catalogue, query: str, k1: float, b: float) -> dict[str, float]:
    """BM25 as the formula reads: sum of idf * tf / (tf + k1 * (1 - b + b * length / mean))."""
    documents = {p.product_id: Counter(analyse(p.contents())) for p in catalogue}
    lengths = {key: document.total() for key, document in documents.items()}
    mean = sum(lengths.values()) / len(lengths)
    scores: dict[str, float] = {}
    for term in analyse(query):
        holders = [key for key, document in documents.items() if document[term]]
        idf = math.log(1 + (len(documents) - len(holders) + 0.5) / (len(holders) + 0.5))
        for key in holders:
            tf = documents[key][term]
            part = idf * tf / (tf + k1 * (1 - b + b * lengths[key] / mean))
            scores[key] = scores.get(key, 0.0) + part
    return scores


class TestGolden:
    def test_rank_then_ties_by_id_as_text(self, index: SearchIndex) -> None:
        assert index.ranked("wool scarf") == ["20", "21", "22", "3", "30"]
        assert index.ranked("hat") == ["3", "30"]

    def test_word_order_and_case_decide_nothing(self, index: SearchIndex) -> None:
        assert index.ranked("SCARF wool") == index.ranked("wool scarves scarf")[:5]

    def test_option_and_attribute_values_are_searched_names_are_not(
        self, index: SearchIndex
    ) -> None:
        assert index.ranked("xl") == ["4"]
        assert index.ranked("glass") == ["5"]
        assert index.ranked("color material size s2") == []

    def test_filters(self, index: SearchIndex) -> None:
        assert index.ranked("wool", price=(15.0, 20.0)) == ["3", "30", "20"]
        assert index.ranked("wool", price=(None, 10.0)) == ["22"]
        assert index.ranked("wool", price=(15.5, None)) == ["30", "20", "21"]
        assert index.ranked("wool", shop_id="s2") == ["30", "21"]
        assert index.ranked("wool", services=("COD", "official")) == ["22"]
        assert index.ranked("wool", shop_id="nowhere") == []

    def test_sort_is_stable_over_rank(self, index: SearchIndex) -> None:
        assert index.ranked("wool", sort="order") == ["30", "20", "22", "21", "3"]
        assert index.ranked("wool", sort="priceasc") == ["22", "3", "30", "20", "21"]
        assert index.ranked("wool", sort="pricedesc") == ["21", "20", "30", "3", "22"]

    @pytest.mark.parametrize("query", ["", "   ", "the of and", "+-&|!(){}", "unknownword"])
    def test_queries_without_a_known_word_find_nothing(
        self, index: SearchIndex, query: str
    ) -> None:
        assert index.ranked(query) == []

    def test_query_language_is_text(self, index: SearchIndex) -> None:
        assert clean_query('+wool AND "hat"~2 a/b') == "wool AND  hat  2 a b"
        assert index.ranked('title:"hat" -wool') == index.ranked("title hat wool")

    def test_pages(self, index: SearchIndex) -> None:
        index = SearchIndex.build(shelf(), SearchSpec(page_size=2, pages=2))
        assert index.page("wool", 1) == ["3", "30"]
        assert index.page("wool", 2) == ["20", "21"]
        assert index.page("wool", 3) == index.page("wool", 0) == index.page("wool", -1) == []

    def test_wrong_arguments_of_a_caller_are_named(self, index: SearchIndex) -> None:
        for wrong in ({"services": ("LazMall",)}, {"sort": "best"}, {"price": (math.nan, None)}):
            with pytest.raises(InputError):
                index.ranked("wool", **wrong)

    def test_in_shop_lists_everything_and_ranks_with_words(self, index: SearchIndex) -> None:
        assert index.in_shop("s1") == ["20", "22", "3", "5"]
        assert index.in_shop("s1", price=(1.0, 15.0), sort="pricedesc") == ["3", "22"]
        assert index.in_shop("s1", "scarf") == ["20", "22"]
        assert index.in_shop("nowhere") == []


class TestCapacity:
    """Filters come after retrieval: what ranks below the capacity cannot be found through them."""

    CATALOGUE = Catalogue.from_products(
        "deep",
        [product(f"{n:03}", "lamp", shop_id="deep" if n >= 90 else "top") for n in range(100)],
    )

    def test_deep_items_of_a_shop_are_lost_after_and_found_before(self) -> None:
        after = SearchIndex.build(self.CATALOGUE, SearchSpec(capacity=95))
        before = SearchIndex.build(self.CATALOGUE, SearchSpec(capacity=95, filters="before"))
        assert after.ranked("lamp", shop_id="deep") == [f"{n:03}" for n in range(90, 95)]
        assert before.ranked("lamp", shop_id="deep") == [f"{n:03}" for n in range(90, 100)]
        assert after.ranked("lamp", shop_id="deep", filters="before") == before.ranked(
            "lamp", shop_id="deep"
        )

    def test_the_pool_is_cut_before_the_sort(self) -> None:
        spread = [product(f"{n:03}", "lamp", price=100.0 - n) for n in range(60)]
        index = SearchIndex.build(Catalogue.from_products("spread", spread))
        assert len(index.ranked("lamp")) == 50
        assert index.ranked("lamp", sort="priceasc")[0] == "049"

    @given(st.data())
    @settings(max_examples=60, deadline=None)
    def test_any_capacity_is_exact(self, data: st.DataObject) -> None:
        titles = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4).map(" ".join)
        made = data.draw(st.lists(st.tuples(titles, st.integers(0, 3)), min_size=1, max_size=40))
        catalogue = Catalogue.from_products(
            "any", [product(f"{n:02}", t, shop_id=f"s{s}") for n, (t, s) in enumerate(made)]
        )
        capacity = data.draw(st.integers(1, 40))
        index = SearchIndex.build(catalogue, SearchSpec(capacity=capacity, pool=200))
        query = data.draw(titles)
        everything = index.ranked(query)
        expected = [
            each for each in everything[:capacity] if catalogue.products[each].shop_id == "s1"
        ]
        assert index.ranked(query, shop_id="s1") == expected


@given(
    st.lists(
        st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=8), min_size=1, max_size=30
    ),
    st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=6),
)
@settings(max_examples=80, deadline=None)
def test_scores_equal_the_formula(documents: list[list[str]], query: list[str]) -> None:
    catalogue = Catalogue.from_products(
        "any", [product(f"{n:02}", " ".join(words)) for n, words in enumerate(documents)]
    )
    index = SearchIndex.build(catalogue, SearchSpec(pool=100))
    scores = reference_scores(catalogue, " ".join(query), 0.9, 0.4)
    found = index.ranked(" ".join(query))
    assert set(found) == set(scores)
    for first, second in itertools.pairwise(found):
        assert scores[first] >= scores[second] * (1 - 1e-6)
        if scores[first] == scores[second]:
            assert first < second


@given(
    query=st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4).map(" ".join),
    low=st.none() | st.floats(0, 100),
    high=st.none() | st.floats(0, 100),
    services=st.lists(st.sampled_from(SERVICES), max_size=2),
    size=st.integers(1, 7),
)
@settings(max_examples=80, deadline=None)
def test_filters_only_shrink_and_pages_are_slices(
    query: str, low: float | None, high: float | None, services: list[str], size: int
) -> None:
    rng = np.random.default_rng(7)
    catalogue = Catalogue.from_products(
        "many",
        [
            product(
                f"{n:02}",
                " ".join(rng.choice(VOCABULARY, 3)),
                price=float(rng.integers(0, 100)),
                service=tuple(tag for tag in SERVICES if rng.random() < 0.5),
            )
            for n in range(80)
        ],
    )
    index = SearchIndex.build(catalogue, SearchSpec(pool=80, page_size=size))
    everything = index.ranked(query)
    kept = index.ranked(query, price=(low, high), services=services)
    allowed = [
        each
        for each in everything
        if (low is None or catalogue.products[each].price >= low)
        and (high is None or catalogue.products[each].price <= high)
        and set(services) <= set(catalogue.products[each].service)
    ]
    assert kept == allowed
    pages = [index.page(query, n, price=(low, high), services=services) for n in range(1, 6)]
    assert [each for page in pages for each in page] == kept[: size * 5]


def test_an_index_travels_by_pickle_and_searches_leave_no_trace(index: SearchIndex) -> None:
    twin = pickle.loads(pickle.dumps(index))
    for query in ("wool", "hat scarf", "kettle red", "wool"):
        assert twin.ranked(query) == index.ranked(query) == SearchIndex.build(shelf()).ranked(query)


def test_threads_share_an_index(index: SearchIndex) -> None:
    expected = {query: index.ranked(query) for query in ("wool", "hat", "scarf kettle glass")}
    wrong: list[str] = []

    def search() -> None:
        for _ in range(300):
            wrong.extend(q for q, found in expected.items() if index.ranked(q) != found)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_empty_and_wordless_catalogues_find_nothing() -> None:
    assert SearchIndex.build(Catalogue.from_products("none", [])).ranked("wool") == []
    wordless = Catalogue.from_products("wordless", [product("1", "the !!!")])
    assert SearchIndex.build(wordless).ranked("the") == []


def test_a_query_is_cut_at_lucenes_clause_limit() -> None:
    many = Catalogue.from_products("many", [product(f"{n:04}", f"word{n}") for n in range(1100)])
    index = SearchIndex.build(many, SearchSpec(pool=2000))
    assert len(index.ranked(" ".join(f"word{n}" for n in range(1100)))) == 1024
