from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from palio.arena import StandingEntry, Standings, standing_entry, standings, wilson_interval
from palio.arena.standings import holds_zero
from palio.judging import EvidenceJudge, OutcomeScorer, StubEncoder, final_score
from palio.records import AgentRef, Ending, canonical_json, from_json, to_json
from tests.judging.runs import answered, dispatch, fault, problem, product, reward


def entry(
    agent: str, at: int, success: float = 1.0, quality: float = 0.9, **more: Any
) -> StandingEntry:
    return StandingEntry(
        agent=agent, version="1", problem_id=f"p{at}", success=success, quality=quality,
        **{"status": "counted", **more},
    )  # fmt: skip


def race(agent: str, successes: int, n: int, quality: float = 0.9) -> list[StandingEntry]:
    return [entry(agent, at, float(at < successes), quality) for at in range(n)]


def ranks(result: Standings) -> list[tuple[str, int | None, int | None]]:
    return [(row.agent, row.rank, row.group) for row in result.ranked]


def test_final_is_success_rate_times_the_coefficient_of_mean_quality() -> None:
    rows = [entry("a", 0, 1, 0.9), entry("a", 1, 0, 0.1), entry("a", 2, 1, 0.5)]
    (row,) = standings(rows).ranked
    assert row.n == 3
    assert row.success_rate == pytest.approx(2 / 3)
    assert row.mean_quality == pytest.approx(0.5)
    assert row.final == pytest.approx(2 / 3 * 0.7375)
    assert (row.success_low, row.success_high) == wilson_interval(2, 3)
    assert row.final_low == pytest.approx(row.success_low * 0.7375)


def test_competition_ranks_and_equal_rows() -> None:
    rows = race("b", 90, 100) + race("a", 90, 100) + race("c", 10, 100) + race("d", 100, 100)
    assert ranks(standings(rows)) == [("d", 1, 1), ("a", 2, 2), ("b", 2, 2), ("c", 4, 3)]


def test_few_problems_never_look_certain() -> None:
    assert [row.group for row in standings(race("a", 5, 5) + race("b", 0, 5)).ranked] == [1, 1]
    assert [row.group for row in standings(race("a", 8, 8) + race("b", 0, 8)).ranked] == [1, 2]


def test_a_paired_difference_tells_more_than_overlapping_intervals() -> None:
    n = 100
    rows = race("a", 60, n) + race("b", 48, n)  # b fails where a does, and on 12 more
    first, second = standings(rows).ranked
    assert first.final_low < second.final_high
    assert (first.group, second.group) == (1, 2)


def test_without_common_problems_intervals_decide() -> None:
    far = [entry("b", 1000 + at, 0.0) for at in range(50)]
    near = [entry("c", 2000 + at, float(at < 45)) for at in range(50)]
    groups = {row.agent: row.group for row in standings(race("a", 50, 50) + far + near).ranked}
    assert groups["a"] == groups["c"] == 1
    assert groups["b"] == 2


def test_ineligible_agents_are_apart_and_never_ranked() -> None:
    rows = race("a", 1, 2) + [replace(row, eligible=False) for row in race("oracle", 2, 2)]
    rows.append(entry("mixed", 0, eligible=True))
    rows.append(entry("mixed", 1, eligible=False))
    result = standings(rows)
    assert ranks(result) == [("a", 1, 1)]
    assert {row.agent for row in result.ineligible} == {"oracle", "mixed"}
    assert all(row.rank is None for row in result.ineligible)


def test_open_runs_stand_apart_with_the_worst_case() -> None:
    rows = [*race("a", 2, 2), entry("a", 8, status="unscored"), entry("a", 9, status="unjudged")]
    (row,) = standings(rows).ranked
    assert (row.n, row.unscored, row.unjudged) == (2, 1, 1)
    assert row.final == 1
    assert row.worst_case == pytest.approx(final_score(0.5, 0.45))
    only = standings([entry("b", 0, status="unscored")])
    assert only.ranked == ()
    assert (only.unranked[0].final, only.unranked[0].worst_case) == (None, 0)


def test_nobody_raced() -> None:
    assert standings([]).problems == 0


SHOP = {"a": product("a")}
FOUND = dispatch("find_product", {}, [{"product_id": "a"}])


def judged(**fields: Any) -> StandingEntry:
    run = answered("a", FOUND, **fields)
    outcome = OutcomeScorer(SHOP, StubEncoder()).verdict(
        problem("product", reward("a")), run, "oro"
    )
    return standing_entry(run, outcome, EvidenceJudge().verdict(run))


