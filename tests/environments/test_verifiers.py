"""The environment in the real verifiers: whole episodes, rewards, and the tools over MCP."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.broker.upstream import RejectedError
from palio.records import FaultCode, InputError, UpstreamError
from palio.train.environments.exporting import export_shop
from palio.train.environments.shop import ShopSettings
from palio.world.tools import SEVEN_TOOLS, tool_schemas
from tests.environments.conftest import Made

vf = pytest.importorskip("verifiers.v1", reason="an environment of verifiers needs verifiers 0.4")
pytestmark = [
    pytest.mark.slow,  # importing it takes 10 s
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return importlib.import_module("palio.train.environments.verifiers_env")


@pytest.fixture(scope="module")
def folder(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verifiers")
    catalogues = tuple(str(made.folder / name) for name in made.worlds)
    settings = ShopSettings(catalogues=catalogues)
    export_shop("verifiers", made.folder / "corpus", made.folder / "suite.json", settings, out)
    return out


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    monkeypatch.setenv("SHOP_KEY", "key")
    with ModelServer(ScriptedUpstream(0), host="127.0.0.1", port=0) as server:
        yield server


def episodes(
    env: Any, model: str, url: str, count: int, *, at_once: bool = False, **sampling: Any
) -> list[Any]:
    """An episode for each of the first tasks."""
    client = vf.EvalClientConfig(base_url=url, api_key_var="SHOP_KEY")
    context = vf.ModelContext(model=model, client=client, sampling=vf.SamplingConfig(**sampling))

    async def play() -> list[Any]:
        async with env.serving():
            runs = [env.run_episode(task, context) for task in env.taskset.take(count)]
            return await asyncio.gather(*runs) if at_once else [await run for run in runs]

    return asyncio.run(play())


def played(env: Any, model: str, url: str, count: int, **sampling: Any) -> list[Any]:
    """The trace of an episode for each of the first tasks."""
    found = episodes(env, model, url, count, **sampling)
    assert not [error for episode in found for error in episode.errors]
    return [episode.traces[0] for episode in found]


def test_episodes_are_rewarded_as_the_race_would(
    module: ModuleType, folder: Path, server: ModelServer, made: Made
) -> None:
    env = module.load_environment(folder)
    for name in ("careful", "hasty"):
        wanted = {problem.problem_id: run for problem, run in made.runs if run.agent.name == name}
        traces = played(env, f"scripted-{name}", server.url, 9)
        rewards = []
        for trace in traces:
            assert trace.ok, trace.errors
            run = wanted[trace.task.data.id]
            calls = [(call.tool, json.loads(call.arguments)) for call in module.calls_of(trace)]
            asked = [
                (call.function.name, json.loads(call.function.arguments))
                for message in run.messages
                for call in message.tool_calls
            ]
            assert calls == asked
            rewards.append(trace.reward)
            assert {*trace.metrics} >= {"strict", "rule"}
            assert [tool.name for tool in trace.tools] == [*SEVEN_TOOLS]
        assert sum(rewards) >= 8 if name == "careful" else sum(rewards) < 9


class Overheard:
    """The careful shopper behind it; what `fails` says of the number of a request is raised."""

    def __init__(self, fails: Callable[[int], Exception | None] = lambda _: None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._fails, self._inner = fails, ScriptedUpstream(0)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        fault = self._fails(len(self.bodies))
        if fault is not None:
            raise fault
        return self._inner.complete(body)


def test_verifiers_and_not_palio_decides_the_seed_of_a_rollout(
    module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a seed of the broker's all rollouts of a group would be copies of one."""
    monkeypatch.setenv("SHOP_KEY", "key")
    env = module.load_environment(folder)
    for sampling, told in (({"temperature": 1.0}, {None}), ({"seed": 7}, {7})):
        overheard = Overheard()
        with ModelServer(overheard, host="127.0.0.1", port=0) as server:
            played(env, "scripted-careful", server.url, 1, **sampling)
        assert len(overheard.bodies) > 1
        assert {body.get("seed") for body in overheard.bodies} == told
        assert {body.get("temperature") for body in overheard.bodies} == {
            sampling.get("temperature")
        }


