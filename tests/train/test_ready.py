"""What a stage can never do is told before the first stage of its chain, and of no finished one."""

from __future__ import annotations

import importlib.machinery
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio.broker.pin import endpoint_pin
from palio.cli.main import app
from palio.records import ConfigError, MissingDependencyError, PalioError
from palio.train.dry import rehearsed
from palio.train.reading import read_recipe
from palio.train.ready import check_stages
from palio.train.run import Options, train
from palio.train.stage import NO_KEYS, Keys
from tests.train.test_same_server import KEY, Class, Server, taught  # noqa: F401 - a fixture
from tests.train.test_stages import (
    SHORT,
    corpus,  # noqa: F401 - a fixture
    ground,  # noqa: F401 - a fixture
)

pytest.importorskip("trl", reason="the settings of the later stages are TRL's")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of TRL over transformers 5.24
URL = "http://127.0.0.1:9"
TRAINED = {"backend": "transformers", "path": "none", "rehearsal": {"shape": {"hidden_size": 8}}}
STEP = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 4}


def check(*stages: dict[str, Any], keys: Keys = NO_KEYS) -> None:
    recipe = read_recipe({"name": "t", "model": TRAINED, "stage": list(stages)})
    dry = rehearsed(recipe)  # asks nobody for anything
    check_stages(dry.stages, "t.toml", keys=keys, pretrained=True)
    check_stages(recipe.stages, "t.toml", keys=keys, pretrained=True)


def sampled(kind: str, url: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "sampling": {"base_url": url, "model": "m", **more}}


def launched(kind: str, *launch: str, **trl: Any) -> dict[str, Any]:
    return {"kind": kind, "trl": {**STEP, "launch": [*launch], **trl}}


