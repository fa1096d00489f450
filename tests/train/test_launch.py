"""What several GPUs are told parses with accelerate's own classes, and a launcher gets our job."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palio.records import ConfigError, MissingDependencyError, PalioError
from palio.train.backends.job import SAVED, SftJob
from palio.train.backends.launch import command_of, launched
from palio.train.checkpoint import save_checkpoint
from palio.train.model import Qwen3
from palio.train.reading import load_recipe, read_recipe
from palio.train.recipe import PretrainedModel
from palio.train.run import Options, train
from palio.train.settings import TrlSettings, shipped
from palio.train.stage import read_metrics
from palio.train.tokenizer import ChatTokenizer
from tests.train import sharded
from tests.train.test_stages import corpus  # noqa: F401 - a fixture

accelerate = pytest.importorskip("accelerate", reason="it starts the training processes")
pytest.importorskip("trl", reason="the settings of the later stages are TRL's")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
ROOT = Path(__file__).parents[2]
FSDP, ZERO = Path(shipped("fsdp")), Path(shipped("zero3"))


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment whose changes end with the test."""
    for name in [name for name in os.environ if name.startswith(("FSDP_", "ACCELERATE_"))]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_fsdp_yaml_is_what_accelerate_launch_reads(clean: pytest.MonkeyPatch) -> None:
    """Its own parser, its own validation, and the plugin that the processes build from it."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    line = ["--config_file", str(FSDP), "-m", "palio.train.backends.job", "folder"]
    given, *_ = _validate_launch_command(launch_command_parser().parse_args(line))
    assert (given.use_fsdp, given.num_processes, given.mixed_precision) == (True, 8, "bf16")
    assert (given.module, given.training_script) == (True, "palio.train.backends.job")
    assert given.training_script_args == ["folder"]
    for name, value in prepare_multi_gpu_env(given).items():
        if name.startswith(("FSDP_", "ACCELERATE_")):
            clean.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)
    assert plugin.transformer_cls_names_to_wrap == ["Qwen3DecoderLayer"]
    assert plugin.state_dict_type.name == "FULL_STATE_DICT", "whole weights are saved at the end"


def test_the_class_that_is_wrapped_is_the_models() -> None:
    from transformers.models.qwen3 import modeling_qwen3

    told = FSDP.read_text("utf-8")
    assert hasattr(modeling_qwen3, "Qwen3DecoderLayer")
    assert "fsdp_transformer_layer_cls_to_wrap: Qwen3DecoderLayer" in told


def test_zero3_json_is_what_deepspeed_users_of_accelerate_read(clean: pytest.MonkeyPatch) -> None:
    """Every "auto" is one that the trainer fills in from its own arguments."""
    from accelerate.utils import DeepSpeedPlugin

    del clean
    plugin = DeepSpeedPlugin(hf_ds_config=str(ZERO))
    assert plugin.zero_stage == 3
    filled = {
        "bf16.enabled": True,
        "gradient_accumulation_steps": 16,
        "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": 128,
    }
    plugin.deepspeed_config_process(must_match=True, **filled)
    assert '"auto"' not in json.dumps(plugin.deepspeed_config).replace("'", '"')
    assert plugin.deepspeed_config["train_batch_size"] == 128


def test_recipes_name_launchers_and_files_that_are_there(
    tmp_path: Path, clean: pytest.MonkeyPatch
) -> None:
    """From any folder: the files are found in the package, the launcher by this interpreter."""
    clean.chdir(tmp_path)
    for stage in load_recipe("qwen3-4b-full").stages:
        settings: Any = stage.settings
        command = command_of(settings.trl.launch, "folder")
        assert command[:3] == [sys.executable, "-m", "accelerate.commands.launch"]
        assert Path(command[command.index("--config_file") + 1]) == FSDP
        assert command[-3:] == ["-m", "palio.train.backends.job", "folder"]
    assert FSDP.is_file()
    assert ZERO.is_file()
    for link, file in (
        (ROOT / "recipes" / "fsdp.yaml", FSDP),
        (ROOT / "recipes" / "zero3.json", ZERO),
    ):
        assert link.resolve() == file.resolve()
    other = command_of(("torchrun", "--nproc_per_node", "2", "--rdzv_config_file", "mine"), "f")
    assert other[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert other[3:6] == ["--nproc_per_node", "2", "--rdzv_config_file"]
    assert other[6] == "mine", "only names of files that ship mean those"


def test_launch_with_a_model_of_ours_is_refused_when_the_recipe_is_read() -> None:
    """Not after the hours that the stages before take."""
    trl = {"launch": ["torchrun"], "per_device_train_batch_size": 8}
    model = {"backend": "transformers", "path": "none"}
    for kind in ("sft", "rejection", "teacher", "kto", "grpo", "distill"):
        stages = [{"kind": kind, "trl": trl}]
        assert read_recipe({"name": "r", "model": model, "stage": stages})
        with pytest.raises(ConfigError, match="palio's own is trained in one process"):
            read_recipe({"name": "r", "stage": stages})


def test_a_launcher_that_is_not_there_is_named(tmp_path: Path) -> None:
    job = SftJob(
        stage="sft",
        folder=str(tmp_path),
        model=PretrainedModel(path="n"),
        settings=TrlSettings(),
        seed=0,
        longest=9,
    )
    with pytest.raises(MissingDependencyError, match="no launcher 'slurm-run'"):
        launched(job, ["slurm-run"])


@pytest.mark.slow
def test_a_stage_in_two_processes_trains_as_in_one(
    small: Qwen3,
    tokenizer: ChatTokenizer,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """torchrun and gloo on CPU: each process has one row of every batch of two."""
    start = tmp_path / "start"
    save_checkpoint(start, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    torchrun = ["torchrun", "--standalone", "--nproc_per_node", "2"]
    ends, losses = [], []
    for name, batch, launch in (("one", 2, []), ("two", 1, torchrun)):
        trl = {"max_steps": 6, "gradient_accumulation_steps": 1, "learning_rate": 1e-3}
        stage = {
            "kind": "sft",
            "trl": {**trl, "per_device_train_batch_size": batch, "launch": launch},
        }
        model = {"backend": "transformers", "path": str(start)}
        recipe = read_recipe({"name": "p", "model": model, "stage": [stage]})
        made = train(recipe, corpus, tmp_path / name, options=Options(uncertified=True))
        assert made.stages[0].counts["steps"] == 6
        ends.append(load_file(made.final / "model.safetensors"))
        losses.append([row["loss"] for row in read_metrics(tmp_path / name / "sft")])
    assert losses[1] == pytest.approx(losses[0], abs=2e-3)
    before = load_file(start / "model.safetensors")
    moved = max(float((ends[0][name] - before[name]).abs().max()) for name in before)
    apart = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in before)
    assert moved > 1e-3
    assert apart < 0.02 * moved


FAKE = """#!{python}
import json, pathlib, sys
folder = pathlib.Path(sys.argv[-1])
(folder / "told.json").write_text(json.dumps(sys.argv[1:]))
if "--fail" in sys.argv:
    sys.exit(3)