def test_entries_come_from_verdicts() -> None:
    assert judged() == StandingEntry(
        agent="someone", version="1", problem_id="p1", status="counted", success=1, quality=0.1
    )
    crash = judged(ending=Ending.crashed, fault=fault(1001))
    assert (crash.status, crash.success, crash.quality) == ("counted", 0, 0)
    assert judged(ending=Ending.infra, fault=fault(3001)).status == "unscored"
    assert not judged(isolation="inline").eligible
    assert not judged(eligible=False).eligible
    assert not judged(agent=AgentRef(name="o", kind="oracle")).eligible
    run = answered("a", FOUND)
    outcome = OutcomeScorer(SHOP, StubEncoder()).verdict(
        problem("product", reward("a")), run, "oro"
    )
    assert standing_entry(run, outcome, None).status == "unjudged"
    hung = answered("a", ending=Ending.timed_out, fault=fault(1002))
    outcome = OutcomeScorer(SHOP, StubEncoder()).verdict(problem(), hung, "oro")
    assert standing_entry(hung, outcome, None).status == "counted", "failures need no judge"


entries = st.lists(
    st.builds(
        entry,
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 5),
        st.sampled_from([0.0, 1.0]),
        st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]),
        status=st.sampled_from(["counted", "counted", "unscored", "unjudged"]),
        eligible=st.just(True),
    ),
    max_size=25,
)


@given(entries, st.randoms(use_true_random=False))
def test_the_order_of_rows_says_nothing(rows: list[StandingEntry], rng: random.Random) -> None:
    shuffled = rng.sample(rows, len(rows))
    assert canonical_json(standings(rows)) == canonical_json(standings(shuffled))


@given(entries, st.permutations(["a", "b", "c"]))
def test_the_names_of_agents_say_nothing(rows: list[StandingEntry], names: list[str]) -> None:
    rename = dict(zip("abc", names, strict=True))
    renamed = standings([replace(row, agent=rename[row.agent]) for row in rows])
    expected = {rename[row.agent]: replace(row, agent="") for row in standings(rows).ranked}
    assert {row.agent: replace(row, agent="") for row in renamed.ranked} == expected


def finals(rows: list[StandingEntry]) -> dict[str, float]:
    return {row.agent: row.final or 0.0 for row in standings(rows).ranked}


@given(entries, st.sampled_from(["a", "b"]), st.integers(0, 9))
def test_open_runs_never_change_a_score(rows: list[StandingEntry], name: str, at: int) -> None:
    more = [entry(name, at, status="unscored"), entry(name, at, status="unjudged")]
    after = standings(rows + more)
    assert finals(rows) == {row.agent: row.final for row in after.ranked}
    assert ranks(standings(rows)) == ranks(after)


@given(entries, st.data())
def test_crashing_never_helps(rows: list[StandingEntry], data: st.DataObject) -> None:
    counted = [at for at, row in enumerate(rows) if row.status == "counted"]
    if not counted:
        return
    at = data.draw(st.sampled_from(counted))
    crashed = [*rows[:at], replace(rows[at], success=0.0, quality=0.0), *rows[at + 1 :]]
    name = rows[at].agent
    assert finals(crashed)[name] <= finals(rows)[name] + 1e-12


@given(entries)
def test_rows_are_consistent(rows: list[StandingEntry]) -> None:
    result = standings(rows)
    scores = [row.final or 0.0 for row in result.ranked]
    assert scores == sorted(scores, reverse=True)
    for row in result.ranked:
        better = sum(round(score, 12) > round(row.final or 0, 12) for score in scores)
        assert row.rank == better + 1
        assert row.worst_case <= (row.final or 0) + 1e-12
        assert row.final_low - 1e-12 <= (row.final or 0) <= row.final_high + 1e-12
    groups = [row.group or 0 for row in result.ranked]
    assert groups == sorted(groups)
    assert set(groups) == set(range(1, max(groups, default=0) + 1))
    assert from_json(to_json(result), Standings) == result


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(32, 75, 0.321, 0.539), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson(successes: float, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-4)


def test_the_paired_interval_is_symmetric() -> None:
    differences = [1.0] * 12 + [0.0] * 88
    assert not holds_zero(differences)
    assert not holds_zero([-d for d in differences])
    assert holds_zero([])
    assert holds_zero([1.0, -1.0] * 20)
