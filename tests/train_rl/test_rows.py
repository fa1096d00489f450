"""One digest stands for all that a later stage was trained on, in an order that a kill keeps."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from trl.trainer.utils import RepeatSampler

from palio.records import InputError
from palio.train.preference.labels import LABELLED, Labelled, read_labels
from palio.train.preference.trainer import dataset_digest, kto_dataset
from palio.train.rl.order import EpochSampler
from palio.train.rl.rollouts import Rollout
from palio.train.rl.sampler import Sampler
from palio.train.rollouts import FILE, read_rollouts
from palio.train.seen import SEEN, Witness, read_seen, rolled_digest
from palio.train.stage import METRICS, read_metrics
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


def test_a_run_goes_on_after_a_line_that_was_torn(tmp_path: Path) -> None:
    """Not glued to the next one, which would be told at the end of the stage, every time."""
    whole = rolled(tmp_path / "a", (ROLLOUT, 1), (ROLLOUT, 2))
    first, second = (tmp_path / "a" / SEEN).read_bytes().splitlines(keepends=True)
    for number, torn in enumerate((second[:-1], second[:30], b"{")):
        out = tmp_path / str(number)
        out.mkdir()
        (out / SEEN).write_bytes(first + torn)
        Witness(Given(ROLLOUT), out).roll(Given.keys, [2], ToldSampler([]))
        assert rolled_digest(out) == whole
    only = tmp_path / "only"
    only.mkdir()
    (only / SEEN).write_bytes(first[:-1])
    witness = Witness(Given(ROLLOUT, ROLLOUT), only)
    for seed in (1, 2):
        witness.roll(Given.keys, [seed], ToldSampler([]))
    assert rolled_digest(only) == whole


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (METRICS, read_metrics),
        (FILE, read_rollouts),
        (SEEN, read_seen),
        (LABELLED, lambda folder: read_labels(folder / LABELLED)),
    ],
)
def test_a_torn_line_in_the_middle_names_file_and_row(
    tmp_path: Path, name: str, read: Callable[[Path], Any]
) -> None:
    (tmp_path / name).write_bytes(b'{"ste\n{"step":1}\n')
    with pytest.raises(InputError, match=f"{tmp_path / name}:1: not a valid"):
        read(tmp_path)


def test_a_disk_that_takes_a_part_of_the_lines_says_so(tmp_path: Path) -> None:
    """The system's write gives back how much it took, and no error."""
    witness = Witness(Given(ROLLOUT, ROLLOUT), tmp_path)
    witness.roll(Given.keys, [1], ToldSampler([]))
    size = (tmp_path / SEEN).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            witness.roll(Given.keys, [2], ToldSampler([]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / SEEN).stat().st_size == size + 40
    Witness(Given(ROLLOUT), tmp_path).roll(Given.keys, [2], ToldSampler([]))
    assert rolled_digest(tmp_path) == rolled(tmp_path / "a", (ROLLOUT, 1), (ROLLOUT, 2))


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
