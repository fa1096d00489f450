"""A stage whose weights lie in shares (FSDP, DeepSpeed) ends where one process does, and whole."""

from __future__ import annotations

import json
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from palio.records import ConfigError, IntegrityError, MissingDependencyError, PalioError
from palio.train.backends.choice import backend_of
from palio.train.checkpoint import MANIFEST, WEIGHTS, check_whole, save_checkpoint
from palio.train.disk import finite
from palio.train.model import ModelConfig, Qwen3
from palio.train.reading import read_recipe
from palio.train.recipe import LoraConfig, PretrainedModel, Recipe
from palio.train.run import Options, Trained, train
from palio.train.stage import read_metrics
from palio.train.tokenizer import ChatTokenizer
from palio.world.artefacts import file_digest, read_manifest
from tests.train.test_stages import corpus  # noqa: F401 - a fixture

pytest.importorskip("trl", reason="pretrained models are trained by TRL")
peft = pytest.importorskip("peft", reason="adapters are PEFT's")

from palio.train.backends.codec import PretrainedCodec  # noqa: E402 - needs both packages
from palio.train.backends.job import adapter, save_trained  # noqa: E402
from palio.train.backends.weights import load_model, load_tokenizer  # noqa: E402
from palio.train.backends.whole import check_apart, rebuilt  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ROOT = Path(__file__).parents[2]
LORA = {"rank": 4, "alpha": 8, "dropout": 0.0, "targets": ["q_proj", "v_proj"]}
FSDP = ["accelerate", "launch", "--config_file", "fsdp", "--num_processes", "2"]
FSDP += ["--mixed_precision", "no", "--main_process_port", "0"]
TORCHRUN = ["torchrun", "--standalone", "--nproc_per_node", "2"]


