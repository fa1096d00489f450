"""Recorded replies make a run repeatable byte for byte; a changed record or agent is found."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.agents.spec import AgentSpec, agent_from_file
from palio.broker.journal import FILE
from palio.broker.policy import BrokerPolicy
from palio.broker.recording import read_recordings
from palio.cli.main import app
from palio.judging.store import VERDICTS
from palio.records import PalioError, to_json
from palio.rollout import read_trajectories, run_suite
from palio.rollout.replay import check_record, journal_path, replay_runs
from palio.rollout.suite import RECORD
from palio.sandbox.choice import open_driver, opened
from palio.sandbox.inline import InlineDriver
from palio.sandbox.process import SubprocessDriver
from palio.sandbox.spec import Driver
from palio.world.tools import FOUR_TOOLS
from tests.conftest import ROOT
from tests.rollout.agents import ANSWERS, jobs, small, written

Recorded = Callable[..., Path]


def race(folder: Path, driver: Driver, *specs: AgentSpec, problems: int = 3) -> Path:
    work = jobs(*specs, problems=problems)
    run_suite(work, folder, driver=driver, upstream=ScriptedUpstream(), concurrency=2)
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, children: SubprocessDriver) -> Path:
    """A race of bundled agents and of one that was written here, in child processes."""
    folder = tmp_path_factory.mktemp("race")
    own = written(folder / "agents", ANSWERS, "own")
    return race(folder / "run", children, find_agent("careful"), find_agent("sloppy"), own)


def test_a_race_is_replayed_byte_for_byte(recorded: Path, children: SubprocessDriver) -> None:
    replays = list(replay_runs(recorded, lambda _: children))
    assert [(each.status, each.detail) for each in replays] == [("identical", "")] * 9
    assert all(each.entries > 4 for each in replays)


def test_with_the_world_the_tools_run_again(recorded: Path, children: SubprocessDriver) -> None:
    world, _ = small()
    worlds = {world.catalogue.digest: world}
    replays = list(replay_runs(recorded, lambda _: children, worlds=worlds))
    assert {each.status for each in replays} == {"identical"}


def test_a_race_in_sandboxes_is_replayed_in_sandboxes(tmp_path: Path) -> None:
    try:
        driver = open_driver("bwrap")
    except PalioError as error:
        pytest.skip(f"needs a working bwrap: {error}")
    with opened(driver):
        folder = race(tmp_path, driver, find_agent("careful"), problems=2)
        replays = list(replay_runs(folder, lambda _: driver))
    assert [(each.status, each.detail) for each in replays] == [("identical", "")] * 2
    runs = list(read_trajectories(folder))
    assert {run.isolation for run in runs} == {"bwrap"}
    assert {event.nonce for run in runs for event in run.dispatches} == {"valid"}


def test_one_problem_inline(tmp_path: Path) -> None:
    driver = InlineDriver()
    folder = race(tmp_path, driver, find_agent("terse"))
    problem = small()[1][1].problem_id
    (replay,) = replay_runs(folder, lambda _: driver, problems=[problem])
    assert (replay.problem_id, replay.status) == (problem, "identical")


VOUCHER = """
from src.agent.agent_interface import execute_tool_call

def agent_main(problem):
    given = {"product_prices": "9", "voucher_type": "fixed", "discount_value": 1}
    execute_tool_call("calculate_voucher", given)
    execute_tool_call("terminate", {})
    return []
"""


def test_a_tool_that_a_run_did_not_have_is_not_there_in_its_replay(tmp_path: Path) -> None:
    driver, (world, _) = InlineDriver(), small()
    work = jobs(written(tmp_path, VOUCHER), problems=1)
    run_suite(work, tmp_path / "run", driver=driver, tools=FOUR_TOOLS)
    (run,) = read_trajectories(tmp_path / "run")
    assert "there is no tool 'calculate_voucher'" in run.dispatches[0].error
    worlds = {world.catalogue.digest: world}
    (replay,) = replay_runs(tmp_path / "run", lambda _: driver, worlds=worlds)
    assert (replay.status, replay.detail) == ("identical", "")


FICKLE = """
from src.agent.agent_interface import execute_tool_call

def agent_main(problem):
    with open({path!r}) as file:
        execute_tool_call("find_product", {{"q": file.read()}})
    return []
