"""Clean chat rows are read and gated in one pass over typed messages, at seven times the speed.

A row is clean when `palio.corpus.readers.chat` would list no loss and rename nothing. What is not
proved clean is handed to the general reader, so both ways give the same result. A clean row that a
gate may drop is handed to the gates themselves as a trajectory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec

from palio.corpus.config import CorpusConfig
from palio.corpus.conversation import RECOMMEND, ids_in
from palio.corpus.gates import Gate
from palio.corpus.readers.assembly import external_agent
from palio.corpus.readers.reading import short_name
from palio.corpus.readers.record import events_of
from palio.corpus.readers.sources import RawRecord
from palio.corpus.shards.calls import ending_of, signals_of
from palio.corpus.shards.clean import CleanMessage, CleanRow, Told, is_plain, told_of
from palio.corpus.shards.columns import Kept, Run, key_of
from palio.corpus.shards.offers import Offer, Offers, read_of_chat
from palio.corpus.shards.passing import ACTING, Dropped, Passed, Passing
from palio.corpus.shards.usual import UsualRow, told_of_usual
from palio.judging.richness import RICHNESS, RICHNESS_VERSION, axis_of
from palio.records import (
    AgentRef,
    Ending,
    JudgeId,
    RichnessVerdict,
    ToolCall,
    Trajectory,
    bytes_digest,
    to_json,
)
from palio.rollout.verdicts import Judged, Verdicts

_PATIENCE = 16
"""Rows in a row that are clean and of no usual shape, after which that is no longer hoped for."""
_FAULTS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_ANSWER = os.urandom(16).hex()
_sorted = msgspec.json.Encoder(order="sorted").encode
_arguments = msgspec.json.Decoder(dict[str, Any]).decode


class Doubtful(NamedTuple):
    """A row that the gates must see.

    Attributes:
        judged: what gates look at, where that needs no events; the same gates drop it either way.
        whole: makes the trajectory as the general reader does.
    """

    judged: Judged | None
    whole: Callable[[], Trajectory]


class DirectReader:
    """Reads clean chat rows of one file.

    Args:
        file: its name.
        config: the gates.
        steps: the gates as they apply; others than `GATES` are asked themselves.
    """

    def __init__(
        self, file: str, config: CorpusConfig, steps: Sequence[tuple[str, Sequence[Gate]]]
    ) -> None:
        self._source = f"chat:{short_name(file)}"
        self._config = config
        self._passing = Passing(config, steps)
        self._usual = msgspec.json.Decoder(UsualRow).decode
        self._clean = msgspec.json.Decoder(CleanRow[CleanMessage]).decode
        self._unusual = 0
        self._offers = Offers(read_of_chat)
        self._agents: dict[tuple[str, str], AgentRef] = {}
        self._runs: dict[tuple[str, str, Ending], tuple[str, str]] = {}
        axes = [
            config.axis_of(rich if level in config.evidence else None) in config.axes
            for rich, level in ((1.0, "heuristic"), (None, "unknown"))
        ]
        self._on_axis, self._off_axis = axes

    def read(self, raw: RawRecord) -> Kept | Dropped | Doubtful | None:
        """A row that passes every gate, one that must go or be seen by gates; None: not clean."""
        data, offers = raw.data, self._offers
        row, told = self._told(data)
        offer = offers.offer
        if row is None or told is None or offer is None or not is_plain(row):
            return None
        name = row.trajectory_id or row.id or bytes_digest(_sorted(msgspec.json.decode(data)))[7:39]
        agent = self._agents.get((row.agent, row.model))
        if agent is None:
            agent = external_agent(row.agent, row.model)
            self._agents[row.agent, row.model] = agent
        if self._passing.covered:
            size = len(data) - len(offers.last) + 20 * len(told.talk.tools)
            passed = self._passing.passed(row.messages, told, offer, size)
            if passed is not None and (self._on_axis if passed.moves.catalogue else self._off_axis):
                return self._kept(name, agent, row, offer, told, passed, raw.line)
            if passed is None and (gone := self._passing.gone(told)) is not None:
                return Dropped(*gone, name, row.problem_id, agent.name)
        return self._doubtful(_heads(name, row), agent, row, offer, told)

    def _told(self, data: bytes) -> tuple[CleanRow[Any] | None, Told | None]:
        """A row and what it says, by whichever decoder takes it."""
        spliced = self._offers.spliced(data)
        if self._unusual < _PATIENCE:
            try:
                usual = self._offers.decoded(self._usual, data, spliced)
            except _FAULTS:
                pass
            else:
                self._unusual = 0
                return usual, told_of_usual(usual.messages)
        try:
            clean = self._offers.decoded(self._clean, data, spliced)
        except _FAULTS:
            return None, None
        self._unusual += 1
        return clean, told_of(clean.messages)

    def _doubtful(
        self,
        heads: tuple[str, str, str, str],
        agent: AgentRef,
        row: CleanRow[Any],
        offer: Offer,
        told: Told,
    ) -> Doubtful:
        """A row for the gates; without events where they tell nothing that the messages do not.

        Most such rows are dropped, and making events costs as much as all gates together.
        """
        trajectory = self._trajectory(heads, agent, row, offer)
        whole = partial(_with_events, trajectory)
        if not told.tidy or len(told.results) != len(told.talk.tools):
            return Doubtful(None, whole)
        acted = not ACTING.isdisjoint(told.talk.tools)
        verdicts = Verdicts(richness=_richness(acted, self._config.agentic, self._config.subtask))
        return Doubtful(Judged(trajectory=trajectory, verdicts=verdicts), whole)

    def _trajectory(
        self, heads: tuple[str, str, str, str], agent: AgentRef, row: CleanRow[Any], offer: Offer
    ) -> Trajectory:
        """What the general reader makes of a clean row, but for its events."""
        messages = tuple(row.messages)
        answers = [
            ids_in(_parsed(call))
            for message in messages
            for call in message.tool_calls
            if call.function.name == RECOMMEND
        ]
        return Trajectory(
            trajectory_id=heads[0],
            problem_id=heads[1],
            query=heads[2],
            kind=heads[3],
            agent=agent,
            events=(),
            messages=messages,
            tools=offer.tools,
            answer=",".join(answers[-1]) if answers else None,
            ending=ending_of([call.function.name for m in messages for call in m.tool_calls]),
            isolation="unknown",
            eligible=False,
            source=self._source,
        )

    def _kept(
        self,
        name: str,
        agent: AgentRef,
        row: CleanRow[Any],
        offer: Offer,
        told: Told,
        passed: Passed,
        line: int,
    ) -> Kept:
        moves, parsed, wanted = passed
        catalogue = moves.catalogue
        return Kept(
            *_heads(name, row),
            agent.name,
            told.talk,
            offer.text,
            self._run(row, agent, moves.ending, ",".join(wanted)),
            None,
            line,
            "chat",
            None,
            key_of(told.said),
            "heuristic" if catalogue else "unknown",
            "agentic" if catalogue else "unknown",
            1.0 if catalogue else None,
            catalogue,
            catalogue,
            *signals_of(told, moves, parsed, wanted),
        )

    def _run(self, row: CleanRow[Any], agent: AgentRef, ending: Ending, answer: str) -> str:
        """The rest of the run as JSON; in rows of one agent only the answer differs."""
        around = self._runs.get((row.agent, row.model, ending))
        if around is None:
            run = Run(
                agent=agent,
                answer=_ANSWER,
                ending=ending,
                isolation="unknown",
                eligible=False,
                source=self._source,
            )
            before, _, after = to_json(run).decode().partition(f'"{_ANSWER}"')
            self._runs[row.agent, row.model, ending] = around = before, after
        told = f'"{answer}"' if answer.isalnum() else to_json(answer).decode()
        return f"{around[0]}{told}{around[1]}"


def _heads(name: str, row: CleanRow[Any]) -> tuple[str, str, str, str]:
    return name, row.problem_id, row.query or _request(row.messages), row.kind


def _request(messages: list[Any]) -> str:
    return next((m.content for m in messages if m.role == "user"), "") or ""


def _parsed(call: ToolCall) -> dict[str, Any] | None:
    try:
        return _arguments(call.function.arguments)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _with_events(trajectory: Trajectory) -> Trajectory:
    return msgspec.structs.replace(trajectory, events=events_of(trajectory.messages))


@lru_cache(maxsize=8)
def _richness(acted: bool, agentic: float, subtask: float) -> RichnessVerdict:
    """What gates read of the verdict: all calls of a chat row are the model's, if there are any."""
    richness = 1.0 if acted else None
    return RichnessVerdict(
        trajectory_id="",
        problem_id="",
        judge=JudgeId(name=RICHNESS, version=RICHNESS_VERSION),
        evidence="heuristic" if acted else "unknown",
        emitted=int(acted),
        dispatched=int(acted),
        richness=richness,
        axis=axis_of(richness, agentic, subtask),
    )
