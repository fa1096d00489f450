"""One clustering by all the ways in which two problems can be one, and a list of mere suspicions.

Strong edges merge: a shared product, specification or text, a request that is nearly the same in
words or in meaning, an operator's must-link. Weak ones do not, since closing them transitively
would make one cluster of everything; they constrain the split instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

from palio.records import ConfigError, Problem, Record
from palio.records.base import CanonicalRecord
from palio.suites.alarms import Alarm, alarms_of
from palio.suites.clusters import (
    EDGE_KINDS,
    Clustering,
    Edge,
    EdgeKind,
    by_id,
    closure,
    edge_kinds,
    shared_key_edges,
)
from palio.suites.embedding import EmbeddingRule, VectorStore, near_pairs, vector_store
from palio.suites.grams import GramRule, shared_grams
from palio.suites.keys import family_keys
from palio.suites.lexical import LexicalRule, likenesses, word_weights
from palio.suites.links import OPERATOR, Links, check_told_apart, must_edges

ALGORITHM = "palio-leak-2"
"""Raised whenever equal problems and an equal configuration would give other clusters."""


class GuardConfig(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Everything beyond the exact edges that decides clusters and split.

    Attributes:
        lexical: edges of shared rare words; None = none.
        embedding: edges of meaning; None = none. Needs an installed model.
        grams: suspicions by runs of words; None = none.
        trust_families: two problems whose title families are known and differ are told apart by
            their maker, so that similar texts say nothing of them. Imported problems have none.
        links: what an operator said.
        weak: what becomes of two problems that are suspected of being one and would stand in two
            pools: "drop" takes the one in the later pool out, "together" keeps both on one side.
        split: "hash" needs no state; "stratified" balances kind, difficulty and cluster size, and
            needs the earlier pools when problems are added.
        large, loose: alarms: problems of a cluster, share of its pairs that are joined directly.
    """

    lexical: LexicalRule | None = LexicalRule()
    embedding: EmbeddingRule | None = None
    grams: GramRule | None = GramRule()
    trust_families: bool = True
    links: Links = Links()
    weak: Literal["drop", "together"] = "drop"
    split: Literal["hash", "stratified"] = "hash"
    large: int = 25
    loose: float = 0.25

    def checked(self) -> GuardConfig:
        """The configuration itself, once it makes sense.

        Raises:
            ConfigError: thresholds out of order or range.
        """
        for rule in (self.lexical, self.embedding):
            if rule is not None:
                rule.checked()
        if self.grams is not None and not 0 <= self.grams.content <= self.grams.words > 0:
            raise ConfigError("grams needs 0 <= content <= words, and words of at least 1")
        if self.large < 1 or not 0 <= self.loose <= 1:
            raise ConfigError("large must be at least 1, loose within 0 to 1")
        return self


class Suspicion(CanonicalRecord, frozen=True):
    """Problems that may be one and are not merged for it.

    Attributes:
        kind: "lexical", "embedding" or "gram".
        key: the similarity in words, or the shared run.
    """

    kind: str
    key: str
    problems: tuple[str, ...]
    score: float = 1.0


