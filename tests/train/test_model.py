"""The model is Qwen3: same names, same logits, same gradients; checkpoints are whole or absent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

from palio.records import InputError, IntegrityError, Message
from palio.train import kernels
from palio.train.checkpoint import MANIFEST, load_checkpoint, save_checkpoint
from palio.train.heads import lay_out_heads
from palio.train.model import ModelConfig, Qwen3
from palio.train.tokenizer import ChatTokenizer


@pytest.fixture
def folder(small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint"
    save_checkpoint(
        made, small, tokenizer, config={"a": 1}, inputs={"corpus": "x"}, counts={"n": 2}, seed=1
    )
    return made


def test_transformers_loads_a_checkpoint_and_computes_the_same(
    folder: Path, small: Qwen3, talks: list[Sequence[Message]], tokenizer: ChatTokenizer
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert type(theirs).__name__ == "Qwen3ForCausalLM"
    ids = torch.tensor([tokenizer.encode_chat(talks[0]).ids])
    ours, other = small(ids), theirs(ids).logits
    torch.testing.assert_close(ours, other, atol=2e-4, rtol=1e-4)
    labels = ids[0, 1:]
    wanted = dict(theirs.named_parameters())
    ours_loss = cross_entropy(ours[0, :-1], labels)
    mine = torch.autograd.grad(ours_loss, list(small.parameters()))
    cross_entropy(other[0, :-1], labels).backward()
    for (name, _), gradient in zip(small.named_parameters(), mine, strict=True):
        expected = wanted[name].grad.clone()
        if "embed" in name:  # theirs gives the padding entry no gradient
            gradient, expected = gradient[1:], expected[1:]
        torch.testing.assert_close(gradient, expected, atol=1e-4, rtol=2e-3)


def test_a_tokenizer_tells_the_places_that_its_model_has(
    tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    """Servers take no longer prompts than the shorter of the two says."""
    shape = ModelConfig(
        vocab_size=tokenizer.size,
        hidden_size=16,
        intermediate_size=16,
        layers=1,
        head_dim=4,
        max_positions=512,
    )
    save_checkpoint(
        tmp_path / "c", Qwen3(shape), tokenizer, config={}, inputs={}, counts={}, seed=0
    )
    told = json.loads((tmp_path / "c" / "tokenizer_config.json").read_bytes())
    held = json.loads((tmp_path / "c" / "config.json").read_bytes())
    assert told["model_max_length"] == held["max_position_embeddings"] == 512


def test_chosen_positions_are_those_of_the_whole(small: Qwen3) -> None:
    ids = torch.arange(60).view(2, 30) % small.config.vocab_size
    keep = torch.tensor([3, 31, 59])
    whole = small.hidden(ids).flatten(0, 1)[keep]
    torch.testing.assert_close(small.hidden(ids, keep), whole)
    low = small.hidden(ids, keep, low=True).float()
    assert torch.nn.functional.cosine_similarity(low, whole).min() > 0.99


@pytest.mark.parametrize("length", [1, 40, kernels.BLOCK, 2 * kernels.BLOCK + 7])
def test_attention_and_its_gradient_are_those_of_the_plain_formula(length: int) -> None:
    torch.manual_seed(length)
    q, k, v = (
        torch.randn(2, length, heads, 16, dtype=torch.float64, requires_grad=True)
        for heads in (4, 2, 2)
    )
    weight = torch.randn(2, length, 64, dtype=torch.float64)
    wide = [part.transpose(1, 2).repeat_interleave(2, 1) for part in (k, v)]
    plain = scaled_dot_product_attention(q.transpose(1, 2), *wide, is_causal=True)
    plain = plain.transpose(1, 2).flatten(2)
    ours = kernels.causal_attention(q, k, v)
    torch.testing.assert_close(ours, plain)
    mine = torch.autograd.grad((ours * weight).sum(), (q, k, v))
    theirs = torch.autograd.grad((plain * weight).sum(), (q, k, v))
    torch.testing.assert_close(mine, theirs)


def test_the_other_kernels_have_the_gradients_of_their_formulas() -> None:
    torch.manual_seed(0)
    x, gain = torch.randn(3, 5, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    weight = torch.randn(3, 5, 8)
    ours = kernels.rms_norm(x, gain, 1e-6, torch.float32)
    plain = rms_norm(x, (8,), gain, 1e-6)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(
        torch.autograd.grad((ours * weight).sum(), (x, gain)),
        torch.autograd.grad((plain * weight).sum(), (x, gain)),
    )
    both = torch.randn(4, 16, requires_grad=True)
    ours, plain = kernels.swiglu(both), silu(both[:, :8]) * both[:, 8:]
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(
        torch.autograd.grad(ours.square().sum(), both),
        torch.autograd.grad(plain.square().sum(), both),
    )


def test_laid_out_heads_copy_before_any_training() -> None:
    model = Qwen3(ModelConfig(vocab_size=512, hidden_size=192, layers=2))
    model.initialise(0)
    once = torch.randint(0, 512, (4, 50), generator=torch.Generator().manual_seed(0))
    labels = once[:, 5:].flatten()

    def copied() -> float:
        guesses = model(once.repeat(1, 2))[:, 54:-1].argmax(-1)
        return float((guesses.flatten() == labels).float().mean())

    assert copied() < 0.05
    lay_out_heads(model, 0)
    assert copied() > 0.2


def test_a_checkpoint_comes_back(folder: Path, small: Qwen3, tokenizer: ChatTokenizer) -> None:
    loaded = load_checkpoint(folder)
    for name, value in small.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value)
    assert loaded.tokenizer.to_json() == tokenizer.to_json()
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["inputs"] == {"corpus": "x"}
    assert manifest["outputs"].keys() >= {"model.safetensors", "config.json", "tokenizer.json"}
    assert not list(folder.parent.glob(".*"))


def test_changed_weights_are_noticed(folder: Path) -> None:
    weights = folder / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(IntegrityError, match="manifest"):
        load_checkpoint(folder)


def test_another_architecture_is_refused(folder: Path) -> None:
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**shape, "model_type": "llama"}))
    with pytest.raises(InputError, match="llama"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(InputError, match="checkpoint|tokenizer"):
        load_checkpoint(folder)
