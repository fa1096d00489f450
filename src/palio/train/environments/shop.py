"""The shop as another framework needs it: one tool call at a time, and a verdict on the calls.

A verdict replays the calls through a session, as the broker would have recorded them, so that it is
the race's own verdict whoever carried the calls out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from palio.agents.harness import harness_settings
from palio.broker.limits import Limits
from palio.broker.session import Session
from palio.judging.encoders import TitleEncoder, encoder_named
from palio.judging.outcome import OutcomeScorer
from palio.records import (
    AgentRef,
    InputError,
    IntegrityError,
    OutcomeVerdict,
    Problem,
    Profile,
    Record,
    Tool,
    Trajectory,
    from_json,
)
from palio.train.ground import Worlds
from palio.world.catalogue import read_catalogues
from palio.world.tools import SEVEN_TOOLS, Toolbox, tool_message, tool_schemas
from palio.world.world import World, world_of_catalogue

SETTINGS = "shop.json"
TERMINATE = "terminate"


class Call(NamedTuple):
    """A tool call: name, and arguments as JSON text."""

    tool: str
    arguments: str


class ShopSettings(Record, frozen=True, omit_defaults=False):
    """What `shop.json` of an export says.

    Attributes:
        catalogues: folders or files of the catalogues that problems name.
        world: configuration of the worlds; "auto": as each catalogue says.
        encoder: title similarity of the scorer.
        tools: names of the tools that are offered.
        profile: outcome profile whose success is the reward.
        digests: catalogue id -> digest of its products, which rewards and prices come from; {} in
            exports of an older version, which any catalogue of the name serves.
    """

    catalogues: tuple[str, ...]
    world: str = "auto"
    encoder: str = "lexical"
    tools: tuple[str, ...] = SEVEN_TOOLS
    profile: Profile = "oro"
    digests: dict[str, str] = {}


def read_settings(path: Path) -> ShopSettings:
    """The settings of an export.

    Raises:
        InputError: no such file, or it holds something else.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"no settings of a shop: {error.strerror}",
            where=str(path),
            remedy="`palio corpus export --to verl` and `--to verifiers` write them",
        ) from error
    return from_json(data, ShopSettings, where=str(path))


class Shop:
    """Worlds, tools and scorer behind one object; safe from many threads.

    Args:
        worlds: catalogue id -> world.
        encoder: title similarity of the scorer.
        tools: names of the tools that are offered.
        profile: outcome profile whose success is the reward.
        digests: catalogue id -> digest of its products, where they are known.
    """

    def __init__(
        self,
        worlds: Worlds,
        encoder: TitleEncoder,
        *,
        tools: Sequence[str] = SEVEN_TOOLS,
        profile: Profile = "oro",
        digests: Mapping[str, str] | None = None,
    ) -> None:
        self.worlds = worlds
        self.digests = dict(digests or {})
        self.tools = tuple(tools)
        self.profile: Profile = profile
        self._encoder = encoder
        self._toolboxes: dict[str, Toolbox] = {}
        self._scorers: dict[str, OutcomeScorer] = {}

    @classmethod
    def open(cls, settings: ShopSettings) -> Shop:
        """The shop that settings describe; worlds are built when they are first asked for.

        Raises:
            InputError: a catalogue cannot be read.
            IntegrityError: one is not that which the settings were made for.
        """
        found, _ = read_catalogues([Path(name) for name in settings.catalogues])
        digests = {name: each.digest for name, each in found.items()}
        for name, digest in settings.digests.items():
            if name in digests and digests[name] != digest:
                raise IntegrityError(
                    f"the catalogue {name!r} is not the one that this was exported for",
                    where=", ".join(settings.catalogues),
                    remedy="put its files back, or export again",
                )
        makers = {
            name: (lambda held=catalogue: world_of_catalogue(held, settings.world))
            for name, catalogue in found.items()
        }
        encoder = encoder_named(settings.encoder)
        return cls(
            Worlds(makers),
            encoder,
            tools=settings.tools,
            profile=settings.profile,
            digests=digests,
        )

    def schemas(self) -> tuple[Tool, ...]:
        """The offered tools in nested OpenAI form, as every other harness of palio offers them."""
        return tool_schemas(self.tools)

    def system(self, catalogue: str) -> str:
        """The system message of a catalogue's world, "" for none."""
        return harness_settings(self._world(catalogue).config).system

    def max_steps(self, catalogue: str) -> int:
        """Turns that the model has."""
        return self._world(catalogue).config.max_steps

    def call(self, catalogue: str, tool: str, arguments: Mapping[str, Any] | str) -> str:
        """What the model reads after a call; what it did wrong stands in it.

        Raises:
            InputError: there is no such catalogue.
        """
        world = self._world(catalogue)
        if tool not in self.tools:
            return f'{{"error":"no tool {tool[:80]!r}"}}'
        toolbox = self._toolboxes.setdefault(catalogue, Toolbox(world))
        return tool_message(toolbox.call(tool, arguments))

    def record(
        self, problem: Problem, calls: Iterable[Call], *, agent: str = "guest"
    ) -> Trajectory:
        """The host's record of calls: carried out again in order, until the session is ended."""
        world = self._world(problem.catalogue)
        session = Session(AgentRef(name=agent), problem, world, limits=Limits(seconds=3600.0))
        for tool, arguments in calls:
            session.dispatch(tool, arguments)
            if tool == TERMINATE:
                break
        return session.close()

    def verdicts(
        self, problem: Problem, calls: Iterable[Call], profiles: Sequence[Profile]
    ) -> tuple[OutcomeVerdict, ...]:
        """What the race's scorer says of calls, under each profile."""
        name = problem.catalogue
        if name not in self._scorers:
            products = self._world(name).catalogue.products
            self._scorers.setdefault(name, OutcomeScorer(products, self._encoder))
        record = self.record(problem, calls)
        return tuple(self._scorers[name].verdict(problem, record, each) for each in profiles)

    def marks(self, problem: Problem, calls: Iterable[Call]) -> dict[str, float]:
        """Reward and measures of calls, each a number.

        `score` is 1 for a success under the profile, else 0; `strict` the same under the strict
        profile; `rule` the mean rule score in [0, 1]; `unscored` 1 where infrastructure failed,
        and then the others are 0.
        """
        found, strict = self.verdicts(problem, calls, (self.profile, "strict"))
        scored = found.status == "scored"
        return {
            "score": float(scored and found.success),
            "strict": float(strict.status == "scored" and strict.success),
            "rule": float(found.scores.get("rule", 0.0)) if scored else 0.0,
            "unscored": float(not scored),
        }

    def _world(self, catalogue: str) -> World:
        if catalogue not in self.worlds:
            raise InputError(
                f"no catalogue {catalogue!r} in this shop",
                remedy=f"name every catalogue of the suite in {SETTINGS}",
            )
        return self.worlds[catalogue]


@lru_cache(maxsize=8)
def shop_at(path: str) -> Shop:
    """The shop of a settings file, opened once a process."""
    return Shop.open(read_settings(Path(path)))
