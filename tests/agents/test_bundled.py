from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from palio.agents.registry import ORACLE, bundled_agents, find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.agents.shortcut import with_table
from palio.agents.spec import BUNDLED, agent_from_file, policy_agent
from palio.agents.template import write_template
from palio.broker.limits import Limits
from palio.broker.upstream import HttpUpstream
from palio.judging import EvidenceJudge, OutcomeScorer, default_encoder, richness_verdict
from palio.records import Ending, FaultCode, Problem, Trajectory
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.sandbox.process import SubprocessDriver
from palio.world.synthesis import compact_config, synthesise
from palio.world.tools import FOUR_TOOLS, tool_schemas
from palio.world.world import COMPACT, World

RUNNING = ("careful", "terse", "sloppy", "hasty", "narrator", "classifier", "shortcut", "oracle")


@cache
def made() -> tuple[Any, World]:
    synthesis = synthesise(compact_config(4, products=700, problems=30))
    return synthesis, World.build(synthesis.catalogue, COMPACT)


@cache
def inline_runs(name: str) -> tuple[tuple[Problem, Trajectory], ...]:
    synthesis, world = made()
    driver, upstream, spec = InlineDriver(), ScriptedUpstream(0), find_agent(name)
    return tuple(
        (problem, run_problem(spec, problem, world, driver=driver, upstream=upstream))
        for problem in synthesis.problems
    )


@pytest.fixture(scope="module")
def subprocesses() -> Iterator[SubprocessDriver]:
    with SubprocessDriver() as driver:
        yield driver


@pytest.mark.parametrize("path", [*BUNDLED.glob("*.py"), BUNDLED.parent / "template" / "agent.py"])
def test_agent_files_need_only_the_standard_library_and_the_contract(path: Path):
    roots = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            roots.add(node.module.partition(".")[0])
    assert roots - {"src"} <= set(sys.stdlib_module_names) - {"os", "subprocess", "socket"}


@pytest.mark.parametrize("name", RUNNING)
def test_runs_end_well_and_the_claim_agrees_with_the_record(name: str):
    for _, run in inline_runs(name):
        assert (run.ending, run.fault, run.differences) == (Ending.terminated, None, ())
        assert run.answer
        assert run.isolation == "inline"
        assert not run.eligible


@pytest.mark.parametrize("name", RUNNING)
def test_who_made_the_calls_is_what_the_agent_declares(name: str):
    axes = {richness_verdict(run).axis for _, run in inline_runs(name)}
    assert axes == ({"agentic"} if find_agent(name).ref.kind == "agentic" else {"subtask"})


def test_agents_that_look_succeed_and_the_oracle_always_does():
    assert share("oracle", "oro") == 1
    assert share("careful", "strict") >= 0.95
    assert share("terse", "strict") >= 0.95
    assert share("hasty", "oro") < share("sloppy", "oro") < share("careful", "oro")


def share(name: str, profile: Any) -> float:
    synthesis, _ = made()
    scorer = OutcomeScorer(synthesis.catalogue.products, default_encoder())
    runs = inline_runs(name)
    return sum(scorer.verdict(p, run, profile).success for p, run in runs) / len(runs)


def test_reasoning_bins_tell_the_shoppers_apart():
    judge = EvidenceJudge()
    usual = {
        name: Counter(judge.verdict(run).quality for _, run in inline_runs(name)).most_common(1)
        for name in ("careful", "terse", "sloppy", "hasty")
    }
    assert [usual[name][0][0] for name in usual] == [0.9, 0.7, 0.5, 0.3]
    assert all(counted[0][1] >= 20 for counted in usual.values())


def test_the_harness_grows_one_conversation_that_the_record_repeats():
    """Each request is the recorded conversation plus tool results: nothing edited, nothing lost."""
    for problem, run in inline_runs("careful"):
        first, *rest = run.inferences
        assert [message.content for message in first.request] == [problem.query]
        assert all({message.role for message in event.request} == {"tool"} for event in rest)
        assert all(event.emitted_by is not None for event in run.dispatches)
        sent = [m for event in run.inferences for m in (*event.request, event.completion)]
        assert tuple(sent) == run.messages[: len(sent)]
        assert {m.role for m in run.messages[len(sent) :]} == {"tool"}
        assert run.tools == tool_schemas()


def test_warnings_of_tools_reach_the_model_as_the_record_shows_them(
    subprocesses: SubprocessDriver,
):
    class Careless:
        """Searches with a filter that cannot be read, then ends."""

        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            done = len(body["messages"]) > 2
            name = "terminate" if done else "find_product"
            arguments = "{}" if done else '{"q":"mug", "price":"above:10"}'
            call = {"id": name, "type": "function"}
            call["function"] = {"name": name, "arguments": arguments}  # type: ignore[assignment]
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            return {"choices": [{"message": message, "finish_reason": "tool_calls"}]}

    synthesis, world = made()
    for driver in (InlineDriver(), subprocesses):
        run = run_problem(
            policy_agent("careless", "x"),
            synthesis.problems[0],
            world,
            driver=driver,
            upstream=Careless(),
        )
        seen = run.inferences[1].request[0]
        assert seen.content is not None
        assert "\nWarning: " in seen.content
        assert seen == run.messages[2]
        assert run.dispatches[0].arguments == '{"q":"mug", "price":"above:10"}'


