"""A model, or a panel of models, judges reasoning from the record; the record has the last word."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from palio.judging.evidence import EvidenceJudge
from palio.judging.llm.asking import Asker, Shared
from palio.judging.llm.config import VERSION, JudgeConfig, Member, read_config
from palio.judging.llm.document import DELIMITED, Prompt, document, packaged_prompt
from palio.judging.llm.pacing import Clock, RetryBudget, Sleep
from palio.judging.llm.panel import cross_checked, unasked, verdict_of
from palio.judging.llm.quoting import Quoting
from palio.judging.llm.replies import ReplyCache
from palio.judging.llm.server import Server, load_client
from palio.judging.llm.spans import Trace
from palio.judging.llm.spend import Meter
from palio.judging.outcome import infrastructure_fault
from palio.records.base import digest
from palio.records.faults import ConfigError
from palio.records.trajectory import Trajectory
from palio.records.verdict import JudgeId, Opinion, ReasoningVerdict
from palio.world.background import BackgroundLoop

EVIDENCE = "evidence"
AHEAD = 4
"""Runs held a seat, so that one slow verdict does not leave the other seats empty."""
BREATH_S = 0.05
"""A run that waits for a seat anyway is rendered this much later: replies come in bursts, and what
the burst frees must be asked for first. Rendering and indexing a record take 1.2 ms."""


class LlmJudge:
    """Judges trajectories by a configuration; safe to call from many threads.

    All requests run on one event loop in a thread of its own, which starts with the first verdict
    and ends with `close`.

    Args:
        config: the members and their rule.
        prompt: the instruction; None: the shipped one.
        keys: environment variable name -> API key, for the names that endpoints give.
        cache: file that keeps replies; None: in memory only.
        clock: seconds.
        sleep: waits for seconds.
        quoting: how untrusted text is set apart; tests alone give another.

    Raises:
        MissingDependencyError: the package `openai` is not installed.
        ConfigError: an endpoint's key is not among `keys`.
    """

    def __init__(
        self,
        config: JudgeConfig,
        prompt: Prompt | None = None,
        keys: Mapping[str, str] | None = None,
        cache: Path | None = None,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        quoting: Quoting = DELIMITED,
    ) -> None:
        self.config = config
        self._prompt = prompt or packaged_prompt()
        named = [end.key for member in config.members for end in member.endpoints if end.key]
        self._keys = {name: value for name, value in (keys or {}).items() if name in named}
        self._cache_path = cache
        self._clock, self._sleep, self._quoting = clock, sleep, quoting
        self._evidence = EvidenceJudge()
        if any(member.model != EVIDENCE for member in config.members):
            load_client()
        missing = [name for name in named if not self._keys.get(name)]
        if missing:
            raise ConfigError(
                f"the API key {missing[0]} is not set",
                remedy=f"export {missing[0]}=..., or leave `key` out where the server needs none",
            )
        self.judge_id = self._identity()
        self.meter = Meter(config.prices)
        self._loop = BackgroundLoop("palio-judge", self._shut)
        self._cache: ReplyCache | None = None
        self._servers: list[Server] = []
        self._askers: dict[str, Asker] = {}

    def _identity(self) -> JudgeId:
        members = [self._member_id(member) for member in self.config.members]
        if len(members) == 1:
            name = self.config.name or members[0].name
            return JudgeId(name=name, version=members[0].version,
                           config_digest=members[0].config_digest)  # fmt: skip
        decides = digest([members, self.config.needed])
        return JudgeId(name=self.config.name or "panel", version=VERSION, config_digest=decides)

    def _member_id(self, member: Member) -> JudgeId:
        if member.model == EVIDENCE:
            return self._evidence.judge_id
        return member.judge_id(self._prompt)

    def verdict(self, trajectory: Trajectory) -> ReasoningVerdict:
        """The verdict on one trajectory; blocks the calling thread."""
        return self._submit(trajectory).result()

    def verdicts(self, trajectories: Iterable[Trajectory]) -> Iterator[ReasoningVerdict]:
        """Verdicts in the order of the trajectories, as many at a time as configured."""
        waiting: deque[Future[ReasoningVerdict]] = deque()
        try:
            for n, trajectory in enumerate(trajectories):
                breath = BREATH_S if n >= self.config.concurrency else 0.0
                waiting.append(self._submit(trajectory, breath))
                if len(waiting) > AHEAD * self.config.concurrency:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Close connections, the cache file and the thread; verdicts in the making fail."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Another process makes its own connections; its rate limits are its own, too."""
        return LlmJudge, (self.config, self._prompt, self._keys, self._cache_path)

    def _submit(self, trajectory: Trajectory, breath: float = 0.0) -> Future[ReasoningVerdict]:
        return self._loop.submit(self._judge(trajectory, breath))

    def _open(self) -> None:
        """Make servers and askers on the loop; it is the first thing that the loop does."""
        self._cache = ReplyCache(self._cache_path)
        shared = Shared(
            cache=self._cache,
            meter=self.meter,
            retries=RetryBudget(self.config.retry_ratio),
            concurrency=self.config.concurrency,
            clock=self._clock,
            sleep=self._sleep,
            jitter=random.Random(0),
        )
        for member in self.config.members:
            if member.model == EVIDENCE:
                continue
            servers = [
                Server(end, member, self._keys.get(end.key, ""), self._clock, self._sleep)
                for end in member.endpoints
            ]
            self._servers += servers
            self._askers[member.name or member.model] = Asker(member, self._prompt, servers, shared)

    async def _shut(self) -> None:
        for server in self._servers:
            await server.close()
        self._servers, self._askers = [], {}
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    async def _judge(self, trajectory: Trajectory, breath: float) -> ReasoningVerdict:
        if self._cache is None:
            self._open()
        if breath:
            await asyncio.sleep(breath)
        fault = infrastructure_fault(trajectory)
        if fault is not None:
            what = "infrastructure failed, so there is nothing to judge"
            return unasked(trajectory, self.judge_id, "infrastructure", what, fault)
        if trajectory.salvaged:
            what = "its thinking was written after the fact, which is no reasoning"
            return unasked(trajectory, self.judge_id, "salvaged", what)
        text = document(trajectory, self._quoting)
        trace = Trace(trajectory)
        opinions = await asyncio.gather(
            *(self._opinion(member, trajectory, text, trace) for member in self.config.members)
        )
        verdict = verdict_of(trajectory, self.judge_id, opinions, self.config.needed)
        return cross_checked(verdict, self._evidence.verdict(trajectory))

    async def _opinion(
        self, member: Member, trajectory: Trajectory, text: str, trace: Trace
    ) -> Opinion:
        if member.model != EVIDENCE:
            return await self._askers[member.name or member.model].opinion(text, trace)
        found = self._evidence.verdict(trajectory)
        return Opinion(
            judge=found.judge,
            status=found.status,
            quality=found.quality,
            stated=found.quality,
            gates=found.gates,
            explanation=found.explanation,
        )


def judge_from(path: Path, keys: Mapping[str, str], cache: Path | None = None) -> LlmJudge:
    """The judge of a configuration file.

    Raises:
        ConfigError: the file is no such configuration, or a key is missing.
        MissingDependencyError: the package `openai` is not installed.
    """
    config, prompt = read_config(path)
    return LlmJudge(config, prompt, keys, cache)
