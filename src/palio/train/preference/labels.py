"""Single rollouts labelled right or wrong, and an order in which every batch has both."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from palio.records import InputError, Record, to_json
from palio.train.rl.rollouts import Loss, Roller, Rollout, checked, rollout_seed
from palio.train.rl.sampler import Sampler
from palio.train.rollouts import DEAD, OWN, SETTLED
from palio.world.appended import mend_end, whole_records

LABELLED = "labelled.jsonl"
BALANCE = 7 / 6
"""w_D n_D : w_U n_U; the middle of [1, 4/3], which the KTO paper advises (eq. 8)."""
_CHUNK = 256
"""Rollouts between two writes; a killed run does at most these again."""


class Labelled(Record, frozen=True, omit_defaults=False):
    """One rollout as KTO sees it.

    Attributes:
        key: of the problem.
        number: of the rollout among the problem's.
        prompt: ids up to the first assistant turn.
        completion: all ids after it.
        mask: which of these the model wrote, 1 or 0; only they are trained on.
        label: strict success; None: unscored, left out.
        fault: `FaultCode` of one that is unscored.
    """

    key: str
    number: int
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    mask: tuple[int, ...]
    label: bool | None
    fault: int | None = None


def sample_labels(
    roller: Roller,
    sampler: Sampler,
    out: Path,
    *,
    samples: int,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> list[Labelled]:
    """`samples` rollouts of each key, labelled; what `out` already holds is not run again.

    One that could not be scored is, until the stage has begun to train (`rollouts.settle`): after
    all that was never tried, and where others are scored, the same fault once more is no sign that
    nobody answers. A prompt that is too long for its server fails each time.

    Args:
        roller: what is rolled out.
        sampler: the policy.
        out: the stage's folder; `labelled.jsonl` grows there.
        samples: rollouts of a key.
        seed: each rollout's own is derived from it.
        progress: called with the share that is done.

    Raises:
        UpstreamError: nothing can be scored, for nobody answers, or nobody any more.
    """
    path = out / LABELLED
    held = {(row.key, row.number): row for row in read_labels(path)}
    mend_end(path)
    jobs = [(key, number) for number in range(samples) for key in roller.keys]
    settled = (out / SETTLED).exists()
    done = {job for job, row in held.items() if settled or row.label is not None}
    left = [job for job in jobs if job not in done]
    failed = {job: held[job].fault for job in left if job in held}
    left.sort(key=failed.__contains__)
    for start in range(0, len(left), _CHUNK):
        part = left[start : start + _CHUNK]
        seeds = [rollout_seed(seed, 0, key, number) for key, number in part]
        rollouts = roller.roll([key for key, _ in part], seeds, sampler)
        rows = [_labelled(job, each) for job, each in zip(part, rollouts, strict=True)]
        answered = any(row.label is not None for row in held.values())
        if answered or any(row.label is not None for row in rows):
            _append(path, rows)
        news = [
            each
            for job, row, each in zip(part, rows, rollouts, strict=True)
            if not (answered and row.fault in OWN and row.fault == failed.get(job))
        ]
        if len(news) >= DEAD or not answered:
            checked(news, 0)
        held |= {(row.key, row.number): row for row in rows}
        if progress:
            progress((start + len(part)) / len(left))
    return [held[job] for job in jobs]


def _append(path: Path, rows: Sequence[Labelled]) -> None:
    with path.open("ab") as file:
        file.writelines(to_json(row) + b"\n" for row in rows)


def _labelled(job: tuple[str, int], rollout: Rollout) -> Labelled:
    key, number = job
    loss = Loss.of(rollout)
    return Labelled(
        key=key,
        number=number,
        prompt=tuple(rollout.prompt),
        completion=tuple(rollout.completion),
        mask=tuple(map(int, rollout.mask)),
        label=None if loss else rollout.success,
        fault=loss.code if loss else None,
    )


def write_labels(path: Path, rows: Sequence[Labelled]) -> None:
    """All rows, in order, in the place of an earlier file."""
    path.write_bytes(b"".join(to_json(row) + b"\n" for row in rows))


def read_labels(path: Path) -> list[Labelled]:
    """Rows of a `labelled.jsonl`, [] where there is none; a last line torn by a kill is left out.

    Raises:
        InputError: another line is torn; names file and row.
    """
    return list(whole_records(path, Labelled))


def usable(rows: Sequence[Labelled], longest: int) -> list[Labelled]:
    """Scored rows that fit and in which the model wrote something."""
    return [
        row
        for row in rows
        if row.label is not None
        and any(row.mask)
        and len(row.prompt) + len(row.completion) <= longest
    ]


def left_out(rows: Sequence[Labelled], longest: int) -> dict[str, int]:
    """How many scored rows are not `usable`, by reason."""
    sized = [(row, len(row.prompt) + len(row.completion) > longest) for row in rows]
    scored = [(row, long) for row, long in sized if row.label is not None]
    return {
        "too_long": sum(long for _, long in scored),
        "silent": sum(not long and not any(row.mask) for row, long in scored),
    }


def class_weights(desirable: int, undesirable: int) -> tuple[float, float]:
    """Weights (w_D, w_U), the smaller 1, such that w_D n_D : w_U n_U lies in [1, 4/3].

    Raises:
        InputError: one of the classes is empty.
    """
    if not desirable or not undesirable:
        kind = "right" if desirable else "wrong"
        raise InputError(
            f"all rollouts are {kind}: KTO needs some of both",
            remedy="sample more problems, or start from another checkpoint",
        )
    ratio = desirable / undesirable
    if 1.0 <= ratio <= 4 / 3:
        return 1.0, 1.0
    return (1.0, ratio / BALANCE) if ratio > BALANCE else (BALANCE / ratio, 1.0)


def mixed_order(labels: Sequence[bool], batch: int, seed: int) -> list[int]:
    """An order of rows in which each run of `batch` has both labels, about in their share.

    Rows that do not fill a batch are left out, as are rows of the larger class that would have to
    stand in a batch without any of the smaller.

    Args:
        labels: of the rows.
        batch: rows of a batch, at least 2.
        seed: of the order.

    Raises:
        InputError: a class is empty, or there are fewer rows than a batch has.
    """
    rng = random.Random(f"mixed-{seed}")
    right = [at for at, label in enumerate(labels) if label]
    wrong = [at for at, label in enumerate(labels) if not label]
    class_weights(len(right), len(wrong))
    rng.shuffle(right)
    rng.shuffle(wrong)
    few, many = sorted((right, wrong), key=len)
    count = min((len(few) + len(many)) // batch, len(few), len(many))
    if batch < 2 or not count:
        raise InputError(
            f"{len(labels)} labelled rollouts do not fill one batch of {batch} with both labels",
            remedy="sample more rollouts, or lower per_device_train_batch_size (at least 2)",
        )
    order: list[int] = []
    for number in range(count):
        share = few[number * len(few) // count : (number + 1) * len(few) // count]
        share = share[: batch - 1]
        rest = [many.pop() for _ in range(batch - len(share)) if many]
        rows = [*share, *rest]
        if len(rows) < batch:
            break
        rng.shuffle(rows)
        order += rows
    return order


def summary(rows: Sequence[Labelled]) -> dict[str, int]:
    """Counts for a manifest."""
    labels = [row.label for row in rows]
    return {
        "rollouts": len(rows),
        "right": sum(label is True for label in labels),
        "wrong": sum(label is False for label in labels),
        "unscored": sum(label is None for label in labels),
        "mixed_problems": sum(len(found) == 2 for found in _labels_by_key(rows).values()),
    }


def _labels_by_key(rows: Sequence[Labelled]) -> dict[str, set[bool]]:
    found: dict[str, set[bool]] = {}
    for row in rows:
        if row.label is not None:
            found.setdefault(row.key, set()).add(row.label)
    return found