@pytest.fixture(scope="module")
def start(tokenizer: ChatTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of some 40,000 numbers."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "layers": 2, "head_dim": 16}
    model = Qwen3(ModelConfig(vocab_size=tokenizer.size, **shape))
    model.initialise(5)
    folder = tmp_path_factory.mktemp("weights") / "start"
    save_checkpoint(folder, model, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return folder


def recipe(start: Path, lora: dict[str, Any] | None, **trl: Any) -> Recipe:
    """One stage of four updates, of two rows each: no tools in the prompt, so they are short."""
    template = str(resources.files("palio.train") / "chat_template.jinja")
    model = {"backend": "transformers", "path": str(start), "template": template}
    plain = {"max_steps": 4, "save_steps": 2, "learning_rate": 1e-3, "warmup_ratio": 0.0}
    table = {"kind": "sft", "trl": {**plain, "gradient_accumulation_steps": 1, **trl}}
    more = {"lora": lora} if lora else {}
    return read_recipe({"name": "p", "model": {**model, **more}, "stage": [table]})


def in_shares(
    start: Path,
    corpus: Path,  # noqa: F811
    out: Path,
    lora: dict[str, Any] | None,
    **trl: Any,
) -> Trained:
    """One of two processes is killed at the third update; the same again goes on to the end."""
    told = recipe(start, lora, report_to="tests.train.watched:Watched", **trl)
    out.mkdir()
    (out / "kill").touch()
    with pytest.raises(PalioError, match="training processes ended with status"):
        train(told, corpus, out, options=Options(uncertified=True))
    assert not (out / "kill").exists(), (out / "sft" / "launch.log").read_text()[-3000:]
    assert not (out / "sft" / "stage.json").exists()
    assert [path.name for path in (out / "sft" / "trainer").glob("checkpoint-*")] == [
        "checkpoint-2"
    ]
    made = train(told, corpus, out, options=Options(uncertified=True))
    assert [row["step"] for row in read_metrics(out / "sft")] == [1, 2, 3, 4]
    return made


def assert_as_one(made: Trained, alone: Trained, start: Path, lora: dict[str, Any] | None) -> None:
    """Losses and weights of one process; every artefact of a finished stage, and whole weights."""
    from transformers import AutoModelForCausalLM

    stages = made.stages[0], alone.stages[0]
    losses = [[row["loss"] for row in read_metrics(stage.folder)] for stage in stages]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    ends = [load_file(each.final / WEIGHTS) for each in (made, alone)]
    before = load_file(start / WEIGHTS)
    assert ends[0].keys() == ends[1].keys(), "tied weights are saved once"
    moved = max(float((ends[1][name] - value).abs().max()) for name, value in before.items())
    apart = max(float((ends[1][name] - value).abs().max()) for name, value in ends[0].items())
    assert moved > 1e-3
    assert apart < 0.01 * moved, f"{apart / moved:.4f} of the way"
    model, told = AutoModelForCausalLM.from_pretrained(made.final, output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, value in model.state_dict().items():
        if name in ends[0]:
            assert torch.equal(value, ends[0][name])
    shapes = [json.loads((each.final / "config.json").read_text()) for each in (made, alone)]
    assert shapes[0] == shapes[1]
    files = [sorted(str(p.relative_to(e.final)) for p in e.final.rglob("*")) for e in (made, alone)]
    assert files[0] == files[1]
    assert ("adapter" in files[0]) == (lora is not None)
    check_whole(made.final)
    manifests = [read_manifest(each.final / MANIFEST) for each in (made, alone)]
    assert manifests[0] is not None
    assert manifests[1] is not None
    assert manifests[0].inputs.keys() == manifests[1].inputs.keys()
    assert manifests[0].inputs["rows"] == manifests[1].inputs["rows"]
    done = read_manifest(stages[0].folder / "stage.json")
    assert done is not None
    assert done.outputs["checkpoint/manifest.json"] == file_digest(made.final / MANIFEST)
    assert not (stages[0].folder / "trainer").exists(), "states go when the stage is finished"


def assert_shared(out: Path, numbers: int) -> None:
    """Each process held half of the weights, and the second one wrote nothing."""
    for rank in "01":
        held = json.loads((out / f"held-{rank}").read_text())
        assert 0.45 * numbers < held < 0.55 * numbers
    wrote = [set((out / f"wrote-{rank}").read_text().split()) for rank in "01"]
    assert {"metrics.jsonl", "trained.json", "saved/config.json"} <= wrote[0]
    assert not {path for path in wrote[1] if not path.startswith("trainer/checkpoint-")}


# ---- in this process: what shares are is made up


def pretend(model: Any, first: bool = True) -> Any:
    """A trainer whose weights DeepSpeed has: its wrapped model alone knows them."""
    whole = {name: value.detach().clone() for name, value in model.state_dict().items()}
    wrapped = SimpleNamespace(gathered=lambda: whole)
    accelerator = SimpleNamespace(
        unwrap_model=lambda _: model,
        get_state_dict=lambda held: held.gathered(),
        wait_for_everyone=lambda: None,
    )
    return SimpleNamespace(
        accelerator=accelerator,
        is_deepspeed_enabled=True,
        is_fsdp_enabled=False,
        is_world_process_zero=lambda: first,
        model=model,
        model_wrapped=wrapped,
    )


def emptied(model: Any) -> None:
    """What a process of ZeRO-3 has of its weights between two uses."""
    for weight in model.parameters():
        weight.data = torch.empty(0)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_weights_in_shares_are_gathered_and_saved_whole(
    start: Path, tmp_path: Path, lora: dict[str, Any] | None
) -> None:
    """As they would be from one process: the tied head once, the adapter merged, the dtype told."""
    settings = LoraConfig(**lora) if lora else None
    told = PretrainedModel(path=str(start), lora=settings, dtype="bfloat16")
    codec = PretrainedCodec(load_tokenizer(told, None))
    model = load_model(PretrainedModel(path=str(start)), None, 0)  # FSDP trains in float32
    if settings is not None:
        torch.manual_seed(1)
        model = peft.get_peft_model(model, adapter(settings))
        model.add_adapter("reference", adapter(settings))  # KTO's copy of its start
        place = model.base_model.model.model.layers[1].self_attn.v_proj
        nn.init.normal_(place.lora_B.default.weight)
    trainer, other = pretend(model), pretend(model, first=False)
    emptied(model)
    save_trained(other, codec, told, tmp_path)
    assert not list(tmp_path.iterdir()), "the first process writes"
    save_trained(trainer, codec, told, tmp_path)
    saved = load_file(tmp_path / "saved" / WEIGHTS)
    before = load_file(start / WEIGHTS)
    assert saved.keys() == before.keys()
    assert {value.dtype for value in saved.values()} == {torch.bfloat16}
    shape = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (shape["dtype"], shape["use_cache"]) == ("bfloat16", True)
    moved = [name for name in saved if not torch.equal(saved[name], before[name].bfloat16())]
    assert moved == (["model.layers.1.self_attn.v_proj.weight"] if lora else [])
    if lora is not None:
        kept = load_file(tmp_path / "saved" / "adapter" / "adapter_model.safetensors")
        (of,) = [n for n in kept if "layers.1.self_attn.v_proj.lora_B" in n]
        (into,) = [n for n in kept if "layers.1.self_attn.v_proj.lora_A" in n]
        assert kept[of].dtype == torch.float32, "as it was trained"
        wanted = before[moved[0]].bfloat16() + (kept[of] @ kept[into]) * 2
        assert torch.equal(saved[moved[0]], wanted.bfloat16())


def test_a_weight_that_was_not_gathered_is_told(start: Path) -> None:
    model = load_model(PretrainedModel(path=str(start)), None, 0)
    state = dict(model.state_dict())
    state["model.layers.0.mlp.up_proj.weight"] = torch.empty(0)
    with pytest.raises(IntegrityError, match=r"1 weights were not.*layers\.0\.mlp\.up_proj"):
        rebuilt(model, state, torch.float32)


def test_shares_that_are_no_numbers_are_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail of the last process' share by ZeRO-3 is padding, and may be anything."""
    weight: Any = nn.Parameter(torch.empty(0))
    model = nn.ParameterList([weight])
    weight.ds_numel, weight.ds_process_group = 5, None
    monkeypatch.setattr(torch.distributed, "get_rank", lambda _: 1)
    weight.ds_tensor = torch.tensor([1.0, 2.0, float("nan")])
    assert finite(model)
    weight.ds_tensor = torch.tensor([1.0, float("nan"), 3.0])
    assert not finite(model)


def test_fsdp_that_accelerate_does_not_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would hold all weights, and nobody would be told."""
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    Accelerator(cpu=True)
    try:
        check_apart()
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        with pytest.raises(ConfigError, match="says FSDP, and accelerate shards nothing on 'cpu'"):
            check_apart()
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_deepspeed_is_asked_for_before_the_first_stage(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="'sft': `deepspeed` is for processes that `launch`"):
        backend_of(recipe(start, None, deepspeed="zero3"))
    told = recipe(start, None, deepspeed="zero3", launch=TORCHRUN)
    monkeypatch.setattr("palio.train.settings.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="'sft' needs DeepSpeed"):
        backend_of(told)
    monkeypatch.setattr("palio.train.settings.find_spec", lambda name: name)
    assert backend_of(told)


@pytest.mark.parametrize("mark", ["ds_id", "_hp_mapping"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_what_deepspeed_computes_in_16_bits_is_saved_as_it_was_learned_and_read(
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lora: dict[str, Any] | None,
    mark: str,
) -> None:
    """It gathers 16 bits; its optimiser has float32 of what is trained, the disk has the rest."""
    told = PretrainedModel(path=str(start), lora=LoraConfig(**lora) if lora else None)
    codec = PretrainedCodec(load_tokenizer(told, None))
    model = load_model(PretrainedModel(path=str(start)), None, 0)
    if told.lora is not None:
        model = peft.get_peft_model(model, adapter(told.lora))
    for name, weight in model.named_parameters():
        setattr(weight, mark, name)
        if weight.requires_grad:
            weight.data += 1e-4 * torch.randn(weight.shape)
    learned = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer = pretend(model)
    whole = {name: value.bfloat16() for name, value in trainer.model_wrapped.gathered().items()}
    trainer.model_wrapped = SimpleNamespace(gathered=lambda: whole)
    kept = SimpleNamespace(safe_get_full_fp32_param=lambda weight: learned[getattr(weight, mark)])
    monkeypatch.setitem(sys.modules, "deepspeed.utils", kept)
    emptied(model)
    save_trained(trainer, codec, told, tmp_path)
    saved, before = load_file(tmp_path / "saved" / WEIGHTS), load_file(start / WEIGHTS)
    for name, value in saved.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        wanted = before[name] if lora else learned[name]
        if f"{layer}.lora_A.default.weight" in learned:
            of, into = (learned[f"{layer}.lora_{half}.default.weight"] for half in "BA")
            wanted = wanted + 2 * (of @ into)
        assert torch.allclose(value, wanted, rtol=0, atol=1e-7), name


# ---- two processes, by recipe


def assert_that_of_one_process(
    start: Path,
    corpus: Path,  # noqa: F811
    folder: Path,
    lora: dict[str, Any] | None,
    **trl: Any,
) -> None:
    """A stage by a launcher, killed and gone on with, is that of one process and whole."""
    one = recipe(start, lora, per_device_train_batch_size=2)
    alone = train(one, corpus, folder / "one", options=Options(uncertified=True))
    made = in_shares(start, corpus, folder / "two", lora, **trl)
    assert_as_one(made, alone, start, lora)
    numbers = sum(value.numel() for value in load_file(start / WEIGHTS).values())
    assert_shared(folder / "two", numbers)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_stage_by_fsdp_is_that_of_one_process_and_whole(
    start: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lora: dict[str, Any] | None,
) -> None:
    """The file that ships, by accelerate's own launcher and FSDP2, on CPU with gloo."""
    monkeypatch.chdir(ROOT)
    assert_that_of_one_process(start, corpus, tmp_path, lora, launch=FSDP)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_stage_by_zero3_is_that_of_one_process_and_whole(
    start: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lora: dict[str, Any] | None,
) -> None:
    """DeepSpeed itself with the file that ships, on CPU with gloo; it compiles an operation."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert_that_of_one_process(start, corpus, tmp_path, lora, launch=TORCHRUN, deepspeed="zero3")
