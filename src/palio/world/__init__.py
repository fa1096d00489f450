"""The shopping world: catalogue, search, tools, voucher arithmetic; it knows nothing of agents."""

from palio.world.arguments import CATALOGUE_TOOLS, FOUR_TOOLS, SEVEN_TOOLS, canonical_arguments
from palio.world.catalogue import Catalogue, read_catalogue, read_catalogues, write_catalogue
from palio.world.search import SearchIndex, SearchSpec
from palio.world.tools import Toolbox, ToolReply, tool_message, tool_schemas
from palio.world.voucher import qualifies, total_after, voucher_total, within_budget
from palio.world.world import COMPACT, FULL, World, WorldConfig, world_of_catalogue

__all__ = [
    "CATALOGUE_TOOLS",
    "COMPACT",
    "FOUR_TOOLS",
    "FULL",
    "SEVEN_TOOLS",
    "Catalogue",
    "SearchIndex",
    "SearchSpec",
    "ToolReply",
    "Toolbox",
    "World",
    "WorldConfig",
    "canonical_arguments",
    "qualifies",
    "read_catalogue",
    "read_catalogues",
    "tool_message",
    "tool_schemas",
    "total_after",
    "voucher_total",
    "within_budget",
    "world_of_catalogue",
    "write_catalogue",
]