(folder / "{saved}").mkdir()
(folder / "{saved}" / "config.json").write_text("{{}}")
print("rank 0 was here")
"""


def test_a_launcher_is_started_with_the_job_and_its_end_is_watched(tmp_path: Path) -> None:
    fake = tmp_path / "launcher"
    fake.write_text(FAKE.format(python=sys.executable, saved=SAVED))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    job = SftJob(
        stage="sft",
        folder=str(tmp_path),
        model=PretrainedModel(path="none"),
        settings=TrlSettings(),
        seed=0,
        longest=10,
    )
    with pytest.raises(PalioError, match="ended with status 3"):
        launched(job, [str(fake), "--fail"])
    launched(job, [str(fake), "launch", "--config_file", "recipes/fsdp.yaml"])
    told = json.loads((tmp_path / "told.json").read_text())
    wanted = ["launch", "--config_file", "recipes/fsdp.yaml", "-m", "palio.train.backends.job"]
    assert told == [*wanted, str(tmp_path)]
    assert "rank 0 was here" in (tmp_path / "launch.log").read_text()


@pytest.mark.slow
def test_sharded_over_two_processes_a_step_is_that_of_one(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    """FSDP2 itself, layer by layer, on CPU with gloo; accelerate takes it on accelerators only."""
    from transformers import AutoModelForCausalLM

    checkpoint = tmp_path / "checkpoint"
    save_checkpoint(checkpoint, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [sys.executable, *launch, "-m", "tests.train.sharded", checkpoint, tmp_path]
    subprocess.run(command, check=True, capture_output=True, timeout=900, cwd=ROOT)  # type: ignore[arg-type]
    alone: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    before = {name: value.clone() for name, value in alone.state_dict().items()}
    sharded.step(alone, sharded.batch(alone.config.vocab_size))
    together = torch.load(tmp_path / "weights.pt")
    held = json.loads((tmp_path / "held.json").read_text())
    assert 0.45 < held / sum(value.numel() for value in alone.parameters()) < 0.55
    for name, value in alone.state_dict().items():
        assert torch.allclose(together[name], value, atol=1e-6), name
    assert not torch.equal(together["model.norm.weight"], before["model.norm.weight"])
