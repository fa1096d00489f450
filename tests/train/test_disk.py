"""A disk that takes no more, by a real limit on the size of files: told, and nothing is lost."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from palio.records import PalioError
from palio.train.checkpoint import save_checkpoint
from palio.train.disk import saving
from palio.train.model import Qwen3
from palio.train.reading import read_recipe
from palio.train.run import Options, train
from palio.train.stage import METRICS, append_metrics, read_metrics, trim_metrics
from palio.train.tokenizer import ChatTokenizer
from palio.world.artefacts import file_digest
from tests.train.test_stages import SHORT, SMALL, corpus  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
LIMIT = 100_000
"""Bytes of a file: enough for rows and measurements, too few for any weights of these tests."""
CHAIN = """
import json, resource, sys
from pathlib import Path
from palio.records import PalioError
from palio.train.reading import read_recipe
from palio.train.run import Options, train
given = json.loads(sys.argv[1])
options = Options(uncertified=True, save_every=given["every"], threads=1)
recipe = read_recipe(given["recipe"])
resource.setrlimit(resource.RLIMIT_FSIZE, (given["limit"], given["limit"]))
try:
    train(recipe, Path(given["corpus"]), Path(given["out"]), options=options)
except PalioError as error:
    print(error)
    sys.exit(7)
"""
KTO = """
import json, resource, sys
from pathlib import Path
from palio.records import PalioError
from palio.train.preference.kto import train_kto
from palio.train.rl.policy import OwnPolicy
from tests.train.test_disk import kto_rows, kto_settings
given = json.loads(sys.argv[1])
out = Path(given["out"])
policy = OwnPolicy(Path(given["start"]))
resource.setrlimit(resource.RLIMIT_FSIZE, (given["limit"], given["limit"]))
failed = 0
for work in (
    lambda: train_kto(policy, kto_rows(), kto_settings(), out, seed=0, report=lambda *_: None),
    lambda: policy.save(out / "checkpoint", config={}, inputs={}, counts={}, seed=0),
):
    try:
        work()
    except PalioError as error:
        print(error)
        failed += 1
