"""Strong edges merge, weak ones only warn, and people overrule texts but not facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given

from palio.records import ConfigError, InputError, IntegrityError, MissingDependencyError, Problem
from palio.suites import leak_clusters
from palio.suites.embedding import EmbeddingRule, Vectors, VectorStore, cosines_at, vector_store
from palio.suites.grams import GramRule, grams_of, shared_grams
from palio.suites.guard import GuardConfig, Suspicion, guard
from palio.suites.links import Links, read_links
from palio.suites.pools import assign_pools
from palio.suites.quarantine import quarantined
from tests.suites.making import made_problem, problem_sets

ONE = "a walnut teapot with a copper lid and engraved dragon, 2 litres"
NEAR = "engraved dragon on a copper lid: the walnut teapot, 2 litres please"
SOME = "a walnut teapot with a copper lid, dragon trivet, quilted"
FAR = "an inflatable kayak with aluminium paddles"


def asked(*queries: str, families: Sequence[tuple[str, ...]] = ()) -> tuple[Problem, ...]:
    return tuple(
        made_problem(f"p{n}", (str(n),), query=q, families=families[n] if families else ())
        for n, q in enumerate(queries)
    )


def pairs(config: GuardConfig, problems: tuple[Problem, ...]) -> tuple[set[str], set[str]]:
    """Ids that lexical edges join to p0, and ids that are suspected of being p0."""
    found = guard(problems, config)
    strong = {edge.other for edge in found.clustering.edges.get("lexical", ())}
    return strong, {name for each in found.suspicions for name in each.problems[1:]}


def test_near_requests_merge_and_less_near_ones_are_suspected() -> None:
    found = guard(asked(ONE, NEAR, SOME, FAR))
    assert [(e.one, e.other) for e in found.clustering.edges["lexical"]] == [("p0", "p1")]
    assert len(found.clustering.members) == 3
    assert {each.problems for each in found.suspicions} == {("p0", "p2"), ("p1", "p2")}
    assert all(each.kind == "lexical" and each.score < 0.85 for each in found.suspicions)


@given(problem_sets())
def test_without_rules_it_is_the_exact_clustering(problems: tuple[Problem, ...]) -> None:
    found = guard(problems, GuardConfig(lexical=None, grams=None))
    assert found.clustering == leak_clusters(problems)
    assert found.suspicions == ()


def test_known_families_tell_similar_requests_apart() -> None:
    differ = asked(ONE, NEAR, SOME, families=(("a",), ("b",), ("c",)))
    assert guard(differ).suspicions == ()
    assert guard(differ).clustering.edges["lexical"] == ()
    half = asked(ONE, NEAR, families=(("a",), ()))
    assert len(guard(half).clustering.members) == 1
    strict = GuardConfig(trust_families=False)
    assert len(guard(differ, strict).clustering.members) == 2


def test_an_operator_joins_and_parts() -> None:
    problems = asked(ONE, NEAR, SOME, FAR)
    apart = Links(cannot=(("p1", "p0"),), must=(("p3", "p2"),))
    found = guard(problems, GuardConfig(links=apart))
    assert found.clustering.edges["lexical"] == ()
    assert found.clustering.cluster_of["p2"] == found.clustering.cluster_of["p3"]
    assert ("p0", "p1") not in {each.problems for each in found.suspicions}


def test_a_chain_around_a_cannot_link_is_named() -> None:
    links = Links(must=(("p0", "p3"), ("p3", "p1")), cannot=(("p0", "p1"),))
    with pytest.raises(IntegrityError, match="p0 - p3 by operator must-link; p3 - p1"):
        guard(asked(ONE, NEAR, SOME, FAR), GuardConfig(links=links))
    shared = (made_problem("a", ("7",)), made_problem("b", ("7",)))
    with pytest.raises(IntegrityError, match="by product"):
        guard(shared, GuardConfig(links=Links(cannot=(("a", "b"),))))


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (Links(must=(("p0", "p9"),)), "'p9', which is not there"),
        (Links(cannot=(("p0", "p0"),)), "to itself"),
        (Links(must=(("p0", "p1"),), cannot=(("p1", "p0"),)), "must and cannot"),
    ],
)
def test_links_that_make_no_sense_are_refused(links: Links, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        guard(asked(ONE, NEAR), GuardConfig(links=links))


def test_links_are_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text('must = [["a", "b"]]\ncannot = [["c", "d"], ["e", "f"]]\n')
    assert read_links(path) == Links(must=(("a", "b"),), cannot=(("c", "d"), ("e", "f")))
    for text in ("must = [1]", "mist = []", "must = "):
        path.write_text(text)
        with pytest.raises(ConfigError, match="not a file of links"):
            read_links(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_links(tmp_path / "none.toml")


def test_large_and_loose_clusters_raise_alarms() -> None:
    chain = tuple(made_problem(f"c{n:02}", (str(n), str(n + 1))) for n in range(12))
    clique = tuple(made_problem(f"k{n}", ("900",)) for n in range(6))
    found = {alarm.why: alarm for alarm in guard((*chain, *clique)).alarms}
    assert found.keys() == {"loose"}
    assert found["loose"].size == 12
    assert found["loose"].density == pytest.approx(11 / 66)
    large = guard(chain, GuardConfig(large=10)).alarms
    assert [alarm.why for alarm in large] == ["large"]


def test_runs_of_words_are_shared_only_where_they_tell_something() -> None:
    rules = "My budget is only 40 but I have a voucher with the following rules: it applies"
    content = "walnut teapot copper lid engraved dragon two litres green felt base oak box zip"
    assert not list(grams_of(rules, GramRule()))
    problems = asked(f"x {content}", f"{content} y", rules, rules.replace("40", "50"))
    shared = shared_grams(problems, GramRule())
    assert set(shared.values()) == {("p0", "p1")}
    assert all(len(gram.split()) == 13 for gram in shared)


def suspected(*groups: tuple[str, ...]) -> list[Suspicion]:
    return [Suspicion(kind="gram", key=str(n), problems=group) for n, group in enumerate(groups)]


def test_the_measuring_problem_is_taken_out_and_no_more_than_needed() -> None:
    pools = ("train", "development", "heldout")
    pool_of = {"a": "train", "b": "development", "c": "heldout", "d": "heldout", "e": "train"}
    assert list(quarantined(pool_of, suspected(("a", "b")), pools)) == ["b"]
    assert list(quarantined(pool_of, suspected(("b", "c"), ("a", "b")), pools)) == ["b"]
    assert list(quarantined(pool_of, suspected(("a", "c", "d", "e")), pools)) == ["c", "d"]
    assert quarantined(pool_of, suspected(("a", "e"), ("c", "d")), pools) == {}


@given(problem_sets())
def test_nothing_suspicious_is_left_across_pools(problems: tuple[Problem, ...]) -> None:
    rng = Random(len(problems))
    names = [problem.problem_id for problem in problems]
    groups = suspected(*(tuple(sorted(rng.sample(names, 2))) for _ in names if len(names) > 1))
    pool_of = assign_pools(problems, leak_clusters(problems))
    pools = ("train", "development", "heldout")
    out = quarantined(pool_of, groups, pools)
    assert "train" not in {pool_of[name] for name in out}
    for group in groups:
        assert len({pool_of[name] for name in group.problems if name not in out}) <= 1


class Letters:
    """A model of 26 numbers: how often a text has each letter."""

    model_id = "letters-1"

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.embedded += texts
        counts = [[text.count(chr(97 + n)) + 1e-6 for n in range(26)] for text in texts]
        found = np.array(counts, np.float32)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


MEANING = GuardConfig(
    lexical=None, grams=None, embedding=EmbeddingRule(cosine=0.999, weak_cosine=0.9)
)


def test_embedding_edges_merge_or_warn_and_name_their_model() -> None:
    problems = asked("listen", "silent", "silentt", "zzz")
    found = guard(problems, MEANING, store=VectorStore(Letters()))
    assert [(e.one, e.other, e.score) for e in found.clustering.edges["embedding"]] == [
        ("p0", "p1", 1.0)
    ]
    assert {each.problems for each in found.suspicions} == {("p0", "p2"), ("p1", "p2")}
    assert found.model == "letters-1"


def test_a_text_is_embedded_once_whatever_its_white_space(tmp_path: Path) -> None:
    first = Letters()
    VectorStore(first, tmp_path).of(["Blue  mug", "blue mug", "lamp"])
    assert first.embedded == ["blue mug", "lamp"]
    second = Letters()
    store = VectorStore(second, tmp_path)
    assert store.of(["BLUE MUG", "desk"]).shape == (2, 26)
    assert second.embedded == ["desk"]
    assert store.of([]).shape[0] == 0
    (tmp_path / "letters-1.npz").write_bytes(b"PK broken")
    with pytest.raises(InputError, match="not a file of vectors"):
        VectorStore(Letters(), tmp_path)


def test_thresholds_of_a_model_follow_its_rate_of_false_pairs() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((60, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    high, low = cosines_at(vectors, (0.01, 0.1))
    upper = (vectors @ vectors.T)[np.triu_indices(60, 1)]
    assert (upper > high).mean() <= 0.01
    assert low < high


def test_a_model_that_is_not_installed_is_an_error_with_a_remedy() -> None:
    from palio.judging.minilm import MiniLmEncoder

    try:
        MiniLmEncoder.load()
    except MissingDependencyError:
        with pytest.raises(MissingDependencyError, match="pip install"):
            guard(asked(ONE), MEANING)
    else:
        assert vector_store(EmbeddingRule()) is not None


@pytest.mark.parametrize(
    "config",
    [
        GuardConfig(large=0),
        GuardConfig(loose=2.0),
        GuardConfig(grams=GramRule(words=3, content=4)),
        GuardConfig(embedding=EmbeddingRule(cosine=0.5)),
        GuardConfig(embedding=EmbeddingRule(model="other")),
    ],
)
def test_nonsense_is_refused(config: GuardConfig) -> None:
    with pytest.raises(ConfigError):
        guard((), config)


def test_the_order_of_problems_does_not_matter() -> None:
    problems = list(asked(ONE, NEAR, SOME, FAR, ONE + " in a box"))
    first = guard(problems)
    Random(1).shuffle(problems)
    assert msgspec.json.encode(guard(problems)) == msgspec.json.encode(first)
