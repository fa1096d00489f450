"""Every observation of a trajectory is asked for again; the world's answer decides what it was.

- match: equal as values; white space, key order, 5 for 5.0 and the order of tags do not matter.
- forged: it claims something that the world never returned. In the same world (equal catalogue
  digest and palio version) that is every other answer, since tools are pure functions. Where a
  trace does not say what world it saw: it names a product that the call does not return, or has
  another shape.
- drift: it differs, and a changed world explains it: another catalogue digest, or the same ids or
  shape with other values, or members left out.
- outside: the world was not asked: the broker refused the call, or the tool is not of this world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Literal, NamedTuple

import msgspec

from palio import __version__
from palio.corpus.conversation import turns
from palio.records import DispatchEvent, Record, Trajectory
from palio.world.arguments import CATALOGUE_TOOLS, SEVEN_TOOLS
from palio.world.catalogue import Catalogue
from palio.world.tools import Toolbox, ToolReply, tool_message
from palio.world.world import COMPACT, FULL, World, WorldConfig, config_of_catalogue

Status = Literal["match", "drift", "forged", "outside"]
STATUSES: tuple[Status, ...] = ("match", "drift", "forged", "outside")
Origin = Literal["same", "other", "unknown"]
"""Whether a trajectory was recorded in the world that replays it, as far as it says."""

TAGS = frozenset({"service", "attributes"})
"""Members whose lists are sets: exports write them in any order."""
ROWS = {
    "find_product": frozenset({"product_id", "shop_id", "title", "price"}),
    "view_product_information": frozenset({"product_id", "sku_options", "attributes"}),
}
"""Members of the compact world's rows."""
WRAPPERS = ("result", "results", "observation", "output", "data")
WARNING = "Warning: "
REFUSALS = (
    "budget",
    "arguments longer",
    "the tool failed on the host's side",
    "there is no tool",  # that was not offered in this run
)
"""How the broker's own refusals begin."""


class Observation(Record, frozen=True, omit_defaults=False):
    """What became of one observation.

    Attributes:
        index: its place among the trajectory's observations, from 0.
        exact: whether even its bytes are the world's.
        detail: where it differs first; "" for a match.
    """

    index: int
    tool: str
    status: Status
    exact: bool = False
    detail: str = ""


class Replay(Record, frozen=True, omit_defaults=False):
    """A trajectory's observations beside the world's answers."""

    trajectory_id: str
    problem_id: str
    agent: str
    catalogue: Origin
    observations: tuple[Observation, ...]

    @property
    def worst(self) -> Status:
        """The gravest status of its observations; a trajectory without any matches."""
        found = {observation.status for observation in self.observations}
        return "forged" if "forged" in found else "drift" if "drift" in found else "match"


class Recorded(NamedTuple):
    """One observation as a trajectory holds it."""

    tool: str
    arguments: str
    result: str
    warnings: tuple[str, ...] = ()
    refused: bool = False


