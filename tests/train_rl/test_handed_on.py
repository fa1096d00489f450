"""Of what a stage learned over 16-bit weights, the next one has everything, whatever the rate."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen3Config

from palio.records import ConfigError, IntegrityError
from palio.train.backends.carried import UNMERGED, Carried, carried, read_past
from palio.train.backends.choice import backend_of
from palio.train.backends.job import adapter
from palio.train.backends.masters import check_launched
from palio.train.backends.merging import ROUNDING, lowered, merged
from palio.train.backends.weights import load_model
from palio.train.reading import load_recipe, read_recipe
from palio.train.recipe import LoraConfig, PretrainedModel
from palio.train.rl.opening import pretrained_policy
from palio.train.rl.policy import merged_weights
from palio.train.rl.pushed import push_whole

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

TARGETS = ("q_proj", "up_proj")
LORA = LoraConfig(rank=4, alpha=6, targets=TARGETS)
TEMPLATE = str(resources.files("palio.train") / "chat_template.jinja")
Weights = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> PretrainedModel:
    """A Qwen3 in bfloat16 of some 10,000 weights, on disk."""
    config = Qwen3Config(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=97,
        tie_word_embeddings=True,
    )
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("toy") / "base"
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return PretrainedModel(path=str(folder), dtype="bfloat16", lora=LORA)


def learn(spec: PretrainedModel, start: Path | None, rate: float, seed: int) -> Any:
    """A stage: the start under an adapter; numbers of its second matrices have the size `rate`."""
    torch.manual_seed(seed)
    made: Any = peft.get_peft_model(load_model(spec, start, 0), adapter(LORA))
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            nn.init.uniform_(weight, -rate, rate)
    return made


def hand_on(trained: Any, spec: PretrainedModel, start: Path | None, out: Path) -> Path:
    out.mkdir(parents=True)
    merged(trained, spec, start, 0, out, out).save_pretrained(out)
    return out


def update_of(trained: Any) -> dict[str, Tensor]:
    """PEFT's own idea of what its adapter adds, in float64."""
    found = {}
    for name, layer in trained.named_modules():
        if hasattr(layer, "lora_B"):
            grow, shrink = (part.default.weight.double() for part in (layer.lora_B, layer.lora_A))
            found[name.removeprefix("base_model.model.")] = 1.5 * (grow @ shrink).detach()
    return found


def logps(model: Any, ids: Tensor) -> Tensor:
    """(B, T - 1) log-probs of the next ids."""
    with torch.no_grad():
        scores = torch.log_softmax(model(input_ids=ids).logits[:, :-1].double(), -1)
    return scores.gather(2, ids[:, 1:, None])[..., 0]


def exact_logps(weights: Weights, config: Any, ids: Tensor) -> Tensor:
    """What a plain model with these weights says, in float64."""
    made: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    made.load_state_dict(weights)
    return logps(made.eval(), ids)


@tried(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(-9, -2), min_size=1, max_size=3), st.integers(0, 99))
def test_the_next_stage_has_the_sum_of_all_updates_to_float32(
    toy: PretrainedModel, tmp_path_factory: pytest.TempPathFactory, sizes: list[float], seed: int
) -> None:
    base = load_file(Path(toy.path) / "model.safetensors")
    folder = tmp_path_factory.mktemp("stages")
    start: Path | None = None
    wanted: dict[str, Tensor] = {}
    for number, size in enumerate(sizes):
        trained = learn(toy, start, 10**size, seed + number)
        for name, each in update_of(trained).items():
            wanted[name] = wanted[name] + each if name in wanted else each
        start = hand_on(trained, toy, start, folder / str(number))
    got = load_model(toy, start, 0)
    served = load_file(folder / str(len(sizes) - 1) / "model.safetensors")
    carry = {name: layer for name, layer in got.named_modules() if isinstance(layer, Carried)}
    assert carry.keys() == wanted.keys()
    for name, layer in carry.items():
        assert torch.equal(layer.weight, base[f"{name}.weight"]), "the weights stay as they were"
        delta = layer.past_out.double() @ layer.past_in.double()
        assert float((delta - wanted[name]).abs().max()) <= 1e-6 * float(wanted[name].abs().max())
        whole = base[f"{name}.weight"].double() + wanted[name]
        apart = (served[f"{name}.weight"].double() - whole).abs()
        assert bool((apart <= whole.abs() * 2**-8).all()), "rounded once, not once a stage"
    assert {value.dtype for value in served.values()} == {torch.bfloat16}


