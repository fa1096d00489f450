"""The four signals rise with what they name, stay in [0, 1], and choose the rows of a problem."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.corpus.candidate import Candidate
from palio.corpus.config import RankingWeights
from palio.corpus.conversation import conversation_digest
from palio.corpus.ranking import Signals, signals
from palio.corpus.selection import best_of_each_problem, without_duplicates
from tests.corpus.making import Turn, conversation, good_turns

SEARCH, LOOK, PICK, END = good_turns("7001")
OTHER = ("search cup.", (("find_product", {"q": "blue cup"}, "[]"),), "")


def measured(*turns: Turn) -> Signals:
    return signals(conversation("q", turns))


def test_depth_counts_thinking_and_calls() -> None:
    assert measured(SEARCH, PICK).depth == pytest.approx(4 / 12)
    assert measured(SEARCH, LOOK, PICK, END).depth == pytest.approx(8 / 12)
    assert measured(*[SEARCH] * 20).depth == 1.0


def test_only_different_searches_are_reformulations() -> None:
    assert measured(SEARCH, PICK).reformulations == 0.0
    assert measured(SEARCH, SEARCH, PICK).reformulations == 0.0
    assert measured(SEARCH, OTHER, PICK).reformulations == pytest.approx(1 / 3)


def test_verification_must_come_before_and_concern_the_recommended_product() -> None:
    assert measured(SEARCH, LOOK, PICK).verification == 1.0
    assert measured(SEARCH, PICK, LOOK).verification == 0.0
    stranger = ("look.", (("view_product_information", {"product_ids": "9"}, "[]"),), "")
    assert measured(SEARCH, stranger, PICK).verification == 0.0
    both = ("both.", (("recommend_product", {"product_ids": "7001,8002"}, "ok"),), "")
    assert measured(SEARCH, LOOK, both).verification == 0.5


def test_loops_and_silent_turns_are_irregular() -> None:
    assert measured(SEARCH, LOOK, PICK, END).regularity == 1.0
    assert measured(SEARCH, SEARCH, PICK, END).regularity == 0.75
    silent = ("", LOOK[1], "")
    assert measured(SEARCH, silent, PICK, END).regularity == 0.75
    assert (
        measured(
            ("hm.", (), "just text"),
        ).regularity
        == 0.0
    )


@given(st.lists(st.sampled_from([SEARCH, LOOK, PICK, END, OTHER]), max_size=20))
def test_signals_and_score_stay_in_the_unit_interval(turns: Sequence[Turn]) -> None:
    found = measured(*turns)
    parts = (found.depth, found.reformulations, found.verification, found.regularity)
    assert all(0 <= part <= 1 for part in parts)
    assert min(parts) - 1e-9 <= found.score(RankingWeights()) <= max(parts) + 1e-9


def test_call_ids_do_not_make_a_conversation_different() -> None:
    one = conversation_digest(conversation("q", (SEARCH, PICK), "a"))
    assert one == conversation_digest(conversation("q", (SEARCH, PICK), "b"))
    assert one != conversation_digest(conversation("r", (SEARCH, PICK), "a"))
    assert one != conversation_digest(conversation("q", (SEARCH, ("x", PICK[1], "")), "a"))


def candidate(name: str, problem: str, score: float, conversation: str = "") -> Candidate:
    flat = Signals(depth=0, reformulations=0, verification=0, regularity=0)
    return Candidate(name, problem, "agent", (0, 0), (conversation or name).encode(), flat, score)


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.uuids().map(str),
        st.sampled_from("pq"),
        st.sampled_from([0.1, 0.5]),
        st.sampled_from("xyz"),
    ),
    unique_by=lambda c: c.trajectory_id,
    max_size=12,
)


@given(CANDIDATES, st.integers(0, 4), st.randoms(use_true_random=False))
def test_selection_is_a_partition_that_ignores_order(
    rows: list[Candidate], most: int, random: object
) -> None:
    once, same = without_duplicates(rows)
    kept, cut = best_of_each_problem(once, most)
    assert sorted([*kept, *(c for c, _ in cut), *(c for c, _ in same)], key=str) == sorted(
        rows, key=str
    )
    assert len({c.conversation for c in once}) == len(once)
    for problem in "pq":
        mine = [c for c in kept if c.problem_id == problem]
        lost = [c for c, _ in cut if c.problem_id == problem]
        assert not most or len(mine) <= most
        assert all(better.standing < worse.standing for better in mine for worse in lost)
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert best_of_each_problem(without_duplicates(rows)[0], most)[0] == kept