class Replayer:
    """Replays trajectories in one world; equal calls are carried out once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._toolbox = Toolbox(world)
        self._replies: dict[tuple[str, str], ToolReply] = {}

    def reply(self, tool: str, arguments: str) -> ToolReply:
        """The world's answer to a call."""
        key = (tool, arguments)
        if key not in self._replies:
            if len(self._replies) >= 100_000:
                self._replies.clear()
            self._replies[key] = self._toolbox.call(tool, arguments)
        return self._replies[key]

    def origin(self, trajectory: Trajectory) -> Origin:
        """Whether the trajectory says that it was recorded in this world's catalogue."""
        if not trajectory.catalogue_digest:
            return "unknown"
        same = trajectory.catalogue_digest == self.world.catalogue.digest
        return "same" if same else "other"

    def replay(self, trajectory: Trajectory) -> Replay:
        """Replay one trajectory: its record, and what its messages say beside the record."""
        origin = self.origin(trajectory)
        firm = origin == "same" and trajectory.tool_version == __version__
        found = []
        for index, recorded in enumerate(recorded_observations(trajectory)):
            status, exact, detail = self.judge(recorded, origin, firm=firm)
            found.append(
                Observation(
                    index=index, tool=recorded.tool, status=status, exact=exact, detail=detail
                )
            )
        return Replay(
            trajectory_id=trajectory.trajectory_id,
            problem_id=trajectory.problem_id,
            agent=trajectory.agent.name,
            catalogue=origin,
            observations=tuple(found),
        )

    def judge(
        self, recorded: Recorded, origin: Origin = "same", *, firm: bool = True
    ) -> tuple[Status, bool, str]:
        """(status, whether the bytes are equal, the first difference) of one observation.

        Args:
            recorded: the observation.
            origin: whether it was made in this world's catalogue.
            firm: whether it was made by this very world, so that nothing can have drifted.
        """
        reply = self.reply(recorded.tool, recorded.arguments)
        value, said = read_observation(recorded.result)
        warnings = (*recorded.warnings, *said)
        answer = _value(reply.result)
        exact = recorded.result in (reply.result, tool_message(reply))
        invented = [line for line in warnings if line not in reply.warnings]
        if canonical(value) == canonical(answer) and not invented:
            return "match", exact, ""
        if recorded.refused and _is_refusal(value):
            return "outside", False, "the broker refused the call"
        if not firm and recorded.tool not in CATALOGUE_TOOLS:
            what = "its harness's own words" if recorded.tool in SEVEN_TOOLS else "a foreign tool"
            return "outside", False, what
        where = first_difference(value, answer) or f"warning {invented[0][:80]!r}"
        part = _is_part(canonical(value), canonical(answer)) or _is_cut(value, reply.result)
        explained = part and not invented
        if origin == "other" or explained:
            return "drift", False, where
        if firm or _claims_more(value, answer):
            return "forged", False, where
        return "drift", False, where


def recorded_observations(trajectory: Trajectory) -> Iterator[Recorded]:
    """The observations of the record, then those of tool messages that the record does not hold.

    Training reads the messages, so a forged message beside an honest record is a forgery too.
    """
    known: set[tuple[str, str, str]] = set()
    for event in trajectory.dispatches:
        yield _of_event(event)
        reply = ToolReply(result=event.result, warnings=event.warnings)
        known.add((event.tool, event.arguments, tool_message(reply)))
        known.add((event.tool, event.arguments, event.result))
    for message, replies in turns(trajectory.messages):
        results = {reply.tool_call_id: reply.content or "" for reply in replies}
        for call in message.tool_calls:
            asked, text = call.function, results.get(call.id)
            if text is not None and (asked.name, asked.arguments, text) not in known:
                yield Recorded(asked.name, asked.arguments, text)


def _of_event(event: DispatchEvent) -> Recorded:
    refused = event.fault is not None or event.error.startswith(REFUSALS)
    return Recorded(event.tool, event.arguments, event.result, event.warnings, refused)


def read_observation(text: str) -> tuple[Any, tuple[str, ...]]:
    """(value, warnings) of an observation's text: JSON, then lines of warnings; else the text.

    A lone wrapper such as {"result": ...} is taken off.
    """
    value = _value(text)
    said: list[str] = []
    if value is text and WARNING in text:
        first, *rest = text.split("\n")
        if all(line.startswith(WARNING) for line in rest):
            value, said = _value(first), [line.removeprefix(WARNING) for line in rest]
    while isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        if name not in WRAPPERS or not isinstance(inner, dict | list):
            break
        value = inner
    return value, tuple(said)