"""


def test_an_agent_that_does_something_else_departs(
    tmp_path: Path, children: SubprocessDriver
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mug")
    agent = written(tmp_path, FICKLE.format(path=str(outside)))
    folder = race(tmp_path / "run", children, agent, problems=1)
    (replay,) = replay_runs(folder, lambda _: children)
    assert replay.status == "identical"
    outside.write_text("bowl")
    (replay,) = replay_runs(folder, lambda _: children)
    assert replay.status == "departed"
    assert replay.detail == 'a call that was not recorded: find_product({"q":"bowl"})'


CRASHES = """
from src.agent.proxy_client import ProxyClient

def agent_main(problem):
    messages = [{"role": "user", "content": problem["query"]}]
    client = ProxyClient()
    client.post("/v1/chat/completions", {"messages": messages, "model": "no such model"})
    client.post("/search/find_product", "{broken")
    client.post("/search/nothing", {"a": 1})
    raise ValueError(client.get("/status")["left"]["calls"])
"""


def test_failures_are_replayed_too(tmp_path: Path, children: SubprocessDriver) -> None:
    folder = race(tmp_path / "run", children, written(tmp_path, CRASHES), problems=2)
    assert {str(run.ending) for run in read_trajectories(folder)} == {"crashed"}
    assert {each.status for each in replay_runs(folder, lambda _: children)} == {"identical"}


def test_trajectories_and_journal_vouch_for_each_other(recorded: Path) -> None:
    checked = check_record(recorded)
    assert (checked.problems, checked.trajectories) == ((), 9)
    runs = {run.trajectory_id: run for run in read_trajectories(recorded)}
    held = read_recordings(journal_path(recorded))
    assert {each.trajectory_id for each in held.recordings} == set(runs)
    for recording in held.recordings:
        run = runs[recording.trajectory_id]
        events = [entry["event"] for entry in recording.of("result")]
        assert events == [json.loads(to_json(event)) for event in run.dispatches]
        answers = [body for _, _, body in recording.bodies() if body]
        assert [body["event"] for body in answers] == [event.seq for event in run.inferences]


def test_each_dispatch_is_tied_by_proof_to_its_completion(recorded: Path) -> None:
    for run in read_trajectories(recorded):
        expected = "missing" if run.agent.name == "own" else "valid"
        assert {event.nonce for event in run.dispatches} == {expected}


PARSES = """
import json, re
from src.agent.agent_interface import execute_tool_call
from src.agent.proxy_client import ProxyClient

def agent_main(problem):
    client = ProxyClient()
    messages = [{"role": "user", "content": problem["query"]}]
    body = {"messages": messages, "tools": client.get("/tools")["tools"]}
    reply = client.post("/inference/chat/completions", body)
    call = reply["choices"][0]["message"]["tool_calls"][0]
    asked = json.loads(call["function"]["arguments"])
    ProxyClient().get("/search/" + call["function"]["name"], asked)
    client.get("/search/find_product", {"q": "of my own"})
    client.post("/inference/chat/completions", body)
    execute_tool_call(call["function"]["name"], asked)
    execute_tool_call(call["function"]["name"], asked)
    return []
"""


def test_an_agent_that_knows_no_ids_proves_its_calls_too(
    tmp_path: Path, children: SubprocessDriver
) -> None:
    """Arena agents parse the arguments and call their proxy; the guest's client adds the proof."""
    spec = agent_from_file(_file(tmp_path, PARSES), name="parses", model="scripted-careful")
    folder = race(tmp_path / "run", children, spec, problems=1)
    (run,) = read_trajectories(folder)
    nonces = [event.nonce for event in run.dispatches]
    assert nonces == ["valid", "missing", "valid", "missing"]
    assert [event.emitted_by for event in run.dispatches] == [0, None, 3, None]


def _file(folder: Path, source: str) -> Path:
    path = folder / "agent.py"
    path.write_text(source, encoding="utf-8")
    return path


def changed(folder: Path, to: Path, name: str, old: bytes, new: bytes) -> Path:
    subprocess.run(["cp", "-r", str(folder), str(to)], check=True)
    data = (to / name).read_bytes()
    assert old in data
    (to / name).write_bytes(data.replace(old, new, 1))
    return to


def test_a_changed_trajectory_is_found(recorded: Path, tmp_path: Path) -> None:
    folder = changed(recorded, tmp_path / "r", "trajectories.jsonl", b'"answer"', b'"anSwer"')
    assert any("was changed" in each for each in check_record(folder).problems)


def test_a_cut_off_journal_is_found(recorded: Path, tmp_path: Path) -> None:
    folder = changed(recorded, tmp_path / "r", f"{RECORD}/{FILE}", b"{", b"{")
    path = folder / RECORD / FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    (problem,) = check_record(folder).problems
    assert "cut off" in problem


