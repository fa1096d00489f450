"""palio's tools over MCP, for verifiers: schemas and results are those of every other harness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import verifiers.v1 as vf  # type: ignore[import-not-found]
from mcp.server.mcpserver.tools.base import Tool  # type: ignore[import-not-found]
from mcp.server.mcpserver.utilities.func_metadata import (  # type: ignore[import-not-found]
    ArgModelBase,
    FuncMetadata,
)
from pydantic import ConfigDict

from palio.train.environments.shop import shop_at


class ShopState(vf.State):  # type: ignore[misc]
    """What the server must know of a rollout: the catalogue it shops in."""

    catalogue: str = ""


class ShopToolsConfig(vf.SharedToolsetConfig):  # type: ignore[misc]
    """Where `shop.json` lies."""

    settings: str = ""


class AnyArguments(ArgModelBase):  # type: ignore[misc]
    """Whatever a model sends: palio's toolbox says what is wrong with it."""

    model_config = ConfigDict(extra="allow")

    def model_dump_one_level(self) -> dict[str, Any]:
        """All of it as one argument."""
        return {"arguments": dict(self.__pydantic_extra__ or {})}


class ShopTools(vf.Toolset[ShopToolsConfig, ShopState]):  # type: ignore[misc]
    """One server for all rollouts of a worker; each call carries its rollout's catalogue."""

    TOOL_PREFIX = None

    def register(self, mcp: Any) -> None:
        """Offer every tool of the shop."""
        for schema in shop_at(self.config.settings).schemas():
            function: Any = schema["function"]
            name = function["name"]
            tool = Tool(
                fn=self._with_state(self._caller(name)),
                name=name,
                description=function["description"],
                parameters=function["parameters"],
                fn_metadata=FuncMetadata(arg_model=AnyArguments),
                is_async=True,
            )
            mcp._tool_manager._tools[name] = tool

    def _caller(self, name: str) -> Callable[..., str]:
        def call(arguments: dict[str, Any]) -> str:
            return shop_at(self.config.settings).call(self.state.catalogue, name, arguments)

        return call


if __name__ == "__main__":
    ShopTools.run()