def canonical(value: Any, *, tags: bool = False) -> Any:
    """A value in the form in which observations are equal; comparable by ==."""
    if isinstance(value, Mapping):
        return {name: canonical(inner, tags=tags or name in TAGS) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        items = [canonical(inner, tags=tags) for inner in value]
        return sorted(items) if tags and all(isinstance(one, str) for one in items) else items
    return ("flag", value) if isinstance(value, bool) else value  # True == 1 only in Python


def first_difference(recorded: Any, answer: Any, path: str = "") -> str:
    """One sentence: where two values differ first, what was recorded, what the world has."""
    if isinstance(recorded, dict) and isinstance(answer, dict):
        for name in (*answer, *(name for name in recorded if name not in answer)):
            if name not in recorded or name not in answer:
                side = "is not recorded" if name in answer else "is not the world's"
                return f"{path}.{name} {side}"
            inner = first_difference(recorded[name], answer[name], f"{path}.{name}")
            if inner:
                return inner
        return ""
    if isinstance(recorded, list) and isinstance(answer, list):
        for place, (one, other) in enumerate(zip(recorded, answer, strict=False)):
            inner = first_difference(one, other, f"{path}[{place}]")
            if inner:
                return inner
        if len(recorded) == len(answer):
            return ""
        return f"{path or 'the list'} has {len(recorded)} members, the world's {len(answer)}"
    if canonical(recorded) == canonical(answer):
        return ""
    return f"{path or 'the answer'} is {_short(recorded)}, the world's {_short(answer)}"


class Worlds:
    """The worlds of some catalogues, built when the first trajectory needs them.

    Args:
        catalogues: by id. A single one also serves trajectories that name none, or another.
        config: how the worlds show themselves; None: told by each trajectory's rows, and where it
            has none by the catalogue.
    """

    def __init__(
        self, catalogues: Mapping[str, Catalogue], config: WorldConfig | None = None
    ) -> None:
        self._catalogues = dict(catalogues)
        self._config = config
        self._replayers: dict[tuple[str, str], Replayer] = {}
        self._lock = Lock()

    def replayer(self, trajectory: Trajectory) -> Replayer | None:
        """What replays a trajectory; None where its catalogue is not at hand."""
        catalogue = self._catalogues.get(trajectory.catalogue)
        if catalogue is None and len(self._catalogues) == 1:
            catalogue = next(iter(self._catalogues.values()))
        if catalogue is None:
            return None
        config = self._config or config_of(trajectory) or config_of_catalogue(catalogue)
        key = (catalogue.catalogue_id, config.name)
        with self._lock:
            if key not in self._replayers:
                self._replayers[key] = Replayer(World.build(catalogue, config))
            return self._replayers[key]


def config_of(trajectory: Trajectory) -> WorldConfig | None:
    """The world that a trajectory's rows look like: compact ones are few and have four members.

    None where it holds no rows.
    """
    for recorded in recorded_observations(trajectory):
        value, _ = read_observation(recorded.result)
        rows = value if isinstance(value, list) else []
        if recorded.tool not in ROWS or not rows or not all(isinstance(row, dict) for row in rows):
            continue
        keys = set().union(*rows)
        size = COMPACT.spec.page_size if recorded.tool == "find_product" else len(rows)
        return COMPACT if keys <= ROWS[recorded.tool] and len(rows) <= size else FULL
    return None


def totals(replays: Iterable[Replay]) -> dict[str, int]:
    """Observations by status, every status named."""
    counts = Counter(o.status for replay in replays for o in replay.observations)
    return {status: counts[status] for status in STATUSES}


def _value(text: str) -> Any:
    """The JSON value of a text; the text itself when it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _is_refusal(value: Any) -> bool:
    """Nothing but an error: a refused call can carry no claim."""
    return isinstance(value, dict) and set(value) == {"error"}


def _is_part(recorded: Any, answer: Any) -> bool:
    """Whether a canonical value is the answer with members left out, as narrow exports write it."""
    if isinstance(recorded, dict) and isinstance(answer, dict):
        return bool(recorded) and all(
            name in answer and _is_part(inner, answer[name]) for name, inner in recorded.items()
        )
    if isinstance(recorded, list) and isinstance(answer, list) and len(recorded) == len(answer):
        return all(_is_part(one, other) for one, other in zip(recorded, answer, strict=True))
    return bool(recorded == answer)


def _is_cut(recorded: Any, answer: str) -> bool:
    """Whether a text is the beginning of the world's answer, as truncating loggers leave it."""
    if not isinstance(recorded, str):
        return False
    bare = "".join(recorded.split()).rstrip(".\u2026")
    return bool(bare) and "".join(answer.split()).startswith(bare)


def _claims_more(recorded: Any, answer: Any) -> bool:
    """Whether a record names products that the answer does not, or is of another shape."""
    named, known = set(_ids(recorded)), set(_ids(answer))
    if named or known:
        return not named <= known or not isinstance(recorded, type(answer))
    return bool(_shape(recorded) != _shape(answer))


def _ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "product_id" in value:
            yield str(value["product_id"])
        for inner in value.values():
            yield from _ids(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _ids(inner)


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return "list"
    if isinstance(value, bool) or value is None:
        return "flag"
    return "number" if isinstance(value, int | float) else "text"


def _short(value: Any) -> str:
    text = (
        value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "replace")
    )
    return repr(text if len(text) <= 60 else text[:57] + "...")
