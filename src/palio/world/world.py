"""A world is a catalogue, its search index and one declared configuration, known by one digest."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from palio.records import ConfigError, Record, digest
from palio.world.catalogue import Catalogue, Rows
from palio.world.search import SearchIndex, SearchSpec
from palio.world.web import DocumentIndex, WebSearch


class WorldConfig(Record, frozen=True, omit_defaults=False):
    """How a world shows itself to an agent; part of every artefact made in it.

    Attributes:
        rows: "full" as in ShoppingBench, or "compact": fewer fields and shorter numbers, because
            observations are what costs a small model its tokens.
        filters_mode: a filter that cannot be read is ignored in both modes; "compat" is silent
            about it as the arena is, "warn" tells the agent.
        spec: search semantics.
        max_steps: model turns that an episode may take.
    """

    name: str
    rows: Rows = "full"
    filters_mode: Literal["warn", "compat"] = "warn"
    spec: SearchSpec = SearchSpec()
    max_steps: int = 25


FULL = WorldConfig(name="full")
"""The arena's world: 10 results a page, every field, 25 steps."""

COMPACT = WorldConfig(name="compact", rows="compact", spec=SearchSpec(page_size=5), max_steps=10)
"""The demo's world: 5 results a page, short rows, 10 steps."""


class World:
    """A catalogue that can be searched under one configuration; picklable.

    Attributes:
        web: who answers `web_search`; None: nobody, and no agent is offered it.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        index: SearchIndex,
        config: WorldConfig,
        web: WebSearch | None = None,
    ) -> None:
        self.catalogue = catalogue
        self.index = index
        self.config = config
        self.web = web

    @classmethod
    def build(
        cls, catalogue: Catalogue, config: WorldConfig = FULL, web: WebSearch | None = None
    ) -> World:
        """Index the catalogue (about 25,000 products a second) and wrap it.

        Args:
            catalogue: what is sold.
            config: how it shows itself.
            web: who answers `web_search`; None: the catalogue's documents, if it has any.
        """
        if web is None and catalogue.documents:
            web = DocumentIndex(catalogue.documents)
        return cls(catalogue, SearchIndex.build(catalogue, config.spec), config, web)

    @cached_property
    def digest(self) -> str:
        """``sha256:<hex>`` of catalogue and configuration: equal digests answer calls equally."""
        decides = {"catalogue": self.catalogue.digest, "config": self.config}
        return digest({**decides, "web": self.web.digest} if self.web is not None else decides)


def config_named(name: str) -> WorldConfig | None:
    """FULL or COMPACT by name; None for "auto", which leaves it to the catalogue.

    Raises:
        ConfigError: no configuration has that name.
    """
    named = {"auto": None, FULL.name: FULL, COMPACT.name: COMPACT}
    if name not in named:
        raise ConfigError(f"no world is called {name!r}", remedy=f"use {', '.join(named)}")
    return named[name]


def config_of_catalogue(catalogue: Catalogue) -> WorldConfig:
    """The configuration that a catalogue was made for, as its manifest says."""
    return COMPACT if catalogue.rows == "compact" else FULL


def world_of_catalogue(catalogue: Catalogue, name: str = "auto") -> World:
    """The world of a catalogue under the configuration called `name`.

    Raises:
        ConfigError: no configuration has that name.
    """
    return World.build(catalogue, config_named(name) or config_of_catalogue(catalogue))
