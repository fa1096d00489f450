"""A short run of a suite sees all kinds, whatever the suite's order, and grows without changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from palio.records import Problem
from palio.suites.taking import first_of_each_kind

KINDS = st.sampled_from(("product", "shop", "voucher", "web"))


@st.composite
def suites(draw: st.DrawFn) -> tuple[Problem, ...]:
    rows = draw(st.lists(st.tuples(KINDS, st.sampled_from(("", "easy", "hard"))), max_size=30))
    return tuple(
        Problem(problem_id=f"p{n}", kind=kind, query=f"q{n}", rewards=(), difficulty=level)  # type: ignore[arg-type]
        for n, (kind, level) in enumerate(rows)
    )


@given(suites(), st.integers(0, 40))
def test_kinds_take_turns(problems: tuple[Problem, ...], count: int) -> None:
    taken = first_of_each_kind(problems, count)
    assert len(taken) == (min(count, len(problems)) if count else len(problems))
    assert list(taken) == [problem for problem in problems if problem in taken]
    counts = {kind: sum(p.kind == kind for p in taken) for kind in {p.kind for p in problems}}
    left = {kind for kind in counts if counts[kind] < sum(p.kind == kind for p in problems)}
    # a kind that has problems left has at most one fewer than any other
    assert all(counts[kind] + 1 >= max(counts.values()) for kind in left)


@given(suites(), st.integers(1, 20), st.integers(0, 20))
def test_more_of_them_are_a_superset(problems: tuple[Problem, ...], count: int, more: int) -> None:
    few, many = first_of_each_kind(problems, count), first_of_each_kind(problems, count + more)
    assert {p.problem_id for p in few} <= {p.problem_id for p in many}