def test_an_update_is_one_adapter_as_peft_loads_it(toy: PretrainedModel, tmp_path: Path) -> None:
    """So vLLM serves it over the first weights: their file, the rank of all stages, scaled by 1."""
    start = None
    for number in (1, 2):
        trained = learn(toy, start, 1e-4, number)
        start = hand_on(trained, toy, start, tmp_path / str(number))
    assert start is not None
    plain = AutoModelForCausalLM.from_pretrained(toy.path, dtype=torch.bfloat16)
    theirs = peft.PeftModel.from_pretrained(plain, start / UNMERGED)
    ours = load_model(toy, start, 0)
    for name, each in carried(ours).items():
        layer: Any = theirs.get_submodule(f"base_model.model.{name}")
        wanted = each.delta(torch.device("cpu"))
        assert torch.allclose(layer.get_delta_weight("default"), wanted, rtol=0, atol=2e-8), name
        assert float(wanted.abs().max()) > 1e-5
    ids = torch.randint(0, 97, (2, 20))
    assert torch.allclose(logps(theirs, ids), logps(ours, ids), atol=0.02)
    told = json.loads((start / UNMERGED / "adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"]) == (8, 8)
    assert told["base_model_name_or_path"] == toy.path


def test_other_first_weights_are_refused(toy: PretrainedModel, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(toy.path, base)
    spec = PretrainedModel(path=str(base), dtype="bfloat16", lora=LORA)
    start = hand_on(learn(spec, None, 1e-4, 1), spec, None, tmp_path / "one")
    other: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    other.model.layers[1].mlp.up_proj.weight.data *= 1.25
    other.save_pretrained(base)
    with pytest.raises(IntegrityError, match="the weights that the run began with are not those"):
        load_model(spec, start, 0)


def test_a_run_that_began_with_merged_weights_goes_on_from_them(
    toy: PretrainedModel, tmp_path: Path
) -> None:
    """A stage of an older palio left nothing but merged weights; run folders are moved, too."""
    run = tmp_path / "run"
    old = run / "sft" / "checkpoint"
    shutil.copytree(toy.path, old)
    trained = learn(toy, old, 1e-4, 1)
    hand_on(trained, toy, old, run / "kto" / "checkpoint")
    hand_on(
        learn(toy, run / "kto" / "checkpoint", 1e-4, 2),
        toy,
        run / "kto" / "checkpoint",
        run / "grpo" / "checkpoint",
    )
    run.rename(tmp_path / "moved")
    for stage in ("kto", "grpo"):
        past = read_past(tmp_path / "moved" / stage / "checkpoint")
        assert past is not None
        assert past.origin.base == "../../sft/checkpoint"
        load_model(toy, tmp_path / "moved" / stage / "checkpoint", 0)


def test_an_adapter_that_cannot_be_handed_on_is_refused_before_training(
    toy: PretrainedModel,
) -> None:
    for target in ("embed_tokens", "lm_head"):
        told = LoraConfig(targets=("q_proj", target))
        spec = PretrainedModel(path=toy.path, dtype="bfloat16", lora=told)
        with pytest.raises(ConfigError, match=target):
            load_model(spec, None, 0)
        load_model(PretrainedModel(path=toy.path, dtype="float32", lora=told), None, 0)


def test_a_copy_of_a_policy_is_that_policy(toy: PretrainedModel, tmp_path: Path) -> None:
    """A distillation's teacher may be the start."""
    start = hand_on(learn(toy, None, 1e-5, 1), toy, None, tmp_path / "one")
    codec: Any = SimpleNamespace(tokenizer=range(97), end=0, pad=0)
    policy = pretrained_policy(toy, codec, start, 5)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            nn.init.uniform_(weight, -1e-5, 1e-5)
    copied = policy.copy()
    whole = merged_weights(policy.model)
    for name, part in carried(copied).items():
        base = copied.get_submodule(name).get_parameter("weight").double()
        wanted = whole[f"{name}.weight"].double()
        sums = base + part.delta(base.device).double()
        assert torch.allclose(sums, wanted, rtol=0, atol=1e-8)
    ids = torch.randint(0, 97, (2, 20))
    assert torch.allclose(logps(copied, ids), logps(policy.model.eval(), ids), atol=0.02)


def test_a_server_gets_all_updates_rounded_once(toy: PretrainedModel, tmp_path: Path) -> None:
    start = hand_on(learn(toy, None, 3e-3, 1), toy, None, tmp_path / "one")
    trained = learn(toy, start, 3e-3, 2)
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    generation = SimpleNamespace(
        _iter_named_params=lambda: iter(()), _fix_param_name_to_vllm=lambda name: name
    )
    accelerator = SimpleNamespace(unwrap_model=lambda model: model, state=SimpleNamespace())
    trainer = SimpleNamespace(
        vllm_generation=generation, model=trained, accelerator=accelerator, is_fsdp_enabled=False
    )
    push_whole(trainer)
    pushed = dict(generation._iter_named_params())
    wanted = merged_weights(trained)
    wanted.pop("lm_head.weight")  # tied
    assert pushed.keys() == wanted.keys()
    for name, value in pushed.items():
        assert value.dtype == torch.bfloat16
        assert torch.allclose(value.float(), wanted[name].float(), rtol=2**-8, atol=0), name
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())


