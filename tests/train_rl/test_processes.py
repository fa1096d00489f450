"""A stage that a recipe launches ends where one process does; its processes read the same."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file

from palio.corpus.rows import row_of
from palio.judging.encoders import StubEncoder
from palio.records import ConfigError, InputError, IntegrityError, PalioError, to_json
from palio.train.backends.launch import launched
from palio.train.backends.starter import LOCK, alone, starting
from palio.train.checkpoint import checkpoint_folder, load_checkpoint, save_checkpoint
from palio.train.model import ModelConfig, Qwen3
from palio.train.reading import read_recipe
from palio.train.rl.hooks import rolled
from palio.train.rl.material import FILE, GROUND, read_ground, write_ground
from palio.train.rl.processes import PARTS, ROWS, WORKER
from palio.train.run import Options, Trained, train
from palio.train.seen import read_seen
from palio.train.stage import read_metrics
from palio.world.documents import Document
from palio.world.world import World
from tests.train_rl.conftest import Scene

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ROOT = Path(__file__).parents[2]
TORCHRUN = ["torchrun", "--standalone", "--nproc_per_node", "2"]


@pytest.fixture
def corpus(scene: Scene, tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    rows = [row_of(talk, "told") for talk in scene.talks[:6]]
    path.write_bytes(b"".join(to_json(row) + b"\n" for row in rows))
    return path


def run(
    scene: Scene, corpus: Path, out: Path, start: Path, stage: dict[str, Any], **trl: Any
) -> Trained:
    """One stage of a recipe; labels are made up as in a dry run: random weights solve nothing."""
    plain = {"lr_scheduler_type": "constant", "warmup_ratio": 0.0, "extra": {"optim": "sgd"}}
    model = {
        "backend": "transformers",
        "path": str(start),
        "template": str(resources.files("palio.train") / "chat_template.jinja"),
    }
    table = {**stage, "trl": {**plain, "max_grad_norm": 0.0, **stage["trl"], **trl}}
    recipe = msgspec.structs.replace(read_recipe({"model": model, "stage": [table]}), dry=True)
    options = Options(uncertified=True, threads=1)
    return train(recipe, corpus, out, ground=scene.ground, options=options)


def assert_same(one: Trained, two: Trained, start: Path, share: float = 0.02) -> None:
    """Weights and losses, as far apart as sums in another order."""
    weights = [load_file(made.final / "model.safetensors") for made in (one, two)]
    before = load_file(start / "model.safetensors")
    moved = max(float((weights[0][name] - before[name]).abs().max()) for name in before)
    apart = max(float((weights[0][name] - weights[1][name]).abs().max()) for name in before)
    assert moved > 1e-5, "the stage changes something"
    assert apart < share * moved, f"{apart / moved:.4f} of the way"
    losses = [[row["loss"] for row in read_metrics(made.stages[0].folder)] for made in (one, two)]
    assert losses[1] == pytest.approx(losses[0], abs=2e-3)
    counts = [made.stages[0].counts for made in (one, two)]
    assert counts[0] == counts[1]
    left = {path.name for path in two.stages[0].folder.iterdir()}
    assert not left & {GROUND, ROWS, "states", "saved"}, "what was written for the processes goes"


# ---- two processes, by recipe


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_kto_in_two_processes_of_which_one_is_killed_ends_as_in_one(
    scene: Scene, checkpoint: Path, corpus: Path, tmp_path: Path
) -> None:
    # a low beta: the KL estimate is of all processes' batches at once, in one process of one batch
    stage = {
        "kind": "kto",
        "beta": 0.05,
        "sampling": {"problems": 2, "samples": 4, "max_tokens": 8, "threads": 4},
        "trl": {
            "learning_rate": 0.5,
            "max_steps": 8,
            "save_steps": 1,
            "per_device_train_batch_size": 2,
        },
    }
    alone = run(scene, corpus, tmp_path / "one", checkpoint, stage, gradient_accumulation_steps=2)
    two = {"launch": TORCHRUN, "gradient_accumulation_steps": 1}
    folder = tmp_path / "two" / "kto"
    killer = threading.Thread(target=kill_one, args=(folder,), daemon=True)
    killer.start()
    with pytest.raises(PalioError, match="training processes ended with status"):
        run(scene, corpus, tmp_path / "two", checkpoint, stage, **two)
    before = len(read_metrics(folder))
    assert 1 <= before < 8
    made = run(scene, corpus, tmp_path / "two", checkpoint, stage, **two)
    assert [row["step"] for row in read_metrics(folder)] == list(range(1, 9))
    assert_same(alone, made, checkpoint)


def kill_one(folder: Path) -> None:
    """SIGKILL one of the two training processes when there is a state to go on from."""
    while not list(folder.glob("states/checkpoint-*/trainer_state.json")):
        time.sleep(0.005)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            told = path.read_bytes().split(b"\0")
            if str(folder).encode() in told and b"torch.distributed.run" not in told:
                os.kill(int(path.parent.name), signal.SIGKILL)
                return


@pytest.fixture(scope="module")
def bundled() -> Path:
    """The checkpoint that ships: rollouts of random weights are all the same."""
    try:
        return checkpoint_folder(Path("bundled"))
    except InputError as error:
        pytest.skip(error.what)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_grpo_in_two_processes_is_as_in_one(
    scene: Scene, bundled: Path, corpus: Path, tmp_path: Path
) -> None:
    """One group a step, of which each process makes half: its mean is of both halves."""
    stage = {
        "kind": "grpo",
        "reward": "on_policy",
        "group": 8,
        "groups": 1,
        "problems": 2,
        "temperature": 1.5,
        "max_tokens": 60,
        "threads": 8,
        "seconds": 3000.0,
        "probe": 2,
        "watch": 0.0,
        "trl": {"learning_rate": 2.0, "max_steps": 2, "per_device_train_batch_size": 4},
    }
    one = run(scene, corpus, tmp_path / "one", bundled, stage, gradient_accumulation_steps=2)
    two = {"launch": TORCHRUN, "gradient_accumulation_steps": 1}
    made = run(scene, corpus, tmp_path / "two", bundled, stage, **two)
    assert_same(one, made, bundled)
    assert_rolled_alike(one, made, 16)
    names = ("reward", "success", "step_reward", "groups/mixed", "calls/per_rollout")
    told = [
        [[row[name] for name in names] for row in read_metrics(each.stages[0].folder)]
        for each in (one, made)
    ]
    assert told[1] == [pytest.approx(row) for row in told[0]]
    assert all(0 < row["step_reward"] < 1 for row in read_metrics(one.stages[0].folder))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_distillation_in_two_processes_is_as_in_one(
    scene: Scene, bundled: Path, corpus: Path, tmp_path: Path
) -> None:
    """Rollouts in the world, which the training processes read from the stage's folder."""
    student = load_checkpoint(bundled)
    shape = {"hidden_size": 32, "intermediate_size": 48, "layers": 1, "head_dim": 16}
    model = Qwen3(ModelConfig(vocab_size=student.tokenizer.size, **shape))
    model.initialise(9)
    teacher = tmp_path / "teacher"
    save_checkpoint(teacher, model, student.tokenizer, config={}, inputs={}, counts={}, seed=9)
    stage = {
        "kind": "distill",
        "teacher": str(teacher),
        "problems": 8,
        "max_tokens": 60,
        "threads": 8,
        "seconds": 3000.0,
        "trl": {"learning_rate": 0.002, "max_steps": 2, "per_device_train_batch_size": 2},
    }
    one = run(scene, corpus, tmp_path / "one", bundled, stage, gradient_accumulation_steps=2)
    two = {"launch": TORCHRUN, "gradient_accumulation_steps": 1}
    made = run(scene, corpus, tmp_path / "two", bundled, stage, **two)
    assert_same(one, made, bundled)
    assert_rolled_alike(one, made, 8)
    told = [
        [(row["calls/per_rollout"], row["turns/per_rollout"]) for row in read_metrics(each)]
        for each in (one.stages[0].folder, made.stages[0].folder)
    ]
    assert told[0] == told[1], "the first process tells of the rollouts of both"
    assert any(calls > 0 for calls, _ in told[0])


