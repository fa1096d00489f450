"""One panel judges every run; processes and threads give what one of them gives, in its order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from palio.judging.encoders import StubEncoder
from palio.records import InputError, JudgeId, Message, Product, ReasoningVerdict, Trajectory
from palio.rollout.verdicts import Judged, Panel, ReasoningJudge, Unknown, judge_all, keep_verdicts
from tests.corpus.making import PROBLEMS, good_turns, made_trajectory


class BinJudge:
    """Gives everything 0.9, and knows which threads asked."""

    judge_id = JudgeId(name="bin", version="1")

    def __init__(self, wait: threading.Barrier | None = None) -> None:
        self._wait = wait

    def verdict(self, trajectory: Trajectory) -> ReasoningVerdict:
        if self._wait is not None:
            self._wait.wait(timeout=20)
        return ReasoningVerdict(
            trajectory_id=trajectory.trajectory_id,
            problem_id=trajectory.problem_id,
            judge=self.judge_id,
            status="judged",
            quality=0.9,
            coefficient=1.0,
        )


def panel(
    judge: ReasoningJudge | None = None, unknown: Unknown = "leave", catalogue: str = "compact-1"
) -> Panel:
    products = {
        problem.rewards[0].product_id: Product(
            product_id=problem.rewards[0].product_id, shop_id="s1", title="Blue mug", price=12.0
        )
        for problem in PROBLEMS
    }
    return Panel(
        PROBLEMS,
        {catalogue: products},
        ("oro", "strict"),
        encoder=StubEncoder(0.0),
        judge=judge,
        unknown=unknown,
    )


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


def test_a_run_that_names_no_catalogue_is_of_its_problem_s() -> None:
    foreign = panel().verdicts(made_trajectory("t", PROBLEMS[0], catalogue=""))
    assert [v.success for v in foreign.outcomes] == [True, True]
    nowhere = [msgspec.structs.replace(problem, catalogue="") for problem in PROBLEMS]
    products = panel().catalogues
    alone = Panel(nowhere, products, ("oro",), encoder=StubEncoder(0.0))
    assert alone.verdicts(made_trajectory("t", PROBLEMS[0], catalogue="")).outcomes
    two = Panel(nowhere, {**products, "other": {}}, ("oro",), encoder=StubEncoder(0.0))
    assert not two.verdicts(made_trajectory("t", PROBLEMS[0], catalogue="")).outcomes


def test_equal_ids_of_two_catalogues_are_two_problems() -> None:
    """Found wrong before: the last problem with an id won, whatever its catalogue."""
    other = msgspec.structs.replace(
        PROBLEMS[0], catalogue="compact-2", rewards=PROBLEMS[1].rewards, query="another"
    )
    products = {**panel().catalogues, "compact-2": panel().catalogues["compact-1"]}
    both = Panel([PROBLEMS[0], other], products, ("oro",), encoder=StubEncoder(0.0))
    assert both.verdicts(made_trajectory("t", PROBLEMS[0])).outcomes[0].success
    elsewhere = made_trajectory("t", PROBLEMS[0], catalogue="compact-2")
    assert not both.verdicts(elsewhere).outcomes[0].success


@pytest.mark.parametrize(
    ("change", "what"), [({"problem_id": "x"}, "problem"), ({"catalogue": "x"}, "catalogue")]
)
def test_unknown_runs_are_refused_or_left(change: dict[str, str], what: str) -> None:
    stranger = msgspec.structs.replace(made_trajectory("t", PROBLEMS[0]), **change)
    assert panel(unknown="leave").verdicts(stranger).outcomes == ()
    with pytest.raises(InputError, match=f"the {what} of this run") as caught:
        panel(unknown="refuse").verdicts(stranger)
    assert "run t" in caught.value.where


def test_another_judge_is_a_parameter() -> None:
    verdicts = panel(BinJudge()).verdicts(made_trajectory("t", PROBLEMS[0]))
    assert verdicts.reasoning is not None
    assert verdicts.reasoning.judge == BinJudge.judge_id
    assert panel(BinJudge()).judge.judge_id.name == "bin"
    in_processes = list(judge_all(stream(9), panel(BinJudge()), workers=2, chunk=2))
    assert all(row.verdicts.reasoning == reasoning(f"t{n}") for n, row in enumerate(in_processes))


def reasoning(name: str) -> ReasoningVerdict:
    number = int(name[1:])
    return BinJudge().verdict(made_trajectory(name, PROBLEMS[number % 5]))


def test_threads_ask_the_judge_at_the_same_time_and_keep_the_order() -> None:
    # the barrier opens only when 4 runs are judged at a time
    waiting = panel(BinJudge(threading.Barrier(4)))
    rows = list(judge_all(stream(12), waiting, threads=4))
    assert [row.trajectory.trajectory_id for row in rows] == [f"t{n}" for n in range(12)]
    assert rows == list(judge_all(stream(12), panel(BinJudge())))


def test_thinking_written_after_the_fact_is_shown_to_no_judge() -> None:
    class Never(BinJudge):
        def verdict(self, trajectory: Trajectory) -> ReasoningVerdict:
            raise AssertionError(trajectory.trajectory_id)

    run = made_trajectory("t", PROBLEMS[0])
    marked = msgspec.structs.replace(run, source="salvage:abc")
    thought = Message(role="assistant", content="a", reasoning_content="b", rationalised=True)
    mixed = msgspec.structs.replace(run, messages=(*run.messages, thought))
    for salvaged in (marked, mixed):
        assert panel(Never()).verdicts(salvaged).reasoning is None


def test_kept_verdicts_are_all_of_them_once(tmp_path: Path) -> None:
    rows = list(judge_all(stream(3), panel()))
    assert keep_verdicts(tmp_path, rows) == 3 * 4
    assert keep_verdicts(tmp_path, rows) == 0
