"""Two Ray workers evaluate what this process evaluates, row for row, and a death loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.cli.eval import app
from palio.evaluate.cluster import PolicySource, ray_hands
from palio.evaluate.pin import ModelPin
from palio.evaluate.policy import EvalSettings, evaluate_policy, sampled
from palio.evaluate.results import EvalResult
from palio.evaluate.rollouts import Progress, read_rollouts
from palio.judging.encoders import default_encoder
from palio.records import ConfigError, InputError, IntegrityError, Problem, Suite
from palio.rollout import run_problem
from palio.rollout.cluster import on_ray
from palio.sandbox.inline import InlineDriver
from palio.suites.files import write_suite
from palio.train.checkpoint import save_checkpoint
from palio.train.model import ModelConfig, Qwen3
from palio.train.tokenizer import train_tokenizer
from palio.world.catalogue import write_catalogue
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World

ENCODER = default_encoder()
SETTINGS = EvalSettings(threads=4)
Shop = tuple[tuple[Problem, ...], dict[str, World]]


@pytest.fixture(scope="module")
def shop() -> Shop:
    made = synthesise(compact_config(3, products=400, problems=18))
    world = World.build(made.catalogue, COMPACT)
    return made.problems, {made.catalogue.catalogue_id: world}


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One local cluster for all tests; starting one takes 5 s."""
    found = pytest.importorskip("ray", reason="the cluster executor needs ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        found.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        yield found
        found.shutdown()


def checkpoint(shop: Shop, folder: Path) -> Path:
    """An untrained model: it shops badly, and everywhere alike."""
    problems, (world,) = shop[0], shop[1].values()
    agent, driver, upstream = find_agent("careful"), InlineDriver(), ScriptedUpstream()
    talks = [
        run_problem(agent, problem, world, driver=driver, upstream=upstream).messages
        for problem in problems[:6]
    ]
    tokenizer = train_tokenizer(talks, size=600)
    shape = ModelConfig(
        vocab_size=tokenizer.size, hidden_size=32, intermediate_size=48, layers=1, head_dim=16
    )
    model = Qwen3(shape)
    model.initialise(5)
    save_checkpoint(folder, model, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return folder


def rows(folder: Path) -> list[Any]:
    """Every row by problem and sample, without its times."""
    timeless = {"at_ms": 0, "duration_ms": 0, "duration_s": 0}
    found = []
    for row in read_rollouts(folder):
        told = msgspec.to_builtins(row)
        run = told["trajectory"]
        run["events"] = [{**event, **timeless} for event in run["events"]]
        told["trajectory"] = {**run, **timeless}
        told["score"]["seconds"] = 0
        found.append(told)
    return sorted(found, key=lambda each: (each["score"]["problem_id"], each["sample"]))


def here(source: PolicySource, shop: Shop, out: Path, settings: EvalSettings) -> EvalResult:
    with source.open() as policy:
        return evaluate_policy(policy, *shop, ENCODER, out=out, settings=settings)


def there(
    source: PolicySource, shop: Shop, out: Path, settings: EvalSettings, **more: Any
) -> EvalResult:
    hands = ray_hands(source, shop[1], ENCODER, settings, workers=2)
    closed = source.closed()
    return evaluate_policy(closed, *shop, ENCODER, out=out, settings=settings, hands=hands, **more)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [SETTINGS, sampled(3, seed=5, threads=4)])
def test_scripted_models(ray: Any, shop: Shop, tmp_path: Path, settings: EvalSettings) -> None:
    source = PolicySource(model="scripted-sloppy")
    one = here(source, shop, tmp_path / "here", settings)
    two = there(source, shop, tmp_path / "there", settings)
    assert rows(tmp_path / "here") == rows(tmp_path / "there")
    assert one.intents == two.intents


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_is_opened_in_each_worker(ray: Any, shop: Shop, tmp_path: Path) -> None:
    source = PolicySource(checkpoint=checkpoint(shop, tmp_path / "model"), name="tiny")
    one = here(source, shop, tmp_path / "here", SETTINGS)
    two = there(source, shop, tmp_path / "there", SETTINGS)
    assert rows(tmp_path / "here") == rows(tmp_path / "there")
    assert one.overall.asr == two.overall.asr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_endpoint(ray: Any, shop: Shop, tmp_path: Path) -> None:
    with ModelServer(ScriptedUpstream(), host="127.0.0.1", port=0, api_key="k") as server:
        source = PolicySource("scripted-careful", base_url=server.url, api_key="k")
        made = there(source, shop, tmp_path / "there", SETTINGS)
    here(PolicySource(model="scripted-careful"), shop, tmp_path / "here", SETTINGS)
    assert rows(tmp_path / "here") == rows(tmp_path / "there")
    assert made.overall.unscored_rollouts == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_dies_loses_nothing_that_ended(ray: Any, shop: Shop, tmp_path: Path) -> None:
    """SIGKILL to a worker in the middle; the same call then does the rest, here or there."""
    source, settings = PolicySource(model="scripted-careful"), sampled(9, threads=2)
    kept: list[int] = []

    def kill(progress: Progress) -> None:
        kept.append(progress.done)
        if progress.done == 20:
            below = psutil.Process().children(recursive=True)
            seats = [each for each in below if "_Seat" in "".join(each.cmdline())]
            assert len(seats) == 2
            os.kill(seats[0].pid, signal.SIGKILL)

    with pytest.raises(IntegrityError, match="a worker died"):
        there(source, shop, tmp_path / "there", settings, progress=kill)
    ended = len(list(read_rollouts(tmp_path / "there")))
    assert 20 <= ended < 9 * 18
    there(source, shop, tmp_path / "there", settings)
    here(source, shop, tmp_path / "here", settings)
    assert rows(tmp_path / "here") == rows(tmp_path / "there")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_cannot_begin_says_why(ray: Any, shop: Shop, tmp_path: Path) -> None:
    """Its node may lack the checkpoint, or have another one."""
    source = PolicySource(checkpoint=checkpoint(shop, tmp_path / "model"), name="tiny")
    other = msgspec.structs.replace(source.pin() or ModelPin(), weights="sha256:other")
    for lost, why in (
        (PolicySource(checkpoint=tmp_path / "nowhere"), "no readable checkpoint"),
        (source, "a worker has another model"),
    ):
        hands = ray_hands(lost, shop[1], ENCODER, SETTINGS, workers=2, pin=other)
        with pytest.raises(IntegrityError, match=f"a worker died.*{why}"):
            evaluate_policy(
                source.closed(), *shop, ENCODER, out=tmp_path / why, settings=SETTINGS, hands=hands
            )


def _refuse(job: int) -> int:
    raise InputError(f"row {job} is none", where="a.jsonl", remedy="take it out")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_a_worker_refuses_is_told_as_here(ray: Any) -> None:
    with pytest.raises(InputError) as told:
        list(on_ray(_refuse, [3], workers=1))
    assert str(told.value) == "a.jsonl: row 3 is none (take it out)"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_that_would_wait_for_a_gpu_for_ever_are_refused(ray: Any, shop: Shop) -> None:
    source = PolicySource(model="scripted-careful")
    with (
        pytest.raises(ConfigError, match="2 workers of 64 GPUs"),
        ray_hands(source, shop[1], ENCODER, SETTINGS, workers=2, gpus=64.0),
    ):
        pass


def test_an_unknown_executor_is_refused(shop: Shop, tmp_path: Path) -> None:
    write_suite(Suite(suite_id="s", version="1", problems=shop[0]), tmp_path / "suite.json")
    (world,) = shop[1].values()
    write_catalogue(world.catalogue, tmp_path / "world")
    words = ["run", "--suite", "suite.json", "--catalogue", "world", "--out", "out"]
    words = [str(tmp_path / word) if "-" not in word and word != "run" else word for word in words]
    asked = [*words, "--model", "scripted-careful", "--executor", "threads"]
    result = CliRunner().invoke(app, asked)
    assert isinstance(result.exception, ConfigError)
    assert "inline or ray" in str(result.exception)


def test_a_policy_is_named_once() -> None:
    for wrong in ({}, {"base_url": "http://x/v1", "checkpoint": Path("c")}, {"model": "m"}):
        with pytest.raises(ConfigError, match="name one policy"):
            PolicySource(**wrong)  # type: ignore[arg-type]
    assert PolicySource(base_url="http://x/v1", model="scripted-careful").called
    assert PolicySource(checkpoint=Path("a/b")).called == "b"
