"""Products in bfloat16 where the processor has instructions for them, in float32 elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from palio.train import precision
from palio.train.backends import weights
from palio.train.backends.weights import load_model, sampled, widened
from palio.train.model import ModelConfig, Qwen3
from palio.train.optimiser import orthogonal
from palio.train.precision import multiplies_bfloat16, product_type
from palio.train.recipe import PretrainedModel
from palio.train.rl import hooks
from palio.train.rl.hooks import trl_fields
from palio.train.settings import TrlSettings

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    multiplies_bfloat16.cache_clear()
    yield
    multiplies_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"bf16": True}, torch.bfloat16),
        ({}, torch.float32),
    ],
)
def test_instructions_decide_on_a_cpu_and_not_on_a_gpu(
    found: dict[str, bool], wanted: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    assert product_type(CPU) == wanted
    assert product_type(GPU) == torch.bfloat16


def test_torch_tells_what_this_processor_has() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    assert multiplies_bfloat16() == any(f in flags for f in ("avx512_bf16", "amx_bf16", " bf16"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_and_optimiser_take_the_type_of_the_processor(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = dtype == torch.bfloat16
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": fast})
    made = Qwen3(ModelConfig(64, 32, 64, layers=2, heads=2, kv_heads=1, head_dim=16))
    made.initialise(0)
    ids = torch.randint(0, 64, (2, 9))
    states = made.hidden(ids, low=True)
    assert states.dtype == dtype
    exact = made.hidden(ids)
    assert exact.dtype == torch.float32
    assert torch.equal(states, exact) == (not fast)
    given = torch.randn(1, 8, 8)
    kept = given.clone()
    assert orthogonal(given).dtype == dtype
    assert torch.equal(given, kept), "its argument is the momentum"


def test_trl_is_told_of_bfloat16_where_it_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, alone = TrlSettings(bf16=True), TrlSettings()
    for fast in (True, False):
        monkeypatch.setattr(hooks, "multiplies_bfloat16", lambda fast=fast: fast)
        assert trl_fields(asked, tmp_path, 0, cuda=False)["bf16"] == fast
        assert trl_fields(asked, tmp_path, 0, cuda=True)["bf16"]
        assert not trl_fields(alone, tmp_path, 0, cuda=True)["bf16"]


def test_weights_of_16_bits_are_multiplied_in_32_where_that_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    shape = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    made = AutoModelForCausalLM.from_config(Qwen3Config(**shape), dtype=torch.bfloat16)
    made.save_pretrained(tmp_path)
    low = PretrainedModel(path=str(tmp_path), dtype="bfloat16")
    loaded = {name: value.clone() for name, value in load_model(low, None, 0).state_dict().items()}
    for fast in (True, False):
        monkeypatch.setattr(weights, "multiplies_bfloat16", lambda fast=fast: fast)
        with sampled(widened(load_model(low, None, 0), low)) as model:
            held = model.state_dict()
            assert {value.dtype for value in held.values()} == {
                torch.bfloat16 if fast else torch.float32
            }
            assert all(torch.equal(held[name].bfloat16(), loaded[name]) for name in loaded)


def test_names_of_instructions_are_those_that_torch_tells() -> None:
    told = torch.cpu.get_capabilities()
    if told["architecture"] == "x86_64":
        assert {"avx512_bf16", "amx_bf16"} <= told.keys() & set(precision._INSTRUCTIONS)