def test_the_command_checks_then_replays(recorded: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    problem = small()[1][0].problem_id
    shown = runner.invoke(app, ["replay", "--run", str(recorded), "--problem", problem])
    assert shown.exit_code == 0, shown.output
    assert "3 identical, 0 departed, 0 skipped" in shown.output
    shown = runner.invoke(app, ["replay", "--run", str(recorded), "--check"])
    assert "its chain holds, 9 trajectories are those that it tells of" in shown.output
    folder = changed(recorded, tmp_path / "r", f"{RECORD}/{FILE}", b'"tool":', b'"toOl":')
    shown = runner.invoke(app, ["replay", "--run", str(folder), "--json"])
    assert shown.exit_code == 1
    (problem,) = json.loads(shown.output)["record"]["problems"]
    assert "the file was changed" in problem


def test_verdicts_beside_the_runs_are_no_runs(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    shutil.copytree(recorded, folder)
    (folder / VERDICTS).write_bytes(b'{"type":"richness","trajectory_id":"t"}\n')
    runner = CliRunner()
    problem = small()[1][0].problem_id
    shown = runner.invoke(app, ["replay", "--run", str(folder), "--problem", problem])
    assert shown.exit_code == 0, shown.output
    assert len(list(read_trajectories(folder))) == len(list(read_trajectories(recorded)))


def test_without_a_journal_nothing_is_kept(tmp_path: Path) -> None:
    work = jobs(find_agent("hasty"), problems=1)
    policy = BrokerPolicy(journal=False)
    options = {"driver": InlineDriver(), "upstream": ScriptedUpstream()}
    run_suite(work, tmp_path, policy=policy, **options)  # type: ignore[arg-type]
    assert not (tmp_path / RECORD).exists()
    assert [run.journal for run in read_trajectories(tmp_path)] == [""]


PROGRAM = """
import os, signal, sys
from pathlib import Path
import palio.broker.chain as chain
from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.rollout import run_suite
from palio.sandbox.inline import InlineDriver
from tests.rollout.agents import jobs
out, torn = Path(sys.argv[1]), sys.argv[2] == "torn"
work = jobs(find_agent("hasty"), problems=2)
write = chain.Chain._write

def go(folder, step):
    count = 0
    def dying(self, line):
        nonlocal count
        count += 1
        if count == step:
            write(self, line[: len(line) // 2] if torn else line)
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, line)
    chain.Chain._write = dying
    run_suite(work, folder, driver=InlineDriver(), upstream=ScriptedUpstream(), concurrency=1)
    return count

def child(folder, step):
    pid = os.fork()
    if not pid:
        go(folder, step)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

whole = child(out / "whole", 0)
steps = sum(1 for _ in open(out / "whole" / "record" / "journal.chain"))
for step in range(1, steps + 1):
    killed, resumed = child(out / str(step), step), child(out / str(step), 0)
    print(step, killed, resumed, flush=True)
"""


@pytest.mark.parametrize("kind", ["torn", pytest.param("whole", marks=pytest.mark.slow)])
def test_killed_at_every_step_of_the_journal(tmp_path: Path, kind: str) -> None:
    """SIGKILL at each line, half-written or whole; another process goes on."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = [line.split() for line in done.stdout.splitlines()]
    assert len(steps) > 20
    wanted = masked_runs(tmp_path / "whole")
    for step, killed, resumed in steps:
        assert (killed, resumed) == (str(-signal.SIGKILL), "0"), done.stderr
        assert check_record(tmp_path / step).problems == ()
        assert masked_runs(tmp_path / step) == wanted
        replays = list(replay_runs(tmp_path / step, lambda _: InlineDriver()))
        finished = [each for each in replays if each.status == "identical"]
        assert {each.problem_id for each in finished} == {each[0] for each in wanted}
        assert {each.status for each in replays} <= {"identical", "skipped"}


def masked_runs(folder: Path) -> list[tuple[str, str, int]]:
    return sorted(
        (run.problem_id, json.dumps(run.answer), len(run.events))
        for run in read_trajectories(folder)
    )


def test_a_run_that_the_clock_ended_is_skipped(tmp_path: Path, children: SubprocessDriver) -> None:
    from palio.broker.limits import Limits

    path = tmp_path / "slow.py"
    path.write_text("import time\ndef agent_main(problem):\n    while True: time.sleep(9)\n")
    spec = agent_from_file(path, name="slow")
    run_suite(jobs(spec, problems=1), tmp_path / "run", driver=children, limits=Limits(seconds=0.5))
    (replay,) = replay_runs(tmp_path / "run", lambda _: children)
    assert (replay.status, replay.detail) == ("skipped", "the run was ended by the clock")
