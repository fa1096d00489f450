"""verl's tools: each call goes to palio's toolbox, and what was carried out is left for the reward.

Named in `tools.yaml` of an export as `class_name`; verl makes one object a tool and process.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any
from uuid import uuid4

from palio.records import MissingDependencyError
from palio.train.environments.shop import shop_at
from palio.train.environments.verl_reward import CALLS, noted

try:
    from verl.tools.schemas import (  # type: ignore[import-not-found]
        OpenAIFunctionToolSchema,
        ToolResponse,
    )
except ImportError as failed:
    raise MissingDependencyError(
        f"palio's tools for verl need verl 0.9: {failed}",
        remedy="pip install 'verl>=0.9' where you train",
    ) from failed


class ExactSchema(OpenAIFunctionToolSchema):  # type: ignore[misc]
    """A tool's schema that the model reads as palio wrote it; verl's own drops nested members."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """The schema, whole."""
        return deepcopy(_SCHEMAS[self.function.name])


_SCHEMAS: dict[str, dict[str, Any]] = {}


class ShopTool:
    """One of palio's tools; the interface of `verl.tools.base_tool.BaseTool`.

    Args:
        config: "tool", its name, and "settings", the path of `shop.json`.
        tool_schema: not used: the schema is palio's.
    """

    def __init__(self, config: Mapping[str, Any], tool_schema: Any = None) -> None:  # noqa: ARG002
        self.config = dict(config)
        self.name: str = config["tool"]
        self._shop = shop_at(config["settings"])
        held: Any = next(each for each in self._shop.schemas() if _name(each) == self.name)
        _SCHEMAS[self.name] = dict(held)
        self.tool_schema: ExactSchema = ExactSchema.model_validate(_plain(held))
        self._catalogues: dict[str, str] = {}

    def get_openai_tool_schema(self) -> ExactSchema:
        """What the model is told."""
        return self.tool_schema

    async def create(
        self,
        instance_id: str | None = None,
        create_kwargs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> tuple[str, Any]:
        """Remember which catalogue the rollout shops in."""
        instance_id = instance_id or uuid4().hex
        self._catalogues[instance_id] = (create_kwargs or {}).get("catalogue", "")
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], agent_data: Any = None, **_: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        """Carry one call out; no reward of its own, the scorer looks at all calls together.

        There is no `await` in here, so that calls of one turn are carried out and noted in order.
        """
        text = self._shop.call(self._catalogues[instance_id], self.name, parameters)
        if agent_data is not None:
            agent_data.extra_fields.setdefault(CALLS, []).append(noted(self.name, parameters))
        return ToolResponse(text=text), 0.0, {}

    async def calc_reward(self, instance_id: str, **_: Any) -> float:  # noqa: ARG002
        """0: `reward.py` judges the whole rollout."""
        return 0.0

    async def release(self, instance_id: str, **_: Any) -> None:
        """Forget the rollout."""
        self._catalogues.pop(instance_id, None)


def _name(schema: Any) -> str:
    name: str = schema["function"]["name"]
    return name


def _plain(schema: Any) -> dict[str, Any]:
    """The schema as far as verl's own record holds it."""
    function = schema["function"]
    properties = {
        name: {key: value for key, value in each.items() if key in ("type", "description", "enum")}
        for name, each in function["parameters"]["properties"].items()
    }
    parameters = {**function["parameters"], "properties": properties}
    return {"type": "function", "function": {**function, "parameters": parameters}}
