"""Whoever trains a stage, what it measures reaches the places that `report_to` names."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module, invalidate_caches, resources
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.corpus.rows import row_of
from palio.records import ConfigError, MissingDependencyError, to_json
from palio.train import reporting
from palio.train.dry import rehearsed
from palio.train.loop import Point
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.reporting import Integrations, opened, reports_to
from palio.train.run import Options, train
from palio.train.settings import TrlSettings
from palio.train.stage import append_metrics, read_metrics
from tests.train_rl.conftest import Scene
from tests.train_rl.told import read_notes

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

NOTES = "tests.train_rl.told:Notes"
OURS = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "layers": 2,
    "head_dim": 16,
    "vocabulary": 800,
    "sample": 40,
    "lay_out": False,
}
KINDS = ("sft", "rejection", "teacher", "distill", "kto", "grpo")


@pytest.fixture
def corpus(scene: Scene, tmp_path: Path) -> Path:
    rows = [row_of(talk, "told") for talk in scene.talks[:6]]
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"".join(to_json(row) + b"\n" for row in rows))
    return path


def reporting_to(named: Sequence[str], model: dict[str, Any], kinds: Sequence[str]) -> Recipe:
    """Every stage as small as in a dry run, which itself reports nowhere."""
    base = {"kinds": {"copy": 1.0}}
    stages = [{"kind": kind, **(base if kind == "base" else {})} for kind in kinds]
    small = rehearsed(read_recipe({"name": "r", "model": model, "stage": stages}))
    told = []
    for stage in small.stages:
        settings: Any = stage.settings
        assert settings.trl.report_to == ()
        trl = msgspec.structs.replace(settings.trl, report_to=tuple(named))
        more = {"tokens": 2500} if hasattr(settings, "tokens") else {}
        chosen = msgspec.structs.replace(settings, trl=trl, **more)
        told.append(msgspec.structs.replace(stage, settings=chosen))
    return msgspec.structs.replace(small, stages=tuple(told))


@pytest.mark.parametrize("backend", ["palio", "transformers"])
def test_every_kind_of_stage_reports_in_both_backends(
    backend: str, scene: Scene, checkpoint: Path, corpus: Path, tmp_path: Path
) -> None:
    theirs = {
        "backend": backend,
        "path": str(checkpoint),
        "template": str(resources.files("palio.train") / "chat_template.jinja"),
        "rehearsal": {"shape": {}, "dtype": "float32"},
    }
    ours = backend == "palio"
    kinds = ("base", *KINDS) if ours else KINDS
    recipe = reporting_to([NOTES], OURS if ours else theirs, kinds)
    options = Options(uncertified=True, threads=1)
    made = train(recipe, corpus, tmp_path / "run", ground=scene.ground, options=options)
    assert [stage.kind for stage in made.stages] == list(kinds)
    for stage in made.stages:
        notes = read_notes(stage.folder)
        assert (notes[0]["event"], notes[-1]["event"]) == ("begin", "end"), stage.kind
        assert notes[0]["model"] == "qwen3"
        assert {note["run"] for note in notes} == {f"run-{stage.name}"}
        logged = [note for note in notes if note["event"] == "log" and "loss" in note["logs"]]
        measured = read_metrics(stage.folder)
        assert measured, stage.kind
        assert [note["step"] for note in logged] == [row["step"] for row in measured], stage.kind
        for note, row in zip(logged, measured, strict=True):
            assert note["logs"]["loss"] == pytest.approx(row["loss"], abs=1e-5)
            assert note["logs"]["grad_norm"] >= 0
        assert not list(stage.folder.rglob("checkpoint-*")), "states go, reports stay"


# ---- transformers' own callbacks, over stand-ins of the packages behind them

WRITER = """
import json, pathlib
class SummaryWriter:
    def __init__(self, log_dir):
        pathlib.Path(log_dir).mkdir(parents=True)
        self.path = pathlib.Path(log_dir) / "events.jsonl"
    def add_text(self, *given): pass
    def flush(self): pass
    def close(self): self._row("closed", 0, 0)
    def add_scalar(self, name, value, step): self._row(name, value, step)
    def _row(self, *row):
        with self.path.open("a") as file: file.write(json.dumps(row) + chr(10))
"""
WANDB = """
run, runs = None, []
class Config(dict):
    def update(self, values, allow_val_change=False): dict.update(self, values)
class Run:
    def __init__(self, name):
        self.name, self.config, self.rows, self.over = name, Config(), [], False
        self.url, self.summary = "https://example.org", {}
    def _label(self, code): pass
def init(project=None, name=None):
    global run, config
    run = Run(name); config = run.config; runs.append(run)
def log(row): run.rows.append(row)
def finish():
    global run
    run.over, run = True, None
"""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Packages called tensorboardX and wandb; transformers looks no closer."""
    place = tmp_path / "site"
    texts = {
        "tensorboardX/__init__.py": WRITER,
        "wandb/__init__.py": WANDB,
        "wandb/sdk/lib/config_util.py": "class ConfigError(Exception): pass",
    }
    for name, text in texts.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    monkeypatch.syspath_prepend(place)
    invalidate_caches()
    # TRL imports it where it is installed, before there is a stand-in
    monkeypatch.setattr("trl.trainer.base_trainer.wandb", import_module("wandb"), raising=False)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("tensorboardX", "wandb")]:
        del sys.modules[name]


