"""What the policy harness is told about a run has one source: tools, step budget, system prompt.

The broker serves it to the agent (GET /tools); inline and sub-process runs get the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from palio.records import Record, Tool
from palio.world.tools import SEVEN_TOOLS, tool_schemas
from palio.world.world import WorldConfig


class HarnessSettings(Record, frozen=True, omit_defaults=False):
    """Answer of GET /tools.

    Attributes:
        tools: tool schemas in nested OpenAI form, to be offered to the model as they are.
        max_steps: model turns allowed.
        system: system message; "" for none.
    """

    tools: tuple[Tool, ...]
    max_steps: int
    system: str = ""


def harness_settings(config: WorldConfig, tools: Sequence[str] = SEVEN_TOOLS) -> HarnessSettings:
    """Settings for a world; the compact world has no system message, observations cost enough."""
    system = "" if config.rows == "compact" else system_prompt("full")
    return HarnessSettings(
        tools=tool_schemas(tuple(tools)), max_steps=config.max_steps, system=system
    )


@cache
def system_prompt(name: str) -> str:
    """Text of a prompt file of this package.

    Args:
        name: file name without ``.md``.
    """
    source = resources.files("palio.agents") / "prompts" / f"{name}.md"
    return source.read_text(encoding="utf-8").strip()