def assert_rolled_alike(one: Trained, two: Trained, count: int) -> None:
    """The very rollouts of one process, shared out over two."""
    rows = [
        sorted((each.problem_id, each.seed, each.row) for each in read_seen(made.stages[0].folder))
        for made in (one, two)
    ]
    assert len(rows[0]) == count
    assert rows[0] == rows[1]


# ---- what the processes are given


def test_a_ground_read_back_is_the_same(scene: Scene, tmp_path: Path) -> None:
    (name,) = scene.ground.worlds
    plain = scene.ground.worlds[name]
    plain.catalogue.documents, before = (Document(title="a", text="b c"),), ()
    try:
        told = World.build(plain.catalogue, plain.config)
    finally:
        plain.catalogue.documents = before
    for world in (plain, told):
        ground = replace(scene.ground, worlds={name: world, "other": world}, tools=("terminate",))
        write_ground(ground, tmp_path / "ground")
        found = read_ground(tmp_path / "ground")
        assert found.problems == ground.problems
        assert found.tools == ground.tools
        assert found.digest() == ground.digest()
        assert list(found.worlds) == [name], "worlds of no problem stay behind"
        assert found.worlds[name].digest == world.digest
        assert found.worlds[name].config == world.config
    assert [each.problem_id for each in found.evenly(5, "s")] == [
        each.problem_id for each in scene.ground.evenly(5, "s")
    ]