class Guarded(Record, frozen=True):
    """Clusters with their edges, suspicions, alarms, and what the similarities were computed with.

    Attributes:
        weights: digest of the word weights, "" without lexical edges.
        model: id of the embedding model, "" without one.
    """

    clustering: Clustering
    suspicions: tuple[Suspicion, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    weights: str = ""
    model: str = ""

    def together(self) -> list[tuple[str, str]]:
        """Pairs that keep every suspicion on one side."""
        return [pair for each in self.suspicions for pair in pairwise(each.problems)]


def guard(
    problems: Iterable[Problem],
    config: GuardConfig | None = None,
    edges: Sequence[EdgeKind] = EDGE_KINDS,
    store: VectorStore | None = None,
) -> Guarded:
    """Cluster problems by exact, lexical, embedding and operator edges; the order does not matter.

    100,000 problems with exact and lexical edges: see docs/leak-guard.md.

    Args:
        problems: the problems.
        config: all that goes beyond the exact edges; defaults when None.
        edges: exact edge kinds.
        store: vectors for the embedding edges; the configured model without a cache when None.

    Raises:
        ConfigError: an unknown edge kind, thresholds out of order, a link of unknown problems.
        InputError: a problem id occurs twice.
        IntegrityError: a cannot-link joined by other edges.
        MissingDependencyError: the embedding model is not installed.
    """
    config = (config or GuardConfig()).checked()
    ordered = by_id(problems)
    rows = tuple(ordered.values())
    drawn: dict[str, tuple[Edge, ...]] = {
        kind: shared_key_edges(rows, kind) for kind in edge_kinds(edges)
    }
    apart = _told_apart(ordered, config)
    suspicions: list[Suspicion] = []
    weights, model = "", ""
    if config.lexical is not None:
        drawn["lexical"], weak, weights = _lexical(rows, config, apart)
        suspicions += weak
    if config.embedding is not None:
        store = store or vector_store(config.embedding)
        assert store is not None
        model = store.model_id
        drawn["embedding"], weak = _embedded(rows, config.embedding, store, apart)
        suspicions += weak
    if config.links != Links():
        drawn[OPERATOR] = must_edges(config.links, ordered)
    clustering = closure(ordered, drawn)
    check_told_apart(config.links, clustering)
    if config.grams is not None:
        suspicions += _runs(rows, config.grams)
    return Guarded(
        clustering=clustering,
        suspicions=tuple(each for each in suspicions if _open(each, clustering)),
        alarms=alarms_of(ordered, clustering, large=config.large, loose=config.loose),
        weights=weights,
        model=model,
    )


def _open(suspicion: Suspicion, clustering: Clustering) -> bool:
    """Whether it is more than the clusters say already."""
    return len({clustering.cluster_of[name] for name in suspicion.problems}) > 1


def _told_apart(problems: dict[str, Problem], config: GuardConfig) -> Callable[[str, str], bool]:
    """Whether somebody knows that two problems differ: an operator, or the maker of both."""
    cannot = config.links.told_apart()
    families = {
        name: frozenset(family_keys(problem)) if config.trust_families else frozenset()
        for name, problem in problems.items()
    }

    def apart(one: str, other: str) -> bool:
        here, there = families[one], families[other]
        made = bool(here) and bool(there) and not here & there
        return made or ((one, other) in cannot)

    return apart


def _lexical(
    rows: Sequence[Problem], config: GuardConfig, apart: Callable[[str, str], bool]
) -> tuple[tuple[Edge, ...], list[Suspicion], str]:
    """Strong edges, suspicions and the digest of the weights."""
    assert config.lexical is not None
    if config.trust_families and all(family_keys(problem) for problem in rows):
        return (), [], word_weights(rows).digest()  # every pair is told apart, or shares a family
    pairs, weights = likenesses(rows, config.lexical)
    strong, weak = [], []
    for pair in pairs:
        if apart(pair.one, pair.other):
            continue
        key = f"jaccard {pair.jaccard:.3f}, containment {pair.containment:.3f}"
        score = max(pair.jaccard, pair.containment)
        if pair.strong:
            strong.append(Edge(one=pair.one, other=pair.other, key=key, score=score))
        else:
            both = (pair.one, pair.other)
            weak.append(Suspicion(kind="lexical", key=key, problems=both, score=score))
    return tuple(strong), weak, weights.digest()


def _embedded(
    rows: Sequence[Problem],
    rule: EmbeddingRule,
    store: VectorStore,
    apart: Callable[[str, str], bool],
) -> tuple[tuple[Edge, ...], list[Suspicion]]:
    vectors = store.of([problem.query for problem in rows])
    strong, weak = [], []
    for one, other, cosine in near_pairs(rows, vectors, rule.weak_cosine):
        if apart(one, other):
            continue
        key = f"cosine {cosine:.4f}"
        if cosine >= rule.cosine:
            strong.append(Edge(one=one, other=other, key=key, score=cosine))
        else:
            weak.append(Suspicion(kind="embedding", key=key, problems=(one, other), score=cosine))
    return tuple(strong), weak


def _runs(rows: Sequence[Problem], rule: GramRule) -> list[Suspicion]:
    return [
        Suspicion(kind="gram", key=gram, problems=held)
        for gram, held in sorted(shared_grams(rows, rule).items())
    ]
