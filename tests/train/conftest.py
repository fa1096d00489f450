"""Conversations of the careful shopper in a small compact world, and a model too small to shop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.records import Message, Problem
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.train.model import ModelConfig, Qwen3
from palio.train.tokenizer import ChatTokenizer, train_tokenizer
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World


@dataclass(frozen=True)
class Shop:
    """A compact world with its problems."""

    world: World
    problems: tuple[Problem, ...]


@pytest.fixture(scope="session")
def shop() -> Shop:
    made = synthesise(compact_config(3, products=400, problems=60))
    return Shop(World.build(made.catalogue, COMPACT), made.problems)


@pytest.fixture(scope="session")
def talks(shop: Shop) -> list[Sequence[Message]]:
    agent, driver, upstream = find_agent("careful"), InlineDriver(), ScriptedUpstream(0)
    return [
        run_problem(agent, problem, shop.world, driver=driver, upstream=upstream).messages
        for problem in shop.problems
    ]


@pytest.fixture(scope="session")
def tokenizer(talks: list[Sequence[Message]]) -> ChatTokenizer:
    return train_tokenizer(talks, size=900)


@pytest.fixture(scope="session")
def small(tokenizer: ChatTokenizer) -> Qwen3:
    config = ModelConfig(
        vocab_size=tokenizer.size, hidden_size=64, intermediate_size=96, layers=2, head_dim=16
    )
    model = Qwen3(config)
    model.initialise(5)
    return model
