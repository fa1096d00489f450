"""Code of a model runs in a sandbox of its own: enclosed, limited, repeatable."""

from __future__ import annotations

import json
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palio.agents.spec import HARNESS, AgentSpec, agent_from_file
from palio.broker.limits import Limits
from palio.broker.session import Session
from palio.judging import OutcomeScorer, default_encoder
from palio.records import AgentRef, DispatchEvent, FaultCode, Trajectory, digest
from palio.rollout.execution import LIMITS, SandboxExecutor, encloses, run_tools
from palio.rollout.problem import run_problem
from palio.rollout.replay import replay_runs
from palio.rollout.suite import Job, run_suite
from palio.sandbox.choice import open_driver
from palio.sandbox.inline import InlineDriver
from palio.sandbox.spec import Capabilities, Driver, SandboxLimits, SandboxOutcome, SandboxUsage
from palio.world.execution import MAX_CODE, MAX_OUTPUT, Execution
from palio.world.tools import SEVEN_TOOLS, Toolbox, tool_schemas
from tests.broker.conftest import PROBLEM, Replies, completion, tiny_world
from tests.sandbox.conftest import driver_or_skip
from tests.sandbox.enclosures import FOUND

TOOLS = (*SEVEN_TOOLS, "python_execute")


@pytest.fixture(scope="module", params=FOUND)
def driver(request: pytest.FixtureRequest) -> Driver:
    return driver_or_skip(request.param)


@pytest.fixture
def ran(driver: Driver) -> Callable[..., Execution]:
    def run(source: str, seed: int = 0, **limits: Any) -> Execution:
        given = SandboxLimits(
            **{**{f: getattr(LIMITS, f) for f in LIMITS.__struct_fields__}, **limits}
        )
        return SandboxExecutor(driver, seed, limits=given).execute(textwrap.dedent(source))

    return run


