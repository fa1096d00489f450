"""Each way in which an agent file is bad has its own fault, the agent's, in every driver."""

from __future__ import annotations

import pytest

from palio.records import Blame, Ending, FaultCode, Trajectory
from palio.sandbox.spec import Driver
from tests.sandbox.conftest import Run

MAIN = "def agent_main(p):\n    "
SOURCE, CRASH, RETURN = (
    FaultCode.agent_bad_source,
    FaultCode.agent_crashed,
    FaultCode.agent_bad_return,
)
BAD = {
    "syntax": ("def agent_main(:\n", SOURCE, "line"),
    "nul": ("x = '\x00'", SOURCE, "null bytes"),
    "no agent_main": ("x = 1", SOURCE, "agent_main"),
    "agent_main is no function": ("agent_main = 3", SOURCE, "agent_main"),
    "raises on import": ("raise KeyError('k')", CRASH, "while loading"),
    "no such module": ("import src.agent.nothing", CRASH, "src.agent.nothing"),
    "raises": (MAIN + "return 1 / 0", CRASH, "ZeroDivisionError"),
    "exits": ("import sys\n" + MAIN + "sys.exit(0)", CRASH, "SystemExit"),
    "recursion": (MAIN + "return agent_main(p)", CRASH, "Recursion"),
    "None": (MAIN + "pass", RETURN, "NoneType"),
    "dict": (MAIN + "return {}", RETURN, "dict"),
    "no steps": (MAIN + "return [1]", RETURN, "step 1"),
    "set inside": (MAIN + "return [{'a': {1}}]", RETURN, "JSON"),
    "cycle": (MAIN + "a = {}; a['a'] = a; return [a]", RETURN, "JSON"),
    "50 MB": (MAIN + "return [{'a': 'x' * 50_100_000}]", FaultCode.agent_output_limit, "bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_agent_is_a_typed_outcome(run: Run, driver: Driver, name: str) -> None:
    source, code, words = BAD[name]
    trajectory = run(source, driver)
    assert trajectory.fault is not None
    assert trajectory.fault.code == code, trajectory.fault.what
    assert trajectory.fault.blame is Blame.agent
    assert words in trajectory.fault.what
    assert trajectory.ending in (Ending.crashed, Ending.invalid)


def test_the_crash_line_is_named(run: Run, driver: Driver) -> None:
    run_ = run(
        "def agent_main(p):\n    helper()\ndef helper():\n    raise ValueError('no')", driver
    )
    assert run_.fault is not None
    assert run_.fault.what == "ValueError: no (line 7)"


def test_a_missing_file(run: Run, driver: Driver, tmp_path: object) -> None:
    from palio.agents.spec import AgentSpec
    from palio.records import AgentRef
    from palio.rollout.problem import run_problem
    from tests.broker.conftest import PROBLEM, tiny_world

    spec = AgentSpec(ref=AgentRef(name="gone"), path=f"{tmp_path}/gone.py")
    trajectory = run_problem(spec, PROBLEM, tiny_world(), driver=driver)
    assert trajectory.fault is not None
    assert trajectory.fault.code == FaultCode.agent_bad_source


GOOD = """
from dataclasses import dataclass
import src.agent.proxy_client as pc
import src.agent.agent_interface

@dataclass
class Found:
    product_id: str

def agent_main(problem):
    client = pc.ProxyClient()
    rows = client.get("/search/find_product", {"q": "red mug", "page": 1, "price": None})
    found = Found(rows[0]["product_id"])
    ask = {"model": "default", "messages": [{"role": "user", "content": "é\\u4e2d"}]}
    said = client.post("/inference/chat/completions", ask)["choices"][0]["message"]["content"]
    done = [
        {"name": "find_product", "parameters": {"q": "red mug"}, "result": rows},
        execute_tool_call("recommend_product", {"product_ids": [found.product_id]}, "my-id"),
        execute_tool_call("terminate", {"status": "success"}),
    ]
    return [create_dialogue_step(said, done, "", problem["query"], 1)]
"""


def test_a_good_agent(run: Run, driver: Driver) -> None:
    trajectory = run(GOOD, driver)
    assert trajectory.fault is None
    assert (trajectory.answer, trajectory.ending) == (["1"], Ending.terminated)
    assert trajectory.differences == ()
    assert trajectory.inferences[0].request[0].content == "é中"
    assert trajectory.dispatches[1].call_id == "my-id"


def test_both_drivers_write_the_same_record(run: Run, subprocess_driver: Driver) -> None:
    from palio.sandbox.inline import InlineDriver

    def comparable(trajectory: Trajectory) -> list[object]:
        events: list[object] = []
        for event in trajectory.events:
            plain = {name: getattr(event, name) for name in event.__struct_fields__}
            events.append({k: v for k, v in plain.items() if k not in ("at_ms", "duration_ms")})
        return [*events, trajectory.messages, trajectory.trajectory_id, trajectory.answer]

    child, inline = run(GOOD, subprocess_driver), run(GOOD, InlineDriver())
    assert comparable(child) == comparable(inline)
    assert (child.isolation, inline.isolation) == ("none", "inline")
    assert not child.eligible
    assert not inline.eligible


def test_only_public_fields_reach_the_agent(run: Run, driver: Driver) -> None:
    source = """
    def agent_main(problem):
        return [create_dialogue_step("", [], ",".join(sorted(problem)), "", 1)]
    """
    assert run(source, driver).ending is Ending.returned
    seen = run("def agent_main(problem):\n    raise ValueError(sorted(problem))", driver)
    assert seen.fault is not None
    assert "['category', 'problem_id', 'query']" in seen.fault.what


def test_a_registered_tool_is_called_in_the_agent(run: Run, driver: Driver) -> None:
    source = """
    from src.agent.agent_interface import Tool, get_tool

    @Tool
    def find_product(q):
        return ProxyClient().get("/search/find_product", {"q": q})

    @Tool("mine")
    def other():
        raise ValueError("bad")

    def agent_main(problem):
        assert get_tool("mine") is other and get_tool("none") is None
        found = execute_tool_call("find_product", {"q": "bowl"})
        assert found["result"][0]["product_id"] == "3", found
        assert execute_tool_call("mine", {})["result"] == {"error": "ValueError: bad"}
        return []
    """
    trajectory = run(source, driver)
    assert trajectory.fault is None
    assert [event.tool for event in trajectory.dispatches] == ["find_product"]


def test_warnings_reach_the_agent_in_headers(run: Run, driver: Driver) -> None:
    source = """
    def agent_main(problem):
        client = ProxyClient()
        client.post("/search/find_product", '{"q":"mug","price":"cheap"}', {"X-Tool-Call-Id": "7"})
        assert "cheap" in client.last_headers["x-palio-warnings"], client.last_headers
        client.get("/status")
        assert "x-palio-warnings" not in client.last_headers
        return []
    """
    trajectory = run(source, driver)
    assert trajectory.fault is None
    assert trajectory.dispatches[0].arguments == '{"q":"mug","price":"cheap"}'
    assert trajectory.dispatches[0].call_id == "7"


def test_a_failing_model_is_none_to_the_agent_and_infra_to_the_host(
    run: Run, driver: Driver
) -> None:
    source = """
    def agent_main(problem):
        body = {"messages": [{"role": "user", "content": "q"}]}
        assert ProxyClient().post("/inference/chat/completions", body) is None
        return []
    """
    trajectory = run(source, driver, upstream=None)
    assert trajectory.ending is Ending.infra
    assert trajectory.fault is not None
    assert trajectory.fault.code == FaultCode.upstream_unreachable


def test_out_of_time_while_calling(run: Run, driver: Driver) -> None:
    source = """
    def agent_main(problem):
        while True:
            try:
                ProxyClient().get("/search/find_product", {"q": "mug"})
            except Exception:
                pass
    """
    trajectory = run(source, driver, seconds=0.6)
    assert (trajectory.ending, trajectory.fault and trajectory.fault.code) == (
        Ending.timed_out,
        FaultCode.agent_timed_out,
    )
    assert 0.5 < trajectory.duration_s < 5


def test_module_state_does_not_leak_between_files(
    run: Run, driver: Driver, tmp_path: object
) -> None:
    run("from src.agent.agent_interface import register_tool\nregister_tool('find_product', int)\n"
        "def agent_main(p): return []", driver)  # fmt: skip
    source = """
    def agent_main(problem):
        assert isinstance(execute_tool_call("find_product", {"q": "mug"})["result"], list)
        return []
    """
    assert run(source, driver).fault is None
