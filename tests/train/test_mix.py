"""What a stage trains on stands in the shares that its recipe says: rewards, buckets, corpus."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palio.train.backends.pretrained import mixture
from palio.train.batches import Example
from palio.train.context import Source
from palio.train.loop import Mixture
from palio.train.rollouts import Rollout
from palio.train.stages import kept
from palio.train.stages.kept import Kept, by_bucket, by_reward, mixed


def kept_of(*rows: tuple[str, float]) -> Kept:
    """Kept rollouts of some kinds and rewards, each with a row of its own; 1 is a success."""
    return Kept(
        [
            (
                Rollout(
                    problem_id=f"p{number}",
                    kind=kind,
                    sample=0,
                    reward=reward,
                    success=reward == 1.0,
                    scored=True,
                    trajectory=None,  # type: ignore[arg-type]
                ),
                Example((number, 0), (0,)),
            )
            for number, (kind, reward) in enumerate(rows)
        ],
        {},
        0,
    )


def test_a_rollout_is_drawn_in_proportion_to_its_reward() -> None:
    sources = by_reward(
        kept_of(("shop", 1.0), ("shop", 0.5), ("product", 0.5), ("shop", 0.25)), 0.6
    )
    drawn = {source.name: source.weight / len(source.examples) for source in sources}
    part = 0.6 / (1.0 + 0.5 + 0.5 + 0.25)
    assert drawn == pytest.approx(
        {"rollouts": part, "rollouts-0.5": part / 2, "rollouts-0.25": part / 4}
    )
    assert sum(source.weight for source in sources) == pytest.approx(0.6)


def test_a_row_stands_as_often_as_the_bucket_of_its_kind_says() -> None:
    found = kept_of(("voucher", 1.0), ("product", 1.0), ("shop", 1.0), ("voucher", 1.0))
    (source,) = by_bucket(found, 0.5, {"voucher": 3, "shop": 2})
    assert [example.ids[0] for example in source.examples] == [0, 0, 0, 1, 2, 2, 3, 3, 3]
    assert source.weight == 0.5


def numbered(name: str, first: int, count: int, weight: float) -> Source:
    """A source whose rows are told by their first id."""
    return Source(name, [Example((first + at, 0), (0,)) for at in range(count)], weight)


def test_the_corpus_has_its_share_beside_the_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = numbered("corpus", 100, 3, 0.0).examples
    monkeypatch.setattr(kept, "examples_of", lambda *_: corpus)
    context: Any = SimpleNamespace(name="rejection", rows=())
    rows = by_reward(kept_of(("shop", 1.0)), 0.75)
    assert mixed(rows, 0.25, context, None, {}) == [*rows, Source("trajectories", corpus, 0.25)]
    assert mixed(rows, 0.0, context, None, {}) == rows


def test_parts_of_batches_are_drawn_by_the_weight_of_their_source() -> None:
    few, many = numbered("few", 0, 40, 0.25), numbered("many", 100, 40, 0.75)
    mix = Mixture([(each.name, each.examples, each.weight) for each in (few, many)], 8, seed=1)
    drawn = [int(mix.draw(0).inputs[0, 0]) >= 100 for _ in range(2000)]
    assert sum(drawn) / 2000 == pytest.approx(0.75, abs=0.04)


def test_trained_tokens_are_counted_and_a_resumed_run_counts_those_before_it() -> None:
    long = Source("long", [Example((1, 2, 3, 4, 0), (1, 3))] * 5, 0.5)
    sources = [
        (each.name, each.examples, each.weight) for each in (numbered("few", 0, 4, 0.5), long)
    ]
    straight, resumed = (Mixture(sources, 12, seed=1) for _ in range(2))
    labels = [len(straight.draw(0).labels) for _ in range(30)]
    assert len(set(labels)) > 1
    assert straight.trained == sum(labels)
    resumed.skip_to(20)
    assert resumed.trained == sum(labels[:20])
    for _ in range(10):
        resumed.draw(0)
    assert resumed.trained == straight.trained


def test_an_epoch_holds_every_row_and_each_source_has_its_share(tmp_path: Path) -> None:
    few, many = numbered("few", 0, 2, 0.25), numbered("many", 100, 9, 0.75)
    ids = [example.ids[0] for example in mixture([few, many], tmp_path)]
    assert sorted(ids) == [0, 0, 1, *range(100, 109)]
