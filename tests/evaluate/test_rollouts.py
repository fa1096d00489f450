"""An interrupted evaluation goes on where it stopped: nothing lost, nothing run twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest

from palio.evaluate.rollouts import (
    ROWS,
    Job,
    Progress,
    RolloutLog,
    RolloutRow,
    carried_out,
    open_jobs,
    read_rollouts,
    read_scores,
    roll_out,
    sample_seed,
    thread_hands,
)
from palio.records import (
    ConfigError,
    Ending,
    Fault,
    FaultCode,
    InputError,
    JudgeId,
    OutcomeVerdict,
    Problem,
    Profile,
    ResumeError,
    Trajectory,
)
from tests.evaluate.sample import PROBLEMS, trajectory

IDENTITY = {"policy": "fake", "settings": {"samples": 2}}


def run_one(problem: Problem, seed: int, attempt: int) -> Trajectory:
    return trajectory(
        trajectory_id=f"{problem.problem_id}-{seed}-{attempt}",
        problem_id=problem.problem_id,
        seed=seed,
        attempt=attempt,
        duration_s=0.5,
    )


def judge(problem: Problem, made: Trajectory, profile: Profile) -> OutcomeVerdict:
    return OutcomeVerdict(
        trajectory_id=made.trajectory_id,
        problem_id=problem.problem_id,
        judge=JudgeId(name="fake", version="1"),
        profile=profile,
        status="unscored" if made.fault else "scored",
        scores={"rule": 0.5},
        success=made.seed % 2 == 0,
    )


def evaluate(
    folder: Path, runner=run_one, scorer=judge, threads: int = 3, **options: object
) -> RolloutLog:
    with RolloutLog(folder, IDENTITY) as log:
        jobs = open_jobs(PROBLEMS[:10], 2, 7, log.scores)
        with thread_hands(runner, scorer, ("oro", "strict"), threads) as hands:
            roll_out(jobs, hands, log, headline="oro", **options)  # type: ignore[arg-type]
    return log


def test_every_job_is_run_scored_and_written_once(tmp_path: Path) -> None:
    seen: list[Progress] = []
    log = evaluate(tmp_path, progress=seen.append)
    rows = list(read_rollouts(tmp_path))
    assert len(log.scores) == len(rows) == 20
    assert {(row.score.problem_id, row.sample) for row in rows} == set(log.scores)
    assert all(row.score.rule == 0.5 and row.score.behaviour.turns == 2 for row in rows)
    assert all(len(row.verdicts) == 2 for row in rows)
    assert [one.done for one in seen] == list(range(1, 21))
    assert seen[-1].successes == sum(row.score.success["oro"] for row in rows)


def test_seeds_depend_on_problem_and_sample_alone(tmp_path: Path) -> None:
    log = evaluate(tmp_path)
    seeds = {row.trajectory.seed for row in read_rollouts(tmp_path)}
    assert len(seeds) == 20
    assert open_jobs(PROBLEMS[3:4], 2, 7, {})[1].seed == sample_seed(7, PROBLEMS[3].problem_id, 1)
    assert sample_seed(7, "p", 0) != sample_seed(8, "p", 0)
    assert log.scores


def test_finished_rollouts_are_not_run_again(tmp_path: Path) -> None:
    evaluate(tmp_path)

    def refuse(problem: Problem, seed: int, attempt: int) -> Trajectory:
        raise AssertionError(f"{problem.problem_id} ran twice")

    assert len(evaluate(tmp_path, refuse).scores) == 20
    assert len(list(read_rollouts(tmp_path))) == 20


def test_what_infrastructure_broke_gets_another_attempt(tmp_path: Path) -> None:
    def flaky(problem: Problem, seed: int, attempt: int) -> Trajectory:
        made = run_one(problem, seed, attempt)
        if attempt == 0 and problem.problem_id == "p004":
            fault = Fault(code=FaultCode.upstream_timed_out, what="nobody answered")
            return msgspec.structs.replace(made, fault=fault, ending=Ending.infra)
        return made

    first = evaluate(tmp_path, flaky)
    assert first.scores["p004", 0].status == "unscored"
    assert first.scores["p004", 0].success == {"oro": False, "strict": False}
    second = evaluate(tmp_path, flaky)
    assert second.scores["p004", 0].status == "scored"
    assert second.scores["p004", 0].attempt == 1
    assert len(list(read_rollouts(tmp_path))) == 22


def test_a_torn_last_line_is_cut_off_and_run_again(tmp_path: Path) -> None:
    evaluate(tmp_path)
    path = tmp_path / ROWS
    path.write_bytes(path.read_bytes()[:-100])
    assert len(read_scores(tmp_path)) == len(list(read_rollouts(tmp_path))) == 19
    assert not path.read_bytes().endswith(b"\n"), "who only reads leaves a writer's file alone"
    assert len(evaluate(tmp_path).scores) == 20
    assert len(list(read_rollouts(tmp_path))) == 20


def test_a_last_line_without_its_end_counts_and_is_not_run_again(tmp_path: Path) -> None:
    evaluate(tmp_path)
    data = (tmp_path / ROWS).read_bytes()
    (tmp_path / ROWS).write_bytes(data[:-1])
    assert len(read_scores(tmp_path)) == len(list(read_rollouts(tmp_path))) == 20
    evaluate(tmp_path)
    assert (tmp_path / ROWS).read_bytes() == data


def test_a_broken_whole_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    evaluate(tmp_path)
    lines = (tmp_path / ROWS).read_bytes().splitlines(keepends=True)
    lines[4] = b'{"sample": "x"}\n'
    (tmp_path / ROWS).write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=r"rollouts.jsonl:5"), RolloutLog(tmp_path, IDENTITY):
        pass


def test_another_evaluation_is_refused_and_the_keys_named(tmp_path: Path) -> None:
    with RolloutLog(tmp_path, IDENTITY):
        pass
    other = {**IDENTITY, "settings": {"samples": 8}}
    with pytest.raises(ResumeError, match="settings differ"), RolloutLog(tmp_path, other):
        pass


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """Two that append to one file would tear each other's lines and do the work twice."""
    evaluate(tmp_path)
    before = (tmp_path / ROWS).read_bytes()
    holding = "from tests.evaluate import test_rollouts as t; import pathlib, sys, time\n"
    holding += "with t.RolloutLog(pathlib.Path(sys.argv[1]), t.IDENTITY): print(1, flush=True); "
    holding += "time.sleep(60)"
    words = [sys.executable, "-c", holding, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        with pytest.raises(ConfigError, match="another process") as refused:
            evaluate(tmp_path)
        assert str(tmp_path) in str(refused.value)
        assert len(read_scores(tmp_path)) == 20, "reading needs no turn"
        other.kill()
    assert (tmp_path / ROWS).read_bytes() == before
    assert len(evaluate(tmp_path).scores) == 20


def test_an_error_stops_the_pool_and_keeps_what_ended(tmp_path: Path) -> None:
    started = Counter[str]()
    lock = threading.Lock()

    def scorer(problem: Problem, made: Trajectory, profile: Profile) -> OutcomeVerdict:
        with lock:
            started[problem.problem_id] += 1
        if problem.problem_id == "p005":
            raise InputError("the catalogue is gone")
        return judge(problem, made, profile)

    with pytest.raises(InputError, match="catalogue is gone"):
        evaluate(tmp_path, scorer=scorer, threads=1)
    assert 5 <= len(list(read_rollouts(tmp_path))) < 12
    assert len(started) < 10


class AtOnce:
    """Hands whose jobs have all ended when they are first looked at: the slow reader's case."""

    flight = 20

    def submit(self, job: Job) -> Future[RolloutRow]:
        future: Future[RolloutRow] = Future()
        try:
            future.set_result(carried_out(job, run_one, broken_at_five, ("oro", "strict")))
        except InputError as error:
            future.set_exception(error)
        return future


def broken_at_five(problem: Problem, made: Trajectory, profile: Profile) -> OutcomeVerdict:
    if problem.problem_id == "p005":
        raise InputError("the catalogue is gone")
    return judge(problem, made, profile)


def test_what_ended_together_with_an_error_is_kept(tmp_path: Path) -> None:
    with (
        RolloutLog(tmp_path, IDENTITY) as log,
        pytest.raises(InputError, match="catalogue is gone"),
    ):
        roll_out(open_jobs(PROBLEMS[:10], 2, 7, log.scores), AtOnce(), log, headline="oro")
    assert len(list(read_rollouts(tmp_path))) == 18, "all but the two that could not be scored"


CHILD = """
import sys, time
from pathlib import Path
from tests.evaluate import test_rollouts as t

def slow(problem, seed, attempt):
    time.sleep(0.05)
    return t.run_one(problem, seed, attempt)

t.evaluate(Path(sys.argv[1]), slow)
"""


def test_sigkill_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], cwd=Path(__file__).parents[2]
    )
    path = tmp_path / ROWS
    deadline = time.monotonic() + 300
    while not (path.exists() and path.read_bytes().count(b"\n") >= 6):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    before = [row.trajectory.trajectory_id for row in whole_rows(path)]
    assert 6 <= len(before) < 20
    ran: list[str] = []

    def noting(problem: Problem, seed: int, attempt: int) -> Trajectory:
        made = run_one(problem, seed, attempt)
        ran.append(made.trajectory_id)
        return made

    evaluate(tmp_path, noting)
    after = [row.trajectory.trajectory_id for row in read_rollouts(tmp_path)]
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 20
    assert not set(ran) & set(before)


def whole_rows(path: Path) -> list:
    from palio.evaluate.rollouts import RolloutRow
    from palio.records import from_json

    lines = path.read_bytes().splitlines(keepends=True)
    return [from_json(line, RolloutRow) for line in lines if line.endswith(b"\n")]