class TestExecution:
    def test_output_and_exceptions(self, ran: Callable[..., Execution]) -> None:
        assert ran("print(6 * 7)") == Execution("42\n", "", "", False)
        made = ran("import sys\nprint('before')\nprint('odd', file=sys.stderr)\n1 / 0")
        assert (made.stdout, made.stderr) == ("before\n", "odd\n")
        assert made.exception == "ZeroDivisionError: division by zero (line 4)"
        assert ran("x = (").exception.startswith("SyntaxError: ")
        assert "(line 1)" in ran("x = (").exception
        assert ran("def f(n):\n    return f(n + 1)\nf(0)").exception.startswith("RecursionError")
        assert ran("import sys\nsys.exit(0)").exception == ""
        assert ran("raise SystemExit('no')").exception == "SystemExit: no (line 1)"

    def test_what_no_program_should_print(self, ran: Callable[..., Execution]) -> None:
        made = ran("import os\nos.write(1, b'\\xff\\x00ok\\n')\nprint('\\ud800')")
        assert "ok" in made.stdout
        assert "\x00" not in made.stdout
        json.dumps(made.stdout).encode("utf-8")
        assert ran("print('a')\x00").exception
        assert ran("import os\nos._exit(3)").exception.startswith("SystemExit")

    def test_output_is_capped(self, ran: Callable[..., Execution]) -> None:
        made = ran("print('é' * 100_000)")
        assert made.truncated
        assert made.stdout == "é" * MAX_OUTPUT
        whole = ran(f"print('é' * {MAX_OUTPUT - 1})")
        assert not whole.truncated
        assert len(whole.stdout) == MAX_OUTPUT
        long = ran("raise ValueError('x' * 100_000)")
        assert len(long.exception) <= 2_000

    def test_limits(self, ran: Callable[..., Execution]) -> None:
        made = ran("print('so far')\nwhile True: pass", seconds=1.5)
        assert made == Execution("so far\n", "", "TimeoutError: stopped after 1.5 s", False)
        hog = ran("x = []\nwhile True: x.append(bytearray(10 << 20))", memory_bytes=64 << 20)
        assert hog.exception.startswith("MemoryError")

    def test_nothing_of_the_host_or_the_run_is_there(
        self, ran: Callable[..., Execution], tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_text("gold")
        made = ran(f"print(open({str(secret)!r}).read())")
        assert made.exception.startswith(("FileNotFoundError", "PermissionError"))
        door = ran("import socket\nsocket.create_connection(('127.0.0.1', 8000), 2)")
        assert door.exception.startswith(("ConnectionRefusedError", "OSError", "TimeoutError"))
        assert ran("open('/tmp/kept', 'w').write('x')").exception == ""
        assert ran("open('/tmp/kept')").exception.startswith("FileNotFoundError")

    def test_clock_and_chance_follow_the_seed(self, ran: Callable[..., Execution]) -> None:
        source = "import random, time, uuid\nprint(random.random(), uuid.uuid4(), time.time())"
        first = ran(source, 7)
        assert first.exception == ""
        assert first == ran(source, 7) != ran(source, 8)


AGENT = """
from src.agent.proxy_client import ProxyClient

def agent_main(problem):
    client = ProxyClient()
    names = [tool["function"]["name"] for tool in client.get("/tools")["tools"]]
    posted = client.post("/search/python_execute", {"code": "print(2 ** 10)"})
    got = client.get("/search/python_execute", {"code": "print('by get')"})
    client.post("/search/terminate", {})
    return [{"names": names, "posted": posted, "got": got}]
"""


def written(tmp_path: Path, source: str = AGENT) -> AgentSpec:
    path = tmp_path / "agent.py"
    path.write_text(source)
    return agent_from_file(path, name="coder")


def dispatches(trajectory: Trajectory) -> list[DispatchEvent]:
    return [event for event in trajectory.events if isinstance(event, DispatchEvent)]


class TestInARun:
    def test_over_http(self, driver: Driver, tmp_path: Path) -> None:
        run = run_problem(written(tmp_path), PROBLEM, tiny_world(), driver=driver, tools=TOOLS)
        posted, got, _ = dispatches(run)
        assert json.loads(posted.result) == {
            "stdout": "1024\n",
            "stderr": "",
            "exception": "",
            "truncated": False,
        }
        assert json.loads(got.result)["stdout"] == "by get\n"
        assert not posted.error

    def test_as_a_tool_that_the_model_calls(self, driver: Driver) -> None:
        spec = agent_from_file(HARNESS, name="policy", model="m")
        upstream = Replies(
            completion("", ("c1", "python_execute", '{"code":"print(sum(range(5)))"}')),
            completion("", ("c2", "terminate", "{}")),
        )
        run = run_problem(
            spec, PROBLEM, tiny_world(), driver=driver, upstream=upstream, tools=TOOLS
        )
        assert [tool["function"]["name"] for tool in upstream.bodies[0]["tools"]] == list(TOOLS)
        event = dispatches(run)[0]
        assert json.loads(event.result)["stdout"] == "10\n"
        assert event.emitted_by == 0
        assert json.loads(upstream.bodies[1]["messages"][-1]["content"])["stdout"] == "10\n"

    def test_it_is_not_there_unless_the_run_offers_it(self, driver: Driver, tmp_path: Path) -> None:
        run = run_problem(written(tmp_path), PROBLEM, tiny_world(), driver=driver)
        assert "offers no sandbox" in dispatches(run)[0].error

    def test_a_long_call_holds_up_no_other_run(self, driver: Driver, tmp_path: Path) -> None:
        slow = AGENT.replace("print(2 ** 10)", "while True: pass")
        (tmp_path / "s").mkdir()
        ended: list[Trajectory] = []

        def work() -> None:
            more = {"driver": driver, "tools": TOOLS, "limits": Limits(seconds=4)}
            ended.append(run_problem(written(tmp_path / "s", slow), PROBLEM, tiny_world(), **more))

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.3)
        quick = run_problem(written(tmp_path), PROBLEM, tiny_world(), driver=driver, tools=TOOLS)
        assert thread.is_alive()
        assert quick.ending == "terminated"
        thread.join()
        assert ended[0].ending == "timed_out"


class TestReplay:
    def test_code_is_run_again_and_gives_the_same_record(
        self, driver: Driver, tmp_path: Path
    ) -> None:
        source = AGENT.replace("2 ** 10", "__import__('random').random()")
        job = Job(spec=written(tmp_path, source), problem=PROBLEM, world=tiny_world(), seed=3)
        run_suite([job], tmp_path / "run", driver=driver, tools=TOOLS)
        worlds = {tiny_world().catalogue.digest: tiny_world()}
        for given in ({}, worlds):
            (again,) = replay_runs(tmp_path / "run", lambda _: driver, worlds=given)
            assert again.status == "identical", again.detail


