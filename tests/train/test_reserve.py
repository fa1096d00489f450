"""What a recipe holds back is shown to no stage; the student's own rollouts run nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.corpus.rows import CorpusRow
from palio.evaluate.experiment.config import LabConfig
from palio.judging.encoders import default_encoder
from palio.records import ConfigError, InputError, Message, to_json
from palio.train.ground import Ground
from palio.train.inputs import Reserve, taught
from palio.train.reading import read_recipe
from palio.train.recipe import DataConfig, Recipe
from palio.train.rollouts import read_rollouts
from palio.train.run import Options, train
from tests.train.conftest import Shop
from tests.train.test_stages import SHORT, SMALL

BARE = Options(uncertified=True)
PROBLEMS = 18


def row(problem: str, cluster: str, messages: Sequence[Message] = ()) -> CorpusRow:
    return CorpusRow(
        messages=tuple(message.to_openai() for message in messages),
        tools="[]",
        trajectory_id=problem,
        problem_id=problem,
        cluster_id=cluster,
        agent="careful",
        kind="product",
    )


@given(st.lists(st.integers(0, 40), max_size=120), st.floats(0, 0.99))
def test_whole_clusters_are_held_back_and_growth_moves_none(
    clusters: list[int], share: float
) -> None:
    rows = [row(f"p{at}", f"c{cluster}") for at, cluster in enumerate(clusters)]
    reserve, earlier = Reserve(rows, share), Reserve(rows[: len(rows) // 2], share)
    held = {each.cluster_id for each in rows if reserve.holds(each.problem_id)}
    assert all(reserve.holds(each.problem_id) == (each.cluster_id in held) for each in rows)
    assert all(
        earlier.holds(each.problem_id) == reserve.holds(each.problem_id)
        for each in rows[: len(rows) // 2]
    )


def test_the_share_is_about_what_was_asked_for() -> None:
    rows = [row(f"p{at}", f"c{at}") for at in range(4000)]
    kept, reserve = taught(rows, DataConfig(reserve=0.25))
    assert len(kept) == pytest.approx(3000, abs=100)  # 3.7 standard deviations
    assert not any(reserve.holds(each.problem_id) for each in kept)
    every, none = taught(rows, DataConfig())
    assert len(every) == 4000
    assert not any(none.holds(each.problem_id) for each in rows)
    with pytest.raises(InputError, match="holds all 1 rows back"):
        taught(rows[:1], DataConfig(reserve=0.999999))
    with pytest.raises(ConfigError, match="reserve"):
        DataConfig(reserve=1.0)


@pytest.fixture(scope="module")
def ground(shop: Shop) -> Ground:
    some = shop.problems[:PROBLEMS]
    return Ground(some, {some[0].catalogue: shop.world}, default_encoder())


@pytest.fixture(scope="module")
def corpus(
    shop: Shop, talks: list[Sequence[Message]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("reserve") / "train.jsonl"
    rows = [
        row(problem.problem_id, f"cluster of {problem.problem_id}", talk)
        for problem, talk in zip(shop.problems, talks, strict=True)
    ]
    path.write_bytes(b"".join(to_json(each) + b"\n" for each in rows))
    return path


def recipe(reserve: float, *stages: dict[str, Any]) -> Recipe:
    plain = {"name": "t", "model": SMALL, "stage": list(stages), "data": {"reserve": reserve}}
    return read_recipe(plain)


def test_a_chain_shows_one_part_and_rolls_out_on_the_other(
    shop: Shop, corpus: Path, ground: Ground, tmp_path: Path
) -> None:
    lessons = {"samples": 1, "temperature": 0.0, "top_p": 1.0, "model": "scripted-careful"}
    teacher = {"kind": "teacher", "mix": 0.5, "sampling": {**lessons, "threads": 4}, **SHORT}
    tried = {"samples": 1, "threads": 4, "max_tokens": 16}
    rejection = {"kind": "rejection", "sampling": tried, **SHORT}
    told = recipe(0.4, {"kind": "sft", **SHORT}, teacher, rejection)
    with pytest.raises(InputError, match="no rollout was a success"):  # after 8,000 tokens
        train(told, corpus, tmp_path, ground=ground, options=BARE)
    rows = [row(each.problem_id, f"cluster of {each.problem_id}") for each in shop.problems]
    shown, reserve = taught(rows, told.data)
    shared = {each.problem_id for each in ground.problems}
    held = {problem for problem in shared if reserve.holds(problem)}
    assert 0 < len(held) < PROBLEMS
    assert {each.problem_id for each in read_rollouts(tmp_path / "teacher")} == shared - held
    assert {each.problem_id for each in read_rollouts(tmp_path / "rejection")} == held
    first = train(recipe(0.4, {"kind": "sft", **SHORT}), corpus, tmp_path / "sft", options=BARE)
    assert first.stages[0].counts["trajectories"] == len(shown) < len(rows)


def test_a_stage_without_problems_of_its_own_is_refused(
    corpus: Path, ground: Ground, tmp_path: Path
) -> None:
    rejection = {"kind": "rejection", "sampling": {"samples": 1}, **SHORT}
    told = recipe(1e-9, {"kind": "sft", **SHORT}, rejection)
    with pytest.raises(InputError, match="none is held back"):
        train(told, corpus, tmp_path, ground=ground, options=BARE)


def test_a_lab_takes_no_recipe_that_holds_rows_back(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    stage = '[[stage]]\nkind = "base"\n[[stage]]\nkind = "sft"\n'
    path.write_text(f'name = "r"\n[model]\nhidden_size = 64\n[data]\nreserve = 0.2\n{stage}')
    with pytest.raises(ConfigError, match="reserve"):
        LabConfig(recipe=str(path)).recipe_of(0)