def test_rollouts_are_not_held_to_the_threads_of_asyncio(
    module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than 32 first requests meet in the server; each waits for all of them."""
    monkeypatch.setenv("SHOP_KEY", "key")
    together = threading.Barrier(36)

    class Meeting(Overheard):
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            if len(body["messages"]) == 1:
                together.wait(120)
            return super().complete(body)

    with ModelServer(Meeting(), host="127.0.0.1", port=0) as server:
        env = module.load_environment(folder)
        found = episodes(env, "scripted-careful", server.url, 36, at_once=True)
    assert all(episode.traces[0].ok for episode in found)
    assert sum(episode.traces[0].reward for episode in found) > 30


@pytest.mark.parametrize("refused", [1, 2])
def test_a_rollout_that_its_server_broke_is_an_error_and_no_zero(
    module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """A request refused before the model wrote a word, and a server that breaks later."""
    monkeypatch.setenv("SHOP_KEY", "key")
    fault = {
        1: RejectedError("tools need --enable-auto-tool-choice"),
        2: UpstreamError("no luck", code=FaultCode.upstream_server_error),
    }[refused]
    overheard = Overheard(lambda number: fault if number == refused else None)
    with ModelServer(overheard, host="127.0.0.1", port=0) as server:
        [episode] = episodes(module.load_environment(folder), "scripted-careful", server.url, 1)
    [trace] = episode.traces
    assert not trace.ok
    assert "success" not in trace.rewards
    assert fault.what in str(trace.errors)
    assert len(overheard.bodies) == refused


def test_pools_and_bad_folders(module: ModuleType, folder: Path, tmp_path: Path) -> None:
    sizes = {
        pool: len(list(module.load_environment(folder, pool=pool).taskset))
        for pool in ("train", "development")
    }
    assert sizes["train"] > sizes["development"] > 0
    with pytest.raises(InputError, match="heldout"):
        module.load_environment(folder, pool="heldout")
    with pytest.raises(InputError, match="no such file"):
        module.load_environment(tmp_path)


def test_the_package_is_found_by_its_id(
    module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "palio_shop", raising=False)
    env = vf.load_environment(
        vf.SingleAgentEnvConfig(
            taskset={"id": "palio-shop", "pool": "development"},
            agent={"runtime": {"type": "subprocess"}},
        )
    )
    assert type(env.taskset) is module.ShopTaskset
    assert env._default_harness.id == "palio-shop"
    assert len(list(env.taskset)) > 0


class GuestConfig(vf.HarnessConfig):  # type: ignore[misc, name-defined]
    """None."""


class GuestHarness(vf.Harness[GuestConfig]):  # type: ignore[misc, name-defined]
    """Somebody else's harness: knows the endpoint and MCP servers, and nothing of palio."""

    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: Any,
    ) -> Any:
        from mcp.client import Client  # type: ignore[import-not-found]
        from openai import AsyncOpenAI

        (url,) = mcp_urls.values()
        messages: list[Any] = [{"role": "user", "content": data.prompt}]
        async with Client(url) as tools, AsyncOpenAI(base_url=endpoint, api_key=secret) as model:
            offered = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.input_schema,
                    },
                }
                for tool in (await tools.list_tools()).tools
            ]
            assert offered == list(tool_schemas())
            for _ in range(10):
                answer = await model.chat.completions.create(
                    model=ctx.model, messages=messages, tools=offered
                )
                said = answer.choices[0].message
                messages.append(said.model_dump(exclude_none=True))
                for call in said.tool_calls or ():
                    arguments = json.loads(call.function.arguments)
                    told = await tools.call_tool(call.function.name, arguments)
                    result = {"role": "tool", "tool_call_id": call.id}
                    messages.append({**result, "content": told.content[0].text})
                    if call.function.name == "terminate":
                        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def test_another_harness_shops_over_mcp(
    module: ModuleType, folder: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server process of verifiers' own; each call finds its rollout's catalogue."""
    guest = ModuleType("guest_harness")
    guest.__dict__.update(GuestHarness=GuestHarness, __all__=["GuestHarness"])
    monkeypatch.setitem(sys.modules, "guest_harness", guest)
    module.load_environment(folder)  # makes the task set known by its id
    env = vf.load_environment(
        vf.SingleAgentEnvConfig(
            taskset={"id": "palio-shop", "folder": str(folder / "palio_shop"), "mcp": True},
            agent={"runtime": {"type": "subprocess"}, "harness": {"id": "guest-harness"}},
        )
    )
    traces = played(env, "scripted-careful", server.url, 5)
    assert [trace.errors for trace in traces] == [[]] * 5
    assert sum(trace.reward for trace in traces) >= 4
    assert {trace.stop_condition for trace in traces} <= {"terminated", "agent_completed", None}
