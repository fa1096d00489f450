"""One digest stands for all that a later stage was trained on, in an order that a kill keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from trl.trainer.utils import RepeatSampler

from palio.train.preference.labels import Labelled
from palio.train.preference.trainer import dataset_digest, kto_dataset
from palio.train.rl.order import EpochSampler
from palio.train.rl.rollouts import Rollout
from palio.train.rl.sampler import Sampler
from palio.train.seen import SEEN, Witness, rolled_digest
from tests.train_rl.conftest import ToldSampler

ROLLOUT = Rollout(
    key="p/3#1",
    prompt=[1, 2],
    completion=[3, 4, 5],
    mask=[True, False, True],
    logprobs=[-1.0, 0.0, -1.0],
    spans=(),
    outcome=1.0,
    credits=None,
    success=True,
)


class Given:
    """Rolls out what it is given."""

    keys = ("p/3#1",)

    def __init__(self, *rollouts: Rollout) -> None:
        self.rollouts = list(rollouts)

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        return [self.rollouts.pop(0) for _ in keys]


def rolled(out: Path, *made: tuple[Rollout, int]) -> str:
    out.mkdir()
    witness = Witness(Given(*(rollout for rollout, _ in made)), out)
    for _, seed in made:
        witness.roll(witness.keys, [seed], ToldSampler([]))
    return rolled_digest(out)


def test_what_a_stage_rolled_out_has_one_digest(tmp_path: Path) -> None:
    other = replace(ROLLOUT, completion=[3, 4, 6])
    whole = rolled(tmp_path / "a", (ROLLOUT, 1), (other, 2))
    assert rolled(tmp_path / "b", (other, 2), (ROLLOUT, 1)) == whole, "whatever ended first"
    again = rolled(tmp_path / "c", (ROLLOUT, 1), (ROLLOUT, 2), (other, 2))
    assert again == whole, "what was rolled out again after a kill counts once, the last one"
    masked = replace(ROLLOUT, mask=[True, True, True])
    assert rolled(tmp_path / "d", (masked, 1), (other, 2)) != whole
    assert rolled(tmp_path / "e", (replace(ROLLOUT, prompt=[1]), 1), (other, 2)) != whole
    torn = (tmp_path / "a" / SEEN).read_bytes()
    (tmp_path / "a" / SEEN).write_bytes(torn + torn[:30])
    assert rolled_digest(tmp_path / "a") == whole, "a line that a kill has torn is none"


ROW = Labelled(key="p", number=0, prompt=(1, 2), completion=(3, 4), mask=(1, 0), label=True)


@pytest.mark.parametrize(
    "change", [{"prompt": (1, 3)}, {"completion": (3, 5)}, {"mask": (1, 1)}, {"label": False}]
)
def test_what_kto_learns_from_has_one_digest(change: dict[str, object]) -> None:
    wrong = msgspec.structs.replace(ROW, label=False, completion=(9, 9))
    whole = dataset_digest(kto_dataset([ROW, wrong], 2))
    assert dataset_digest(kto_dataset([ROW, wrong], 2)) == whole
    assert dataset_digest(kto_dataset([wrong, ROW], 2)) != whole, "order decides too"
    changed = msgspec.structs.replace(ROW, **change)
    assert dataset_digest(kto_dataset([changed, wrong], 2)) != whole


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_epoch_has_its_order_whether_or_not_there_was_one_before(shuffle: bool) -> None:
    plain = RepeatSampler(range(9), 2, batch_size=3, repeat_count=2, shuffle=shuffle, seed=5)
    again = EpochSampler.of(plain)
    epochs = [list(plain) for _ in range(3)]
    assert (epochs[0] != epochs[1]) == shuffle
    assert [_epoch(again, number) for number in range(3)] == epochs, "as TRL's own"
    for number, wanted in enumerate(epochs):
        assert _epoch(EpochSampler.of(plain), number) == wanted, "and in a run that begins there"


def _epoch(sampler: EpochSampler, number: int) -> list[int]:
    sampler.set_epoch(number)
    return list(sampler)