sys.exit(7 if failed == 2 else 0)
"""


def limited(code: str, **given: Any) -> str:
    """What a process says that may not write files of more than `LIMIT` bytes."""
    command = [sys.executable, "-c", code, json.dumps({"limit": LIMIT, **given}, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 7, done.stdout + done.stderr
    assert "make room on the disk" in done.stdout
    return done.stdout


def options(every: float) -> Options:
    return Options(uncertified=True, save_every=every, threads=1)


@pytest.mark.parametrize(("every", "what"), [(0.0, "the state of step"), (1e9, "the checkpoint")])
def test_our_loop_says_so_and_goes_on_when_there_is_room(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    every: float,
    what: str,
) -> None:
    raw = {"name": "t", "model": SMALL, "stage": [{"kind": "sft", **SHORT}]}
    run = tmp_path / "run"
    told = limited(CHAIN, recipe=raw, corpus=corpus, out=run, every=every)
    assert what in told
    assert str(run / "sft") in told
    assert not (run / "sft" / "checkpoint").exists()
    assert not list((run / "sft").glob(".*")), "nothing half is left to fill the disk"
    made = train(read_recipe(raw), corpus, run, options=options(every))
    straight = train(read_recipe(raw), corpus, tmp_path / "straight", options=options(every))
    weights = [run.final / "model.safetensors" for run in (made, straight)]
    assert file_digest(weights[0]) == file_digest(weights[1])


def test_a_checkpoint_that_is_there_is_not_lost(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save() -> None:
        save_checkpoint(tmp_path / "c", small, tokenizer, config={}, inputs={}, counts={}, seed=0)

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    save()
    before = {path: file_digest(path) for path in (tmp_path / "c").iterdir()}
    monkeypatch.setattr("palio.train.checkpoint.save_file", full)
    with pytest.raises(PalioError, match="make room"):
        save()
    assert {path: file_digest(path) for path in (tmp_path / "c").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("every", "what"), [(1, "the state of step 1"), (9, "the state of step 2")]
)
def test_trl_says_so_and_keeps_no_half_state(
    small: Qwen3,
    tokenizer: ChatTokenizer,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    every: int,
    what: str,
) -> None:
    pytest.importorskip("trl", reason="pretrained models are trained by TRL")
    start, run = tmp_path / "start", tmp_path / "run"
    save_checkpoint(start, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    trl = {"max_steps": 2, "gradient_accumulation_steps": 1, "save_steps": every}
    raw = {
        "name": "p",
        "model": {"backend": "transformers", "path": str(start)},
        "stage": [{"kind": "sft", "trl": trl}],
    }
    told = limited(CHAIN, recipe=raw, corpus=corpus, out=run, every=1e9)
    assert what in told
    assert not list((run / "sft").glob("trainer/checkpoint-*"))
    assert not (run / "sft" / "checkpoint").exists()
    assert train(read_recipe(raw), corpus, run, options=options(1e9)).final.is_dir()


def test_weights_that_trl_trained_are_whole_or_absent(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl", reason="pretrained models are trained by TRL")
    from palio.train.backends.codec import PretrainedCodec
    from palio.train.backends.job import save_whole
    from palio.train.backends.weights import load_model, load_tokenizer
    from palio.train.recipe import PretrainedModel

    start = tmp_path / "start"
    save_checkpoint(start, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    model = PretrainedModel(path=str(start))
    codec, weights = PretrainedCodec(load_tokenizer(model, None)), load_model(model, None, 0)

    def full(*_: Any, **__: Any) -> None:
        (tmp_path / "saved").mkdir()
        (tmp_path / "saved" / "half").touch()
        raise SafetensorError("I/O error: File too large (os error 27)")

    monkeypatch.setattr(weights, "save_pretrained", full)
    with pytest.raises(PalioError, match="the weights cannot be saved"):
        save_whole(weights, codec, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def kto_rows() -> list[Any]:
    """Rollouts of both labels, of no meaning."""
    from palio.train.preference.labels import Labelled

    rng = random.Random(0)
    ids = [tuple(rng.choices(range(20, 200), k=12)) for _ in range(8)]
    ones = (1,) * 8
    return [
        Labelled(
            key=str(at), number=0, prompt=one[:4], completion=one[4:], mask=ones, label=at % 2 == 0
        )
        for at, one in enumerate(ids)
    ]


def kto_settings() -> Any:
    from palio.train.preference.kto import KtoSettings
    from palio.train.settings import TrlSettings

    batch = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    return KtoSettings(trl=TrlSettings(save_steps=1, **batch))


def test_a_later_stage_says_so_of_its_states_and_its_checkpoint(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    pytest.importorskip("trl", reason="KTO is TRL's")
    start, out = tmp_path / "start", tmp_path / "out"
    save_checkpoint(start, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    told = limited(KTO, start=start, out=out).splitlines()
    assert "the state of step 1 cannot be saved" in told[0]
    assert "the checkpoint cannot be saved: " in told[1]
    assert not list(out.glob("states/checkpoint-*"))
    assert not list(out.glob("*checkpoint*"))
    assert not list(out.glob(".*"))


def test_only_what_the_disk_did_is_told_so(tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.touch()
    with pytest.raises(RuntimeError, match="out of memory"), saving("x", tmp_path, half=half):
        raise RuntimeError("CUDA out of memory")
    with pytest.raises(FileNotFoundError), saving("x", tmp_path, half=half):
        (tmp_path / "none").read_bytes()
    assert half.exists()
    with (
        pytest.raises(PalioError, match="x cannot be saved: full"),
        saving("x", tmp_path, half=half),
    ):
        raise OSError(errno.ENOSPC, "full")
    assert not half.exists()


def test_measurements_are_never_half_of_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(4):
        append_metrics(tmp_path, {"step": step})
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 4')
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            trim_metrics(tmp_path, 1)
    assert len(read_metrics(tmp_path)) == 4
    trim_metrics(tmp_path, 1)
    assert read_metrics(tmp_path) == [{"step": 0}, {"step": 1}]
    assert (tmp_path / METRICS).read_bytes().endswith(b"\n")


def test_a_first_measurement_that_was_torn_spoils_no_later_one(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_bytes(b'{"st')
    trim_metrics(tmp_path, 0)
    append_metrics(tmp_path, {"step": 1})
    assert read_metrics(tmp_path) == [{"step": 1}]
