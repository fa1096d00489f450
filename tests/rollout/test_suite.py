"""A suite runs to its end whatever happens, and a second call runs only what is missing."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from palio.broker.limits import Limits
from palio.records import (
    ConfigError,
    Ending,
    FaultCode,
    IntegrityError,
    ResumeError,
    Trajectory,
    UpstreamError,
)
from palio.rollout import Progress, SuiteReport, final_attempts, read_trajectories, run_suite
from palio.rollout.journal import FILE
from palio.sandbox.inline import InlineDriver
from tests.broker.conftest import Replies, completion
from tests.rollout.agents import jobs, small, written

DOWN = UpstreamError("down", code=FaultCode.upstream_unreachable)
ASKS = """
from src.agent.proxy_client import ProxyClient
from src.agent.agent_interface import execute_tool_call

def agent_main(problem):
    body = {"messages": [{"role": "user", "content": problem["query"]}]}
    if ProxyClient().post("/inference/chat/completions", body):
        execute_tool_call("recommend_product", {"product_ids": "1"})
        execute_tool_call("terminate", {})
    return []
"""


def run(some: Any, out: Path, **more: Any) -> SuiteReport:
    more.setdefault("driver", InlineDriver())
    return run_suite(some, out, **more)


def ids(out: Path) -> Counter[str]:
    return Counter(t.trajectory_id for t in read_trajectories(out / FILE))


def test_each_job_has_one_record(tmp_path: Path) -> None:
    steps: list[Progress] = []
    work = jobs(written(tmp_path / "a"), written(tmp_path / "a", "agent_main = 1", "bad"))
    report = run(work, tmp_path / "out", progress=steps.append, concurrency=3)
    assert (report.jobs, report.ran, report.skipped, report.unscored) == (12, 12, 0, 0)
    assert report.endings == {"terminated": 6, "invalid": 6}
    assert ids(tmp_path / "out") == Counter(job.key(0) for job in work)
    assert [step.done for step in steps] == list(range(1, 13))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["counts"]["jobs"] == 12
    assert manifest["outputs"][FILE].startswith("sha256:")


def test_a_second_call_runs_nothing(tmp_path: Path) -> None:
    work = jobs(written(tmp_path / "a"))
    run(work, tmp_path / "out")
    before = (tmp_path / "out" / FILE).read_bytes()
    report = run(work, tmp_path / "out")
    assert (report.ran, report.skipped) == (0, 6)
    assert (tmp_path / "out" / FILE).read_bytes() == before


def test_a_torn_line_is_set_aside_and_its_run_made_again(tmp_path: Path) -> None:
    work = jobs(written(tmp_path / "a"))
    run(work, tmp_path / "out")
    path = tmp_path / "out" / FILE
    data = path.read_bytes()
    cut = data.rindex(b"\n", 0, len(data) - 1) + 200
    path.write_bytes(data[:cut])
    report = run(work, tmp_path / "out")
    assert (report.ran, report.skipped) == (1, 5)
    assert "torn-1.part" in report.notes[0]
    assert (tmp_path / "out" / "torn-1.part").read_bytes() == data[cut - 199 : cut]
    assert ids(tmp_path / "out") == Counter(job.key(0) for job in work)


def test_a_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    work = jobs(written(tmp_path / "a"))
    run(work, tmp_path / "out")
    path = tmp_path / "out" / FILE
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert run(work, tmp_path / "out").ran == 0
    assert path.read_bytes() == data


def test_a_damaged_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    work = jobs(written(tmp_path / "a"))
    run(work, tmp_path / "out")
    path = tmp_path / "out" / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1][:50] + b"\n", *lines[2:]]))
    with pytest.raises(IntegrityError, match=r"trajectories.jsonl:2"):
        run(work, tmp_path / "out")


def test_a_changed_configuration_is_refused_by_key(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(jobs(written(tmp_path / "a")), out, command="palio race --old")
    changed = jobs(written(tmp_path / "b", "def agent_main(p): return []"))
    with pytest.raises(ResumeError) as caught:
        run(changed, out, limits=Limits(calls=7))
    for words in ("agents.written.digest", "limits.calls: 400 -> 7", "palio race --old"):
        assert words in str(caught.value)
    with pytest.raises(ResumeError, match=r"model_url: absent -> "):
        run(jobs(written(tmp_path / "a")), out, config={"model_url": "http://x"})
    with pytest.raises(ResumeError, match=r"problems: "):
        run(jobs(written(tmp_path / "a"), problems=5), out)


def test_one_folder_one_process(tmp_path: Path) -> None:
    release, inside = threading.Event(), threading.Event()

    class Waiting(InlineDriver):
        def run(self, *arguments: Any) -> Any:
            inside.set()
            release.wait(10)
            return super().run(*arguments)

    work = jobs(written(tmp_path / "a"), problems=1)
    thread = threading.Thread(target=run, args=(work, tmp_path), kwargs={"driver": Waiting()})
    thread.start()
    try:
        assert inside.wait(10)
        with pytest.raises(ConfigError, match="another process"):
            run(work, tmp_path)
    finally:
        release.set()
        thread.join()


def test_the_same_job_twice_is_refused(tmp_path: Path) -> None:
    work = jobs(written(tmp_path / "a"))
    with pytest.raises(ConfigError, match="own seed"):
        run([*work, work[0]], tmp_path / "out")


def test_infra_failures_are_tried_again_and_kept(tmp_path: Path) -> None:
    upstream = Replies(DOWN, DOWN, completion("ok"))
    work = jobs(written(tmp_path / "a", ASKS), problems=1)
    report = run(work, tmp_path / "out", upstream=upstream, retries=2)
    runs = list(read_trajectories(tmp_path / "out" / FILE))
    assert [(t.attempt, str(t.ending)) for t in runs] == [
        (0, "infra"),
        (1, "infra"),
        (2, "terminated"),
    ]
    assert len({t.trajectory_id for t in runs}) == 3
    assert (report.ran, report.unscored) == (1, 0)
    assert [t.attempt for t in final_attempts(runs)] == [2]


def test_infra_failures_are_bounded_and_tried_again_on_resume(tmp_path: Path) -> None:
    work = jobs(written(tmp_path / "a", ASKS), problems=1)
    report = run(work, tmp_path / "out", upstream=Replies(DOWN), retries=1)
    assert (report.endings, report.unscored) == ({"infra": 2}, 1)
    report = run(work, tmp_path / "out", upstream=Replies(completion("ok")), retries=1)
    assert (report.endings, report.unscored, report.skipped) == ({"terminated": 1}, 0, 0)
    assert [t.attempt for t in read_trajectories(tmp_path / "out" / FILE)] == [0, 1, 2]


def test_a_broken_driver_fails_its_run_and_no_sibling(tmp_path: Path) -> None:
    _, problems = small()
    unlucky = problems[2].problem_id

    class Broken(InlineDriver):
        def run(self, spec: Any, *rest: Any) -> Any:
            if spec.problem["problem_id"] == unlucky:
                raise OSError("no space left on device")
            return super().run(spec, *rest)

    work = jobs(written(tmp_path / "a"))
    report = run(work, tmp_path / "out", driver=Broken(), retries=0)
    assert report.endings == {"terminated": 5, "infra": 1}
    failed = [t for t in read_trajectories(tmp_path / "out" / FILE) if t.ending is Ending.infra]
    assert failed[0].problem_id == unlucky
    assert failed[0].fault is not None
    assert "no space left" in failed[0].fault.what


def test_stop_records_nothing_half_done(tmp_path: Path, children: Any) -> None:
    stop = threading.Event()
    spin = written(tmp_path / "a", "def agent_main(p):\n    while True: pass", "spin")
    work = [*jobs(written(tmp_path / "a"), problems=2), *jobs(spin, problems=4)]

    def note(step: Progress) -> None:
        if step.done == 2:
            stop.set()

    report = run(work, tmp_path / "out", driver=children, stop=stop, progress=note, concurrency=3)
    assert report.stopped
    assert {t.agent.name for t in read_trajectories(tmp_path / "out" / FILE)} == {"written"}
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_an_interrupt_in_progress_is_raised_again(tmp_path: Path) -> None:
    def interrupt(step: Progress) -> None:
        raise KeyboardInterrupt

    work = jobs(written(tmp_path / "a"))
    with pytest.raises(KeyboardInterrupt):
        run(work, tmp_path / "out", progress=interrupt)
    report = run(work, tmp_path / "out")
    assert report.ran + report.skipped == 6
    assert ids(tmp_path / "out") == Counter(job.key(0) for job in work)


def test_time_outs_do_not_hold_up_the_others(tmp_path: Path, children: Any) -> None:
    spin = written(tmp_path / "a", "def agent_main(p):\n    while True: pass", "spin")
    work = [*jobs(spin, problems=2), *jobs(written(tmp_path / "a"), problems=4)]
    limits = Limits(seconds=1.5)
    report = run(work, tmp_path / "out", driver=children, limits=limits, concurrency=3)
    assert report.endings == {"timed_out": 2, "terminated": 4}


def test_records_name_the_run(tmp_path: Path) -> None:
    run(jobs(written(tmp_path / "a"), problems=1, seed=9), tmp_path / "out")
    (record,) = read_trajectories(tmp_path / "out" / FILE)
    assert isinstance(record, Trajectory)
    world, problems = small()
    assert (record.seed, record.suite_id, record.isolation) == (9, "s", "inline")
    assert record.problem_id == problems[0].problem_id
    assert record.catalogue_digest == world.catalogue.digest
