"""A three-product world in which every answer can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from palio.broker.limits import Limits
from palio.broker.server import BrokerServer
from palio.broker.session import Session
from palio.records import AgentRef, Problem, Product, Reward
from palio.world.catalogue import Catalogue
from palio.world.world import FULL, World

PROBLEM = Problem(
    problem_id="p1",
    kind="product",
    query="a red mug",
    rewards=(Reward(product_id="1", title=("red mug",)),),
    catalogue="tiny",
)


class Clock:
    """A clock that goes on only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Replies:
    """An upstream that gives prepared answers, then repeats the last; errors are raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return dict(answer)


def completion(
    content: str | None = "", *calls: tuple[str, str, str], **more: Any
) -> dict[str, Any]:
    """A response whose message makes `calls`: (id, name, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": content, **more}
    if calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
            for i, n, a in calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}


@cache
def tiny_world() -> World:
    products = [
        Product(product_id="1", shop_id="s", title="red mug", price=10.0),
        Product(product_id="2", shop_id="s", title="blue mug", price=12.0),
        Product(product_id="3", shop_id="t", title="green bowl", price=7.5),
    ]
    return World.build(Catalogue.from_products("tiny", products), FULL)


@pytest.fixture(scope="session")
def world() -> World:
    return tiny_world()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_session(world: World, clock: Clock) -> Callable[..., Session]:
    """Opens a session of the tiny world; keyword arguments go to Session."""

    def make(upstream: Any = None, limits: Limits | None = None, **more: Any) -> Session:
        agent = more.pop("agent", AgentRef(name="a", model="m1"))
        more.setdefault("clock", clock)
        return Session(agent, PROBLEM, world, upstream, limits, **more)

    return make


@pytest.fixture(scope="session")
def server() -> Iterator[BrokerServer]:
    with BrokerServer() as running:
        yield running
