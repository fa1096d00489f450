"""Dr. GRPO's advantages: reward minus the group's mean; a turn not reached counts 0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.train.rl.advantages import outcome_advantages, token_advantages, turn_advantages

CREDIT = st.floats(0, 1)


@given(st.lists(st.lists(CREDIT, min_size=4, max_size=4), min_size=1, max_size=5))
def test_nothing_is_divided_by_a_spread(groups: list[list[float]]) -> None:
    found = outcome_advantages([reward for group in groups for reward in group], 4)
    for number, group in enumerate(groups):
        mean = sum(group) / 4
        part = found[4 * number : 4 * number + 4]
        assert part == pytest.approx([reward - mean for reward in group])
        assert sum(part) == pytest.approx(0, abs=1e-9)


def test_what_is_unscored_is_no_zero() -> None:
    assert outcome_advantages([1.0, None, 0.0, None], 4) == [0.5, 0.0, -0.5, 0.0]
    assert outcome_advantages([None, None], 2) == [0.0, 0.0]


def test_a_turn_never_reached_counts_as_zero_in_its_mean() -> None:
    earned = [[1.0, 1.0], [1.0], [0.0], [0.0, 0.0]]
    assert turn_advantages(earned, 4) == [[0.5, 0.75], [0.5], [-0.5], [-0.5, -0.25]]


def test_stopping_early_is_never_better_than_the_average_turn() -> None:
    """The sum of a rollout's advantages falls with every turn that it does not take."""
    whole = turn_advantages([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], 2)
    early = turn_advantages([[1.0], [1.0, 1.0, 1.0]], 2)
    assert sum(early[0]) == 0.0 == sum(whole[0])
    assert sum(early[1]) == 1.0, "going on is better than the group's mean"


@given(st.lists(st.lists(CREDIT, max_size=5), min_size=6, max_size=6))
def test_each_turn_of_a_group_sums_to_the_part_that_was_not_reached(
    earned: list[list[float]],
) -> None:
    for kind in ("step", "to_go"):
        found = turn_advantages(earned, 6, kind)  # type: ignore[arg-type]
        assert [len(each) for each in found] == [len(each) for each in earned]
        for turn in range(5):
            reached = [each[turn] for each in found if turn < len(each)]
            if len(reached) == 6:
                assert sum(reached) == pytest.approx(0, abs=1e-9)
            else:
                assert sum(reached) >= -1e-9


def test_to_go_lets_a_turn_answer_for_what_follows() -> None:
    assert turn_advantages([[0.0, 1.0], [0.0, 0.0]], 2, "to_go") == [[0.5, 0.5], [-0.5, -0.5]]


def test_to_go_pays_for_length_and_its_mean_does_not() -> None:
    """Both do at each turn what the teacher would; one problem takes it two turns more."""
    both: list[list[float | None]] = [[1.0] * 3, [1.0] * 5]
    short, long = turn_advantages(both, 2, "to_go")
    assert (short, long) == ([-1.0] * 3, [1.0] * 4 + [0.5])
    assert turn_advantages(both, 2, "to_go_mean") == [[0.0] * 3, [0.0] * 5]


@given(st.lists(st.integers(1, 7), min_size=4, max_size=4), st.floats(0, 1))
def test_equal_steps_are_worth_the_same_however_many(turns: list[int], credit: float) -> None:
    for each in turn_advantages([[credit] * n for n in turns], 4, "to_go_mean"):
        assert each == pytest.approx([0.0] * len(each), abs=1e-9)


@given(st.integers(1, 5), st.integers(1, 5))
def test_who_ends_where_the_teacher_would_go_on_is_below_the_mean(before: int, after: int) -> None:
    early, whole = turn_advantages(
        [[1.0] * before + [0.0], [1.0] * (before + after)], 2, "to_go_mean"
    )
    assert all(one < 0 for one in early)
    assert all(one > 0 for one in whole[: before + 1])
    assert whole[before + 1 :] == pytest.approx([0.0] * (after - 1))


@given(st.lists(st.lists(CREDIT, max_size=5), min_size=6, max_size=6))
def test_those_that_reached_a_turn_share_out_nothing(earned: list[list[float]]) -> None:
    found = turn_advantages(earned, 6, "to_go_mean")
    assert [len(each) for each in found] == [len(each) for each in earned]
    for turn in range(5):
        reached = [each[turn] for each in found if turn < len(each)]
        assert sum(reached) == pytest.approx(0, abs=1e-9)


def test_the_mean_to_go_knows_nothing_before_a_turn_without_an_answer() -> None:
    earned = [[1.0, None, 1.0], [0.0, 0.0, 0.0]]
    assert turn_advantages(earned, 2, "to_go_mean") == [[0.0, 0.0, 0.5], [0.0, 0.0, -0.5]]


def test_an_unscored_rollout_has_no_part_in_the_mean() -> None:
    assert turn_advantages([[1.0], None, [0.0]], 3) == [[0.5], [], [-0.5]]


def test_a_turn_without_an_answer_has_no_part_in_the_mean_of_that_turn() -> None:
    earned = [[1.0, None], [0.0, 1.0], [0.5, 0.0]]
    assert turn_advantages(earned, 3) == [[0.5, 0.0], [-0.5, 0.5], [0.0, -0.5]]
    assert turn_advantages([[None, None], [None]], 2) == [[0.0, 0.0], [0.0]]


def test_to_go_knows_nothing_before_a_turn_without_an_answer() -> None:
    earned = [[1.0, None, 1.0], [0.0, 0.0, 0.0]]
    assert turn_advantages(earned, 2, "to_go") == [[0.0, 0.0, 0.5], [0.0, 0.0, -0.5]]


def test_tokens_get_their_turns_advantage_and_the_outcomes() -> None:
    row = token_advantages(
        8, [(0, 2), (5, 7)], [0.5, -1.0], 0.25, turn_weight=2.0, outcome_weight=4.0
    )
    assert row == [2.0, 2.0, 0.0, 0.0, 0.0, -1.0, -1.0, 0.0]
    plain = token_advantages(4, [(1, 3)], [], 0.25, turn_weight=2.0, outcome_weight=1.0)
    assert plain == [0.0, 0.25, 0.25, 0.0]
