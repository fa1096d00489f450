"""Judging a stream in processes gives what judging in this one gives, in the same order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palio.corpus.judged import Judged, Panel, judge_all
from palio.judging.encoders import StubEncoder
from palio.records import InputError, Product, Trajectory
from tests.corpus.making import PROBLEMS, good_turns, made_trajectory


def panel() -> Panel:
    products = {
        problem.rewards[0].product_id: Product(
            product_id=problem.rewards[0].product_id, shop_id="s1", title="Blue mug", price=12.0
        )
        for problem in PROBLEMS
    }
    return Panel(PROBLEMS, {"compact-1": products}, encoder=StubEncoder(0.0))


def stream(count: int) -> Iterator[Trajectory]:
    for number in range(count):
        yield made_trajectory(f"t{number}", PROBLEMS[number % 5])


def test_every_verdict_is_there() -> None:
    verdicts = panel().verdicts(made_trajectory("t", PROBLEMS[0]))
    assert {v.profile: v.success for v in verdicts.outcomes} == {"oro": True, "strict": True}
    assert verdicts.reasoning is not None
    assert verdicts.reasoning.status == "judged"
    assert verdicts.richness is not None
    assert verdicts.richness.richness == 1.0
    assert verdicts.unresolved == ()


def test_an_id_outside_the_catalogue_is_unresolved() -> None:
    wrong = made_trajectory("t", PROBLEMS[0], good_turns("4711"))
    verdicts = panel().verdicts(wrong)
    assert verdicts.unresolved == ("4711",)
    assert not any(v.success for v in verdicts.outcomes)


def test_without_the_catalogue_nothing_is_claimed() -> None:
    verdicts = panel().verdicts(made_trajectory("t", PROBLEMS[0], catalogue="elsewhere"))
    assert verdicts.outcomes == ()
    assert verdicts.unresolved is None


def test_processes_judge_like_this_one() -> None:
    alone = list(judge_all(stream(21), panel()))
    together = list(judge_all(stream(21), panel(), workers=2, chunk=4))
    assert together == alone
    assert [row.trajectory.trajectory_id for row in alone] == [f"t{n}" for n in range(21)]


def test_only_a_few_chunks_are_in_flight() -> None:
    taken = 0

    def counted() -> Iterator[Trajectory]:
        nonlocal taken
        for trajectory in stream(200):
            taken += 1
            yield trajectory

    rows = judge_all(counted(), panel(), workers=1)
    first: Judged = next(rows)
    assert (first.trajectory.trajectory_id, taken) == ("t0", 1)
    pooled = judge_all(counted(), panel(), workers=2, chunk=4)
    taken = 0
    next(pooled)
    assert taken <= 5 * 4
    pooled.close()  # type: ignore[attr-defined]


def test_nothing_to_judge() -> None:
    assert list(judge_all([], panel(), workers=2)) == []
    with pytest.raises(InputError, match="at least 1"):
        list(judge_all([], panel(), workers=0))