def test_a_world_that_was_changed_on_the_way_is_told(scene: Scene, tmp_path: Path) -> None:
    write_ground(scene.ground, tmp_path)
    written = json.loads((tmp_path / FILE).read_bytes())
    for place in written["worlds"].values():
        place["digest"] = "sha256:other"
    (tmp_path / FILE).write_text(json.dumps(written))
    found = read_ground(tmp_path)
    with pytest.raises(IntegrityError, match="not the one that was written"):
        found.worlds[found.problems[0].catalogue]


def test_a_scorer_of_this_process_alone_is_refused(scene: Scene, tmp_path: Path) -> None:
    ground = replace(scene.ground, encoder=StubEncoder(0.5))
    with pytest.raises(ConfigError, match="'stub-0.5' cannot be given to other processes"):
        write_ground(ground, tmp_path)


def test_every_part_is_there() -> None:
    from palio.train.rl.processes import _part

    for kind in PARTS:
        assert callable(_part(kind))


def test_a_policy_in_shares_is_not_sampled_in_place() -> None:
    state = SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=3))
    trainer: Any = SimpleNamespace(
        is_fsdp_enabled=False, accelerator=SimpleNamespace(state=state, process_index=0)
    )
    nothing: Any = None
    with pytest.raises(ConfigError, match="sharded.*vLLM server"):
        rolled(trainer, nothing, nothing, ["a"], 0)


# ---- who starts them

FAKE = """#!{python}
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[-1])
told = {{"key": os.environ.get("PALIO_TEACHER_KEY", ""), "argv": sys.argv[1:]}}
(folder / "told.json").write_text(json.dumps(told))
(folder / "saved").mkdir(exist_ok=True)
(folder / "saved" / "config.json").write_text("{{}}")
"""


def test_a_secret_reaches_the_processes_by_their_environment_alone(tmp_path: Path) -> None:
    fake = tmp_path / "launcher"
    fake.write_text(FAKE.format(python=sys.executable))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    job = SimpleNamespace(place=tmp_path, folder=str(tmp_path))
    launched(job, [str(fake)], module=WORKER, key="sk-7")
    told = json.loads((tmp_path / "told.json").read_text())
    assert told == {"key": "sk-7", "argv": ["-m", WORKER, str(tmp_path)]}
    assert not [p for p in tmp_path.iterdir() if p.name != "told.json" and b"sk-7" in _bytes(p)]
    assert not (tmp_path / LOCK).exists()


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


WAITING = """
import pathlib, sys, time
from palio.train.backends.starter import end_with_starter
end_with_starter(pathlib.Path(sys.argv[1]))
print("up", flush=True)
time.sleep(600)
"""
STARTING = """
import pathlib, sys, time
from palio.train.backends.starter import starting
with starting(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_training_processes_end_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    def begun(script: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(tmp_path)]
        made = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert made.stdout is not None
        assert made.stdout.readline()
        return made

    with begun(STARTING) as starter:
        assert not alone(tmp_path)
        with begun(WAITING) as worker:
            starter.kill()
            assert worker.wait(60) == 1
    assert alone(tmp_path), "a lock that nobody holds is none"
    with begun(WAITING) as by_hand:
        assert by_hand.poll() is None
        time.sleep(1.5)
        assert by_hand.poll() is None, "one that nobody waits for just goes on"
        by_hand.kill()
    with starting(tmp_path):
        assert not alone(tmp_path)
    assert not (tmp_path / LOCK).exists()