@pytest.fixture
def equipped(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are found here whether they are or not; with a GPU."""
    found = {"vllm", "requests"}
    spec = importlib.machinery.ModuleSpec("there", None)
    seen = lambda name: spec if name in found else None  # noqa: E731
    monkeypatch.setattr("palio.train.rl.pushed.find_spec", seen)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    return found


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (sampled("teacher", "localhost:8000/v1"), "is no URL of a model server"),
        (sampled("teacher", "http://[::1/v1"), "is no URL: "),
        (sampled("rejection", "http://host:99999"), "is no URL: "),
        (sampled("rejection", "ftp://host/v1"), "is no URL of a model server"),
        (sampled("rejection", "http://me@host/v1"), "user and a key"),
        (sampled("kto", "host"), "is no URL of a model server"),
        (sampled("kto", "http://me@host:8000"), "user"),
        (sampled("kto", f"{URL}/v1?version=2"), "`sampling.base_url` has a user, a password or a"),
        (sampled("kto", URL, temperature=2.5), "vLLM takes at most 2"),
        ({"kind": "grpo", "teacher": {"base_url": "host", "model": "m"}}, "is no URL of a model"),
        ({"kind": "grpo", "base_url": "host:8000"}, "is no URL of a model server"),
        ({"kind": "grpo", "base_url": "http://me:pw@host"}, "`base_url` has a user"),
        ({"kind": "grpo", "base_url": f"{URL}/v1"}, "is the server's root: TRL adds /v1"),
        ({"kind": "grpo", "base_url": URL, "temperature": 2.1}, "vLLM takes at most 2"),
        (launched("grpo", "accelerate", "launch", "--config_file", "fsdp"), "cannot be sampled in"),
        (launched("grpo", "torchrun", deepspeed="zero3"), "cannot be sampled in place"),
        (launched("distill", "accelerate", "launch", "--use_fsdp"), "cannot be sampled in place"),
        (launched("distill", "torchrun", extra={"fsdp": "full_shard"}), "cannot be sampled in"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("equipped")
def test_settings_that_nothing_can_be_done_with(stage: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as found:
        check({"kind": "sft"}, stage, keys=Keys(KEY, KEY))
    assert f"stage {stage['kind']!r}: " in found.value.what
    assert told in found.value.what
    assert found.value.where == "t.toml"
    assert found.value.remedy
    assert "pw" not in str(found.value)


def test_stages_that_can_be_done_are_let_through(equipped: set[str], tmp_path: Path) -> None:
    del equipped
    two, plain = tmp_path / "two.json", tmp_path / "plain.yaml"
    two.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    plain.write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    stages = [
        sampled("teacher", "https://api.host/v1"),
        sampled("rejection", URL),
        sampled("rejection", "http://me@host/v1"),
        sampled("kto", URL, temperature=2.0),
        {"kind": "grpo", "base_url": URL, "teacher": {"base_url": URL, "model": "m"}},
        {"kind": "grpo", "reward": "outcome", "teacher": {"base_url": "not asked", "model": "m"}},
        {**launched("grpo", "torchrun", deepspeed="zero3"), "base_url": URL},
        launched("grpo", "torchrun", deepspeed=str(two)),
        launched("grpo", "accelerate", "launch", "--config_file", str(plain)),
        launched("grpo", "accelerate", "launch", "--config_file", str(tmp_path / "not here")),
        launched("kto", "accelerate", "launch", "--config_file", "fsdp"),
        launched("sft", "python"),
    ]
    check(*({**stage, "name": f"s{number}"} for number, stage in enumerate(stages)))


@pytest.mark.parametrize("kind", ["sft", "rejection", "teacher", "kto", "grpo", "distill"])
@pytest.mark.parametrize(
    ("trl", "told"),
    [
        ({"extra": {"no_such_field": 1}}, "of TRL has no field 'no_such_field'"),
        ({"extra": {"optim": "adamw_torh"}}, "`optim` = 'adamw_torh'"),
        ({"lr_scheduler_type": "cosin"}, "`lr_scheduler_type` = 'cosin'"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "`lr_scheduler_type` = 'reduce_lr_on_"),
    ],
)
def test_what_trl_does_not_know_by_name(kind: str, trl: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as found:
        check({"kind": "sft", "name": "first"}, {"kind": kind, "trl": {**STEP, **trl}})
    assert f"stage {kind!r}: " in found.value.what
    assert told in found.value.what
    assert found.value.where == "t.toml"
    assert found.value.remedy


def test_what_trl_knows_is_let_through_and_our_own_loop_asks_it_nothing() -> None:
    extra = {"optim": "sgd", "adam_beta2": 0.95}
    kinds = ("sft", "rejection", "teacher", "kto", "grpo", "distill")
    trl = {**STEP, "lr_scheduler_type": "linear", "extra": extra}
    check(*({"kind": kind, "trl": trl} for kind in kinds))
    stage = {"kind": "sft", "tokens": 9, "trl": {"extra": {"of_an_integration": "x"}}}
    ours = read_recipe({"name": "t", "stage": [stage]})
    check_stages(ours.stages, "t.toml", keys=NO_KEYS)


@pytest.mark.parametrize(
    ("lacking", "stage", "told"),
    [
        ("vllm", {"kind": "grpo", "base_url": URL}, "there is no package 'vllm'"),
        ("requests", {"kind": "grpo", "base_url": URL}, "there is no package 'requests'"),
        ("gpu", {"kind": "grpo", "base_url": URL}, "no GPU is seen here"),
        ("", launched("kto", "slurm-run", "-n", "8"), "no launcher 'slurm-run'"),
    ],
)
def test_what_is_not_here(
    lacking: str,
    stage: dict[str, Any],
    told: str,
    equipped: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    equipped.discard(lacking)
    if lacking == "gpu":
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        check({**launched("grpo", "torchrun"), "base_url": URL})  # it may start them elsewhere
    with pytest.raises(MissingDependencyError, match=f"stage '{stage['kind']}': .*{told}") as found:
        check({"kind": "sft"}, stage)
    assert found.value.where == "t.toml"
    assert found.value.remedy


@pytest.mark.parametrize("wrong", [f'base_url = "{URL}/v1"', "trl = { extra = { beta3 = 0.9 } }"])
def test_it_is_told_before_the_first_stage_and_before_the_corpus_is_read(
    wrong: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        '[model]\nstart = "bundled"\n[[stage]]\nkind = "sft"\ntokens = 900\n'
        f'[[stage]]\nkind = "grpo"\nreward = "prefix"\n{wrong}\n'
    )
    nothing, out = tmp_path / "no corpus", tmp_path / "run"
    words = ["train", str(recipe), "--corpus", str(nothing), "--out", str(out)]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, ConfigError)
    assert (error.where, "stage 'grpo'" in error.what) == (str(recipe), True)
    assert not out.exists()
    words = ["train", str(recipe), "--dry-run", "--out", str(out), "--corpus", str(nothing)]
    assert "a dry run makes its own rows" in str(CliRunner().invoke(app, words).exception)


@pytest.mark.usefixtures("corpus", "ground")
def test_a_finished_stage_is_not_asked_what_it_needs(taught: Class) -> None:  # noqa: F811
    with Server(None).running() as place:
        url = place.url.replace("//", "//me:pw@")
        taught(url, key="")
        before = taught.files()
        assert taught(url).stages[0].skipped, "with a key no request could be made"
        for more, later in (({}, ("more",)), ({"redo": True, "seed": 1}, ())):
            with pytest.raises(ConfigError, match="the URL names a user and a key"):
                taught(url, *later, **more)
            assert taught.files() == before, "what is done again is removed when it can be"


def test_a_user_in_an_address_beside_a_key_is_refused_before_anybody_is_asked() -> None:
    with pytest.raises(ConfigError, match="the URL names a user and a key") as found:
        endpoint_pin("http://me:pw@127.0.0.1:9/v1", KEY, "m")
    assert (found.value.where, "pw" in str(found.value)) == ("http://127.0.0.1:9/v1/models", False)


@pytest.mark.parametrize("stage", ["teacher", "rejection"])
def test_a_chain_that_cannot_follow_names_its_file(
    stage: str,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    recipe = read_recipe({"name": "t", "stage": [{"kind": stage, **SHORT}]})
    with pytest.raises(PalioError) as found:
        train(recipe, corpus, tmp_path, options=Options(recipe="a.toml"))
    assert (found.value.where, bool(found.value.remedy)) == ("a.toml", True)
