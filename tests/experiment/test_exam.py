"""An examination without holes, or none."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from palio.evaluate.experiment.exam import _greedy_marks
from palio.evaluate.results import EvalResult, summarise
from palio.evaluate.whole import whole
from palio.records import FaultCode, UpstreamError
from palio.records.trajectory import Fault
from tests.evaluate.sample import PROBLEMS, score

BUSY = Fault(code=FaultCode.upstream_timed_out, what="no answer in 300 s")


def result(broken: int) -> EvalResult:
    scores = [
        score(problem.problem_id, 0, success=True)
        if number >= broken
        else score(problem.problem_id, 0, success=False, status="unscored", fault=BUSY)
        for number, problem in enumerate(PROBLEMS)
    ]
    return summarise(
        scores, PROBLEMS, name="p", samples=1, temperature=0.0, seed=0, encoder="lexical-1"
    )


def test_what_infrastructure_broke_gets_another_attempt() -> None:
    results = iter([result(2), result(0)])
    assert whole(lambda: next(results), Path("x")).overall.unscored_rollouts == 0


def test_rollouts_that_the_clock_stopped_are_counted() -> None:
    late = replace(score("p000", 0, True).behaviour, timed_out=True)
    scores = [
        score(problem.problem_id, 0, False, behaviour=late)
        if number < 30
        else score(problem.problem_id, 0, True)
        for number, problem in enumerate(PROBLEMS)
    ]
    made = summarise(
        scores, PROBLEMS, name="a", samples=1, temperature=0.0, seed=0, encoder="lexical-1"
    )
    marks = _greedy_marks(made, PROBLEMS)
    assert (marks["unscored"], marks["timed_out"]) == (0, 30)


def test_a_run_with_holes_is_no_run() -> None:
    results = iter([result(3), result(2)])
    with pytest.raises(UpstreamError) as caught:
        whole(lambda: next(results), Path("arms/x/exam"))
    told = str(caught.value)
    assert "2 rollouts could not be scored" in told
    assert "no answer in 300 s" in told
    assert "arms/x/exam" in told
    assert "the same command tries them again" in told
    assert caught.value.code == FaultCode.upstream_timed_out