def test_the_same_file_runs_alike_in_a_process_of_its_own(subprocesses: SubprocessDriver):
    synthesis, world = made()
    problem = synthesis.problems[-1]
    for name in RUNNING:
        run = run_problem(
            find_agent(name),
            problem,
            world,
            driver=subprocesses,
            upstream=ScriptedUpstream(0),
        )
        inline = next(run for p, run in inline_runs(name) if p is problem)
        assert (run.messages, run.answer, run.ending) == (
            inline.messages,
            inline.answer,
            inline.ending,
        )
        assert run.differences == ()


@pytest.mark.parametrize(
    ("name", "ending", "code"),
    [
        ("crash", Ending.crashed, FaultCode.agent_crashed),
        ("spin", Ending.timed_out, FaultCode.agent_timed_out),
        ("bad-return", Ending.invalid, FaultCode.agent_bad_return),
    ],
)
def test_broken_agents_fail_in_their_own_way(
    name: str, ending: Ending, code: FaultCode, subprocesses: SubprocessDriver
):
    synthesis, world = made()
    run = run_problem(
        find_agent(name),
        synthesis.problems[0],
        world,
        driver=subprocesses,
        limits=Limits(seconds=1.5),
    )
    assert run.ending == ending
    assert run.fault is not None
    assert run.fault.code == code


def test_answers_from_a_table_are_right_and_not_grounded(tmp_path: Path):
    synthesis, world = made()
    spec = with_table(synthesis.problems, tmp_path / "cheat.py")
    scorer = OutcomeScorer(synthesis.catalogue.products, default_encoder())
    for problem in synthesis.problems:
        run = run_problem(spec, problem, world, driver=InlineDriver())
        assert scorer.verdict(problem, run, "oro").success
        strict = scorer.verdict(problem, run, "strict")
        assert not strict.success
        assert strict.notes


def test_the_harness_can_be_offered_four_tools():
    synthesis, world = made()
    run = run_problem(
        find_agent("careful"),
        synthesis.problems[0],
        world,
        driver=InlineDriver(),
        upstream=ScriptedUpstream(0),
        tools=FOUR_TOOLS,
    )
    assert run.tools == tool_schemas(FOUR_TOOLS)
    assert run.ending == Ending.terminated


def test_a_policy_over_a_served_model_runs_like_the_bundled_agent(subprocesses: SubprocessDriver):
    """Agent process, broker, HTTP upstream, model server: four parties, the same conversation."""
    synthesis, world = made()
    problem = synthesis.problems[0]
    with ModelServer(ScriptedUpstream(0)) as server, HttpUpstream(server.url) as upstream:
        run = run_problem(
            policy_agent("student", "scripted-careful"),
            problem,
            world,
            driver=subprocesses,
            upstream=upstream,
        )
    assert run.messages == inline_runs("careful")[0][1].messages
    assert run.agent.model == "scripted-careful"


def test_the_template_works_as_it_stands(tmp_path: Path, subprocesses: SubprocessDriver):
    path = tmp_path / "mine.py"
    write_template(path)
    synthesis, world = made()
    run = run_problem(
        agent_from_file(path, model="scripted-careful"),
        synthesis.problems[0],
        world,
        driver=subprocesses,
        upstream=ScriptedUpstream(0),
    )
    assert (run.ending, run.fault, run.differences) == (Ending.terminated, None, ())


class Stammering(ScriptedUpstream):
    """Its first call is cut off in the middle, as small models do; after that it is careful."""

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if any(message["role"] == "tool" for message in body["messages"]):
            return super().complete({**body, "messages": [body["messages"][0]]})
        answer = super().complete(body)
        for call in answer["choices"][0]["message"]["tool_calls"]:
            call["function"]["arguments"] = call["function"]["arguments"][:-3]
        return answer


def test_broken_arguments_end_neither_the_template_nor_the_harness(
    tmp_path: Path, subprocesses: SubprocessDriver
):
    path = tmp_path / "mine.py"
    write_template(path)
    synthesis, world = made()
    for spec in (agent_from_file(path, model="scripted-careful"), find_agent("careful")):
        run = run_problem(
            spec,
            synthesis.problems[0],
            world,
            driver=subprocesses,
            upstream=Stammering(0),
            limits=Limits(inferences=3),
        )
        first, second = run.dispatches[:2]
        assert "error" in first.result
        assert "product_id" in second.result
        assert run.ending == Ending.returned
        assert run.differences == (), "the claim repeats what the model wrote"


def test_the_oracle_is_never_eligible():
    assert not ORACLE.eligible
    assert [spec.name for spec in bundled_agents() if not spec.path] == ["oracle"]
