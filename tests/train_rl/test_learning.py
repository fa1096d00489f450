"""Per-step credit teaches although no rollout ever succeeds; two processes do what one does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palio.records import to_json
from palio.train.backends.loop import ChatCodec
from palio.train.preference.labels import LABELLED, Labelled
from palio.train.rl.grpo import train_grpo
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.rollouts import Rollout
from palio.train.rl.sampler import Decoding, Sampler
from palio.train.rl.settings import GrpoSettings
from palio.train.rl.tokens import Span
from palio.train.settings import TrlSettings
from palio.train.stage import read_metrics
from tests.train_rl.conftest import Scene

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ROOT = Path(__file__).parents[2]
CLASSES = 8


class TwoSteps:
    """Say a token of the right eighth of the vocabulary, then one of another eighth.

    The second turn is only reached after a right first one, and the outcome is always 0.
    """

    keys = ("red jar", "blue lamp", "green shoe", "small bag")

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        return [self._one(key, seed, sampler) for key, seed in zip(keys, seeds, strict=True)]

    def _one(self, key: str, seed: int, sampler: Sampler) -> Rollout:
        prompt = self._codec.tokenizer.encode(key)
        wanted = self.keys.index(key)
        first, score = sampler.sample(prompt, Decoding(1, 1.0, 1.0, seed))
        ids, scores, spans = list(first), list(score), [Span(0, 1)]
        earned = [float(first[0] % CLASSES == wanted)]
        if earned[0]:
            ids, scores = [*ids, 5, 6], [*scores, 0.0, 0.0]
            second, score = sampler.sample([*prompt, *ids], Decoding(1, 1.0, 1.0, seed + 1))
            ids, scores, spans = [*ids, *second], [*scores, *score], [*spans, Span(3, 4)]
            earned.append(float(second[0] % CLASSES == wanted + 3))
        return Rollout(
            key=key,
            prompt=prompt,
            completion=ids,
            mask=[at in (0, 3) for at in range(len(ids))],
            logprobs=scores,
            spans=tuple(spans),
            outcome=0.0,
            credits=tuple(earned),
            success=False,
        )


@pytest.mark.slow
def test_step_reward_rises_in_30_steps_though_no_rollout_succeeds(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    trl = TrlSettings(
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        warmup_ratio=0.0,
        max_steps=30,
        per_device_train_batch_size=64,
        gradient_accumulation_steps=1,
        save_steps=1000,
    )
    chosen = GrpoSettings(
        trl=trl, group=16, groups=4, turn_weight=1.0, longest=8, probe=0, watch=0.0
    )
    train_grpo(
        policy, TwoSteps(scene.codec), chosen, tmp_path, seed=1, report=lambda share, note: None
    )
    rows = read_metrics(tmp_path)
    sums = [row["step_reward/sum"] for row in rows]
    assert sum(sums[:3]) / 3 < 0.4, "a random model earns about 1/8 and a bit"
    assert sum(sums[-3:]) / 3 > 0.9, f"of 2, measured 1.15; {sums}"
    assert all(row["reward"] == 0 for row in rows)
    assert all(row["groups/all_fail"] == 1 for row in rows)


SCRIPT = """
import sys
from pathlib import Path
from palio.train.preference.kto import KtoSettings, train_kto
from palio.train.preference.labels import read_labels
from palio.train.rl.grpo import train_grpo
from palio.train.rl.settings import GrpoSettings
from palio.train.rl.policy import OwnPolicy
from palio.train.settings import TrlSettings

kind, start, rows, out, batch, accumulation = sys.argv[1:]
trl = TrlSettings(
    learning_rate=0.5, lr_scheduler_type="constant", warmup_ratio=0.0, max_steps=1,
    per_device_train_batch_size=int(batch), gradient_accumulation_steps=int(accumulation),
    extra={"optim": "sgd"}, max_grad_norm=0.0,
    launch=("torchrun",) if accumulation == "1" else (),
)
policy, out, ignore = OwnPolicy(Path(start)), Path(out), lambda share, note: None
if kind == "kto":
    chosen, labels = KtoSettings(trl=trl, beta=0.5), read_labels(Path(rows))
    trainer = train_kto(policy, labels, chosen, out, seed=1, report=ignore)
else:
    from tests.train_rl.test_learning import TwoSteps
    chosen = GrpoSettings(
        trl=trl, group=4, groups=4, turn_weight=1.0, longest=8, probe=2, watch=0.0
    )
    roller = TwoSteps(policy.codec)
    trainer = train_grpo(policy, roller, chosen, out, seed=1, report=ignore)
print("processes", trainer.accelerator.num_processes)
if trainer.accelerator.is_main_process:
    policy.save(out / "checkpoint", config={}, inputs={}, counts={}, seed=1)
"""


def run(command: list[str]) -> str:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "batch"), [("kto", 2), ("grpo", 8)])
def test_two_processes_do_what_one_does(
    scene: Scene, checkpoint: Path, tmp_path: Path, kind: str, batch: int
) -> None:
    rows = tmp_path / LABELLED
    with rows.open("wb") as file:
        for number, talk in enumerate(scene.talks[:8]):
            ids, trained = scene.tokenizer.encode_chat(talk.messages)
            cut = trained.index(True)
            row = Labelled(
                key=talk.problem_id,
                number=0,
                prompt=tuple(ids[:cut]),
                completion=tuple(ids[cut:]),
                mask=tuple(map(int, trained[cut:])),
                label=number % 2 == 0,
            )
            file.write(to_json(row) + b"\n")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    one, two = tmp_path / "one", tmp_path / "two"
    shared = [str(script), kind, str(checkpoint), str(rows)]
    told = run([*shared, str(one), str(batch), "2"])
    assert "processes 1" in told
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    told = run([*launch, *shared, str(two), str(batch), "1"])
    assert told.count("processes 2") == 2
    start = load_file(checkpoint / "model.safetensors")
    weights: list[dict[str, Any]] = [
        load_file(folder / "checkpoint" / "model.safetensors") for folder in (one, two)
    ]
    moved = max(float((value - start[name]).abs().max()) for name, value in weights[0].items())
    assert moved > 1e-4, "the step changes something"
    for name, value in weights[0].items():
        assert torch.allclose(value, weights[1][name], atol=1e-3 * moved), name
