"""Labels of rollouts: what a server did not answer is asked again, until training has begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from palio.records import FaultCode, UpstreamError
from palio.train.preference.labels import LABELLED, Labelled, read_labels, sample_labels
from palio.train.rl.rollouts import Rollout
from palio.train.rl.sampler import Sampler
from palio.train.rollouts import DEAD, settle
from tests.train_rl.conftest import ToldSampler

ROLLOUT = Rollout(
    key="",
    prompt=[1],
    completion=[2],
    mask=[True],
    logprobs=[-1.0],
    spans=(),
    outcome=1.0,
    credits=None,
    success=True,
)

GONE = UpstreamError("nobody answers", code=FaultCode.upstream_unreachable)
REFUSED = UpstreamError("the prompt is too long", code=FaultCode.upstream_server_error)


class Server:
    """Rolls out what it is asked for, and nothing that was asked after `until` rollouts.

    Args:
        refused: keys that it never rolls out.

    Attributes:
        asked: rollouts.
        order: keys of these.
    """

    def __init__(self, until: int = 1_000, refused: Sequence[str] = ()) -> None:
        self.keys = tuple(map(str, range(100)))
        self.until, self.refused, self.asked = until, refused, 0
        self.order: list[str] = []

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        made = []
        for key in keys:
            self.asked += 1
            self.order.append(key)
            one = replace(ROLLOUT, key=key, success=int(key) % 2 == 0)
            answered = self.asked <= self.until and key not in self.refused
            why = REFUSED if key in self.refused else GONE
            made.append(one if answered else replace(one, outcome=None, fault=why))
        return made


def labels(server: Server, out: Path) -> list[Labelled]:
    return sample_labels(server, ToldSampler([]), out, samples=6, seed=0)


def test_a_server_that_is_gone_half_way_stops_the_stage_which_then_goes_on(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match="none of 256 rollouts could be scored"):
        labels(Server(until=200), tmp_path)
    held = read_labels(tmp_path / LABELLED)
    assert [row.label is None for row in held] == [False] * 200 + [True] * (56 + 256)
    again = Server()
    rows = labels(again, tmp_path)
    assert again.asked == 600 - 200, "what was labelled is not run again"
    assert len(rows) == 600
    assert not any(row.label is None for row in rows)
    assert rows == labels(again, tmp_path)
    assert again.asked == 400


def test_the_last_few_may_be_lost_and_stay_so_when_training_has_begun(tmp_path: Path) -> None:
    few = 600 - 512 - DEAD
    rows = labels(Server(until=512 + few), tmp_path)
    assert sum(row.label is None for row in rows) == DEAD
    settle(tmp_path)
    server = Server()
    assert labels(server, tmp_path) == rows, "a state was trained on these very rows"
    assert server.asked == 0


LONG = tuple(map(str, range(3)))
"""Keys of 18 rollouts, more than DEAD."""


def test_prompts_that_a_server_refuses_each_time_end_no_resumed_stage(tmp_path: Path) -> None:
    rows = labels(Server(refused=LONG), tmp_path)
    assert sum(row.label is None for row in rows) == 6 * len(LONG) > DEAD
    again = Server(refused=LONG)
    assert labels(again, tmp_path) == rows
    assert again.asked == 6 * len(LONG), "they are tried again, and only they"


def test_what_was_never_tried_comes_before_what_failed(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError):
        labels(Server(until=256, refused=LONG), tmp_path)
    again = Server(refused=LONG)
    labels(again, tmp_path)
    never = [str(place % 100) for place in range(512, 600)]
    assert again.order[: len(never)] == never
    assert set(LONG) < set(again.order[len(never) :])


def test_a_server_that_is_gone_is_told_though_only_refused_ones_are_left(tmp_path: Path) -> None:
    labels(Server(refused=LONG), tmp_path)
    with pytest.raises(UpstreamError, match="nobody answers"):
        labels(Server(until=0), tmp_path)


def test_a_whole_chunk_that_is_refused_is_kept_as_that(tmp_path: Path) -> None:
    """Twenty in a row, in a chunk of their own: told once, and then passed."""
    server = Server()
    server.keys = tuple(map(str, range(276)))
    server.refused = server.keys[-20:]
    with pytest.raises(UpstreamError, match="none of 20 rollouts could be scored: the prompt is"):
        sample_labels(server, ToldSampler([]), tmp_path, samples=1, seed=0)
    rows = sample_labels(server, ToldSampler([]), tmp_path, samples=1, seed=0)
    assert sum(row.label is None for row in rows) == 20


def test_a_server_that_stays_away_is_told_each_time(tmp_path: Path) -> None:
    for _ in range(4):
        with pytest.raises(UpstreamError, match="nobody answers"):
            labels(Server(until=200 if not (tmp_path / LABELLED).exists() else 0), tmp_path)
    assert not any(row.label is None for row in labels(Server(), tmp_path))