class TestWithoutASandbox:
    """Code is never run where nothing encloses it."""

    @pytest.mark.parametrize("name", ["inline", "unsafe-subprocess"])
    def test_unenclosing_drivers_do_not_run_code(self, name: str, tmp_path: Path) -> None:
        driver = InlineDriver() if name == "inline" else open_driver(name)
        assert not encloses(driver)
        run = run_problem(written(tmp_path), PROBLEM, tiny_world(), driver=driver, tools=TOOLS)
        assert "offers no sandbox" in dispatches(run)[0].error
        assert run.ending == "terminated"

    def test_it_is_not_offered(self) -> None:
        spec = agent_from_file(HARNESS, name="policy", model="m")
        upstream = Replies(completion("", ("c2", "terminate", "{}")))
        more: dict[str, Any] = {"driver": InlineDriver(), "upstream": upstream, "tools": TOOLS}
        run_problem(spec, PROBLEM, tiny_world(), **more)
        offered = [tool["function"]["name"] for tool in upstream.bodies[0]["tools"]]
        assert offered == list(SEVEN_TOOLS)

    def test_a_sandbox_that_does_not_start_is_not_the_agents_fault(self) -> None:
        with run_tools(tiny_world(), TOOLS, _Broken(), 0) as toolbox:
            session = Session(AgentRef(name="a"), PROBLEM, tiny_world(), toolbox=toolbox)
            reply = session.dispatch("python_execute", {"code": "print(1)"})
        assert "host's side" in reply.error
        event = dispatches(session.close())[0]
        assert event.fault is not None
        assert event.fault.code == FaultCode.sandbox_launch_failed


class _Broken:
    capabilities = Capabilities("x", *[True] * 10)

    def run(self, *_: Any) -> SandboxOutcome:
        return SandboxOutcome(reason="launch_failed", usage=SandboxUsage(wall_s=0.0))


class _Recording:
    def __init__(self) -> None:
        self.codes: list[str] = []

    def execute(self, code: str) -> Execution:
        self.codes.append(code)
        return Execution("", "", "", True)


class TestWhatCodePrints:
    """It is its author's word, whoever has it printed."""

    PLAN = '{"q":"a green bowl from far away"}'

    def session(self, *before: dict[str, Any]) -> Session:
        repeated = completion("", ("c2", "find_product", self.PLAN))
        upstream = Replies(*before, repeated)
        toolbox = Toolbox(tiny_world(), _Printing(self.PLAN))
        return Session(AgentRef(name="a"), PROBLEM, tiny_world(), upstream, toolbox=toolbox)

    def told(self, session: Session, call_id: str, messages: list[Any]) -> DispatchEvent:
        result = session.dispatch("python_execute", {"code": "print(plan)"}, call_id).result
        shown = {"role": "tool", "tool_call_id": call_id, "content": result}
        session.complete({"messages": [*messages, shown]})
        session.dispatch("find_product", self.PLAN, "c2")
        return dispatches(session.close())[1]

    def test_a_call_that_the_harness_prints_stays_the_harnesss(self) -> None:
        asked = [{"role": "user", "content": PROBLEM.query}]
        assert self.told(self.session(), "", asked).echoed

    def test_a_call_that_the_models_own_code_prints_is_the_models(self) -> None:
        own = completion("", ("c1", "python_execute", '{"code":"print(plan)"}'))
        session = self.session(own)
        asked: list[Any] = [{"role": "user", "content": PROBLEM.query}]
        said = session.complete({"messages": asked})["choices"][0]["message"]
        assert not self.told(session, "c1", [*asked, said]).echoed

    def test_it_grounds_no_answer(self) -> None:
        printed = '[{"product_id":"1"}]'
        toolbox = Toolbox(tiny_world(), _Printing(printed))
        session = Session(AgentRef(name="a"), PROBLEM, tiny_world(), toolbox=toolbox)
        session.dispatch("python_execute", {"code": "print(1)"})
        session.dispatch("recommend_product", {"product_ids": "1"})
        session.dispatch("terminate", {})
        scorer = OutcomeScorer(tiny_world().catalogue.products, default_encoder())
        verdict = scorer.verdict(PROBLEM, session.close(), "strict")
        assert not verdict.success
        assert any("ungrounded" in note for note in verdict.notes)


class _Printing:
    def __init__(self, text: str) -> None:
        self.text = text

    def execute(self, code: str) -> Execution:
        return Execution(self.text, "", "", False)


class TestTheTool:
    def test_arguments(self) -> None:
        executor = _Recording()
        toolbox = Toolbox(tiny_world(), executor)
        for wrong in ({}, {"code": " "}, {"code": 3}, {"code": "x" * (MAX_CODE + 1)}, "[1]"):
            assert toolbox.call("python_execute", wrong).error
        reply = toolbox.call("python_execute", {"arguments": {"code": "if 1:\n  print(1)\n"}})
        assert executor.codes == ["if 1:\n  print(1)\n"]
        assert reply.warnings == ("the output was cut; print less",)
        assert "python_execute" in toolbox.call("zzz", {}).error
        assert "python_execute" not in Toolbox(tiny_world()).call("zzz", {}).error

    def test_the_schemas_of_the_seven_tools_are_as_before(self) -> None:
        assert digest(list(tool_schemas())) == SEVEN_DIGEST


SEVEN_DIGEST = "sha256:fcd2419bae768d5de124695a4e2ab6c7fc9b4d2bb09c34f699596dcdaed8c4a1"