def test_weights_trained_whole_in_float32_say_what_rounding_takes(
    toy: PretrainedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As FSDP trains them."""
    spec = PretrainedModel(path=toy.path, dtype="bfloat16")
    for rate, most in ((1e-6, 0.5), (1e-2, 0.1)):
        model = load_model(PretrainedModel(path=toy.path), None, 0)
        for weight in model.parameters():
            weight.data += rate * torch.sign(torch.randn_like(weight))
        caplog.clear()
        made = lowered(model, spec, None, 0, tmp_path / str(rate))
        assert {weight.dtype for weight in made.parameters()} == {torch.bfloat16}
        told = json.loads((tmp_path / str(rate) / ROUNDING).read_text())
        assert (told["kept"] < 0.5) == (rate < 1e-4)
        assert (told["error"] > most) == (rate < 1e-4)
        assert ("float32" in caplog.text) == (rate < 1e-4)


def test_all_weights_in_16_bits_are_not_trained() -> None:
    def recipe(**model: Any) -> Any:
        table = {"backend": "transformers", "path": "x", "dtype": "bfloat16", **model}
        return read_recipe({"model": table, "stage": [{"kind": "sft"}]})

    with pytest.raises(ConfigError, match="would train all weights in bfloat16") as found:
        backend_of(recipe())
    assert 'dtype = "float32"' in found.value.remedy
    backend_of(recipe(dtype="float32"))
    backend_of(recipe(lora={"rank": 2}))
    for name in ("qwen3-4b", "qwen3-4b-full", "smollm2"):
        backend_of(load_recipe(name))


def test_a_launched_process_looks_at_what_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2).bfloat16()
    check_launched(model)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr("accelerate.state.AcceleratorState", lambda: SimpleNamespace())
    with pytest.raises(ConfigError, match="2 weights would be trained in 16 bits"):
        check_launched(model)
    check_launched(model.float())
    plugin = SimpleNamespace(deepspeed_plugin=object())
    monkeypatch.setattr("accelerate.state.AcceleratorState", lambda: plugin)
    check_launched(model.bfloat16())