@pytest.mark.usefixtures("stand_ins")
def test_a_chain_is_a_run_a_stage_in_tensorboard_and_wandb(
    scene: Scene, corpus: Path, tmp_path: Path
) -> None:
    """Two of our own loop's stages and one of TRL's; wandb itself would make one run of them."""
    recipe = reporting_to(["tensorboard", "wandb"], OURS, ("base", "sft", "kto"))
    options = Options(uncertified=True, threads=1)
    made = train(recipe, corpus, tmp_path / "demo", ground=scene.ground, options=options)
    for stage in made.stages:
        (path,) = stage.folder.rglob("events.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        measured = [(row["step"], row["loss"]) for row in read_metrics(stage.folder)]
        shown = [(step, value) for name, value, step in rows if name == "train/loss"]
        assert shown == [(step, pytest.approx(loss, abs=1e-5)) for step, loss in measured]
        assert rows[-1][0] == "closed"
    runs = sys.modules["wandb"].runs
    assert [run.name for run in runs] == ["demo-base", "demo-sft", "demo-kto"]
    assert all(run.over for run in runs)
    assert all(any("train/loss" in row for row in run.rows) for run in runs)
    own = runs[1].config
    assert own["palio_stage"]["tokens"] == 2500, "the stage's settings stand beside the model's"
    assert own["hidden_size"] == OURS["hidden_size"]
    assert own["model/num_parameters"] > 10_000


@pytest.mark.usefixtures("stand_ins")
def test_a_run_of_wandb_that_was_there_before_goes_on(tmp_path: Path, scene: Scene) -> None:
    import wandb  # type: ignore[import-not-found]

    wandb.init(name="mine")
    shape = {"model_type": "qwen3", "hidden_size": 8}
    trl = TrlSettings(extra={"run_name": "other"})
    import torch

    made = Integrations(["wandb"], tmp_path, torch.nn.Linear(2, 2), shape, trl, {})
    made.begin(0)
    made.end()
    assert [(run.name, run.over) for run in wandb.runs] == [("mine", False)]


# ---- what cannot be reported to


def stage(report_to: Any, kind: str = "sft") -> Recipe:
    return read_recipe({"stage": [{"kind": kind, "trl": {"report_to": report_to}}]})


@pytest.mark.parametrize("kind", ["base", *KINDS])
def test_a_place_that_nobody_knows_is_refused_when_the_recipe_is_read(kind: str) -> None:
    with pytest.raises(ConfigError, match="no integration is called 'wandbb'.*tensorboard"):
        stage(["wandbb"], kind)


@pytest.mark.parametrize(("name", "package"), [("trackio", "trackio"), ("flyte", "flytekit")])
def test_a_package_that_is_not_installed_is_named_with_how_to_install_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reporting.find_spec
    monkeypatch.setattr(reporting, "find_spec", lambda one: None if one == package else real(one))
    with pytest.raises(MissingDependencyError, match=f"stage 1.*pip install {package}"):
        stage(name)


def test_an_integration_that_does_not_work_here_stops_the_stage_before_it_trains(
    scene: Scene, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.integrations import integration_utils

    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("Broken requires a key")

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "broken", Broken)
    recipe = reporting_to(["broken"], OURS, ("sft",))
    with pytest.raises(
        MissingDependencyError, match="'broken' does not work here: Broken requires a key"
    ):
        train(recipe, corpus, tmp_path / "run", options=Options(uncertified=True, threads=1))
    assert not read_metrics(tmp_path / "run" / "sft")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no.such.module:Callback", "cannot be imported"),
        ("palio.train.reporting:Nothing", "cannot be imported"),
        ("palio.train.reporting:Shown", "is no TrainerCallback"),
    ],
)
def test_a_callback_that_is_none_is_refused(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        stage([name])


def test_names_are_taken_as_transformers_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import integration_utils

    assert reports_to(()) == reports_to("none") == reports_to(["none"]) == []
    assert reports_to(NOTES) == reports_to([NOTES]) == [NOTES]
    assert type(opened([NOTES])[0]).__name__ == "Notes"
    monkeypatch.setattr(
        integration_utils, "get_available_reporting_integrations", lambda: ["mlflow"]
    )
    assert reports_to("all") == ["mlflow"]
    assert set(reporting.NEEDS) | {"kubeflow"} >= set(integration_utils.INTEGRATION_TO_CALLBACK) - {
        NOTES,
        "broken",
    }, "transformers knows an integration whose package is not known here"
    settings: Any = stage("none").stages[0].settings
    assert settings.trl.report_to == "none"


def test_what_is_measured_is_told_under_the_names_of_a_trainer(tmp_path: Path) -> None:
    import torch

    shape = {"model_type": "qwen3", "hidden_size": 8}
    made = Integrations([NOTES], tmp_path, torch.nn.Linear(2, 2), shape, TrlSettings(), {})
    made.begin(4)
    point = Point("sft", 5, 900, 1.25, 0.5, 2.0, 100.0, 9.0)
    append_metrics(tmp_path, point)
    made.point(point, 0.005, 0.25)
    made.end()
    begin, log, end = read_notes(tmp_path)
    assert (begin["step"], log["step"], end["step"]) == (4, 5, 5)
    assert log["logs"] == {
        "loss": 1.25,
        "grad_norm": 2.0,
        "learning_rate": 0.005,
        "num_tokens": 900,
        "tokens_per_s": 100.0,
        "epoch": 0.25,
    }
