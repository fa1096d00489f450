"""Statistics are measured on the published files, never taken over from the build."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from palio import __version__
from palio.corpus.card.about import About
from palio.corpus.card.spread import effective, entropy, spread
from palio.corpus.card.stats import (
    AgentStats,
    CertificateStats,
    Diversity,
    JudgingStats,
    OutcomeStats,
    PoolStats,
    ScrubStats,
    SequenceStats,
    SourceStats,
    Stats,
)
from palio.corpus.certificate import CERTIFICATE, read_certificate
from palio.corpus.config import POOLS
from palio.corpus.earlier import kept_rows
from palio.corpus.funnel import Funnel, read_funnel
from palio.corpus.lineage import Lineage
from palio.corpus.neighbours import call_sequence, written
from palio.corpus.origin import origin
from palio.corpus.rows import CorpusRow
from palio.corpus.scrub import placeholders
from palio.records import QUALITY_BINS, InputError, JudgeId, Message, to_json
from palio.suites.keys import normalise_text
from palio.world.artefacts import MANIFEST, file_digest, read_manifest

TOP_SEQUENCES = 10
RowTokens = Callable[[Sequence[Message]], int]
"""Tokens of a conversation, tool schemas left out."""


class _Seen(NamedTuple):
    """What is kept of one row."""

    pool: str
    problem: str
    cluster: str
    query: bytes
    agent: str
    kind: str
    size: int
    written: int
    tokens: int
    turns: int
    calls: int
    tools: tuple[str, ...]
    called: bytes
    coefficient: float | None


def measure(
    folder: Path,
    about: About,
    *,
    tokens: RowTokens | None = None,
    tokenizer: str = "",
    progress: Callable[[int], None] | None = None,
) -> Stats:
    """Measure a corpus folder.

    Args:
        folder: a finished corpus.
        about: what a card says that no file can tell, licences among it.
        tokens: counts the tokens of a conversation; None leaves tokens out.
        tokenizer: digest of what counts.
        progress: called with the number of rows measured so far.

    Raises:
        InputError: the folder is no corpus, or a file of it is wrong.
        IntegrityError: rows and lineage do not match.
    """
    manifest = read_manifest(folder / MANIFEST)
    if manifest is None:
        raise InputError("no manifest here", where=str(folder), remedy="name a corpus folder")
    seen: list[_Seen] = []
    said = _Said()
    for row, lineage in kept_rows(folder):
        messages = row.typed()
        seen.append(_seen(row, lineage, messages, tokens))
        said.add(lineage, messages)
        if progress is not None:
            progress(len(seen))
    funnel = read_funnel(folder)
    counted = tokens is not None
    return Stats(
        name=about.title or folder.name,
        manifest=file_digest(folder / MANIFEST),
        tool_version=__version__,
        config=manifest.config,
        config_digest=manifest.config_digest,
        inputs=manifest.inputs,
        funnel=funnel,
        total=_pool(seen, counted),
        pools={pool: _pool([s for s in seen if s.pool == pool], counted) for pool in POOLS},
        diversity=_diversity(seen, funnel),
        judging=said.judging(),
        sources={
            source: SourceStats(rows=rows, licence=about.licence_of(source))
            for source, rows in _ranked(said.sources)
        },
        scrubbed=said.scrubbed(),
        certificate=_certificate(folder),
        tokenizer=tokenizer,
    )


def _seen(
    row: CorpusRow, lineage: Lineage, messages: Sequence[Message], tokens: RowTokens | None
) -> _Seen:
    names = [call.function.name for message in messages for call in message.tool_calls]
    asked = next((m.content or "" for m in messages if m.role == "user"), "")
    return _Seen(
        pool=lineage.pool,
        problem=row.problem_id,
        cluster=row.cluster_id,
        query=hashlib.blake2b(normalise_text(asked).encode(), digest_size=12).digest(),
        agent=row.agent,
        kind=row.kind,
        size=len(to_json(row.messages)),
        written=len(written(messages).encode()),
        tokens=tokens(messages) if tokens else 0,
        turns=sum(message.role == "assistant" for message in messages),
        calls=len(names),
        tools=_runs(names),
        called=call_sequence(messages)[:12],
        coefficient=lineage.coefficient,
    )


def _runs(names: Iterable[str]) -> tuple[str, ...]:
    """Tool names in order, "find_product x3" for three in a row."""
    runs = ((name, sum(1 for _ in run)) for name, run in groupby(names))
    return tuple(name if length == 1 else f"{name} x{length}" for name, length in runs)


def _pool(seen: Sequence[_Seen], counted: bool) -> PoolStats:
    queries = Counter(row.query for row in seen)
    return PoolStats(
        rows=len(seen),
        queries=len(queries),
        problems=len({row.problem for row in seen}),
        clusters=len({row.cluster for row in seen}),
        agents=len({row.agent for row in seen}),
        kinds=dict(_ranked(Counter(row.kind for row in seen))),
        rows_per_query=spread(queries.values()),
        top_query=max(queries.values(), default=0),
        bytes=spread(row.size for row in seen),
        written=spread(row.written for row in seen),
        tokens=spread(row.tokens for row in seen) if counted else None,
        turns=spread(row.turns for row in seen),
        calls=spread(row.calls for row in seen),
    )


def _diversity(seen: Sequence[_Seen], funnel: Funnel) -> Diversity:
    by_agent: dict[str, list[_Seen]] = defaultdict(list)
    sequences: Counter[tuple[str, ...]] = Counter()
    users: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for row in seen:
        by_agent[row.agent].append(row)
        sequences[row.tools] += 1
        users[row.tools].add(row.agent)
    rows = _ranked(Counter({agent: len(held) for agent, held in by_agent.items()}))
    return Diversity(
        top_agent=rows[0][0] if rows else "",
        top_share=rows[0][1] / len(seen) if rows else 0.0,
        effective_agents=effective(count for _, count in rows),
        sequences=len(sequences),
        sequence_entropy=entropy(sequences.values()),
        effective_sequences=effective(sequences.values()),
        call_sequences=len({row.called for row in seen}),
        top_sequences=tuple(
            SequenceStats(tools=tools, rows=count, agents=len(users[tools]))
            for tools, count in _ranked(sequences)[:TOP_SEQUENCES]
        ),
        agents={agent: _agent(by_agent[agent], len(seen), funnel) for agent, _ in rows},
    )


def _agent(rows: Sequence[_Seen], total: int, funnel: Funnel) -> AgentStats:
    sequences = Counter(row.tools for row in rows)
    judged = [row.coefficient for row in rows if row.coefficient is not None]
    count = funnel.agents.get(rows[0].agent)
    return AgentStats(
        rows=len(rows),
        taken=count.taken if count else 0,
        share=len(rows) / total,
        queries=len({row.query for row in rows}),
        sequences=len(sequences),
        entropy=entropy(sequences.values()),
        coefficient=sum(judged) / len(judged) if judged else None,
    )


def _ranked(counts: Counter[Any]) -> list[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


class _Said:
    """What lineage and placeholders say, counted row by row."""

    def __init__(self) -> None:
        self.sources: Counter[str] = Counter()
        self._quality: Counter[str] = Counter()
        self._coefficients: list[float] = []
        self._richness: Counter[str] = Counter()
        self._evidence: Counter[str] = Counter()
        self._outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self._judges: Counter[str] = Counter()
        self._values: Counter[str] = Counter()
        self._scrubbed_rows: Counter[str] = Counter()
        self._rows = 0

    def add(self, lineage: Lineage, messages: Sequence[Message]) -> None:
        """Count one row."""
        self._rows += 1
        self.sources[origin(lineage.source)] += 1
        self._add_verdicts(lineage)
        values = placeholders(to_json(messages).decode())
        self._values.update(values)
        self._scrubbed_rows.update(values.keys())

    def _add_verdicts(self, lineage: Lineage) -> None:
        verdicts = lineage.verdicts
        quality = verdicts.reasoning.quality if verdicts.reasoning else None
        self._quality["unjudged" if quality is None else f"{quality:g}"] += 1
        if lineage.coefficient is not None:
            self._coefficients.append(lineage.coefficient)
        self._richness[_bin(lineage.richness)] += 1
        self._evidence[verdicts.richness.evidence if verdicts.richness else "unknown"] += 1
        firsts = {v.profile: v for v in reversed(verdicts.outcomes)}
        for profile, verdict in firsts.items():
            word = "success" if verdict.success else "failure"
            self._outcomes[profile]["unscored" if verdict.status == "unscored" else word] += 1
        given = (*verdicts.outcomes, verdicts.reasoning, verdicts.richness)
        self._judges.update(_judge(verdict.judge) for verdict in given if verdict is not None)

    def judging(self) -> JudgingStats:
        """The verdicts of all rows."""
        bins = [f"{quality:g}" for quality in QUALITY_BINS]
        others = sorted(set(self._quality) - {*bins, "unjudged"})
        tenths = [f"{n / 10:g}" for n in range(1, 11)]
        return JudgingStats(
            quality={name: self._quality[name] for name in (*bins, *others, "unjudged")},
            coefficient=spread(self._coefficients),
            richness={name: self._richness[name] for name in (*tenths, "unknown")},
            evidence=dict(_ranked(self._evidence)),
            outcomes={
                profile: OutcomeStats(**counts, missing=self._rows - sum(counts.values()))
                for profile, counts in sorted(self._outcomes.items())
            },
            judges=dict(_ranked(self._judges)),
        )

    def scrubbed(self) -> dict[str, ScrubStats]:
        """Placeholders by kind."""
        return {
            kind: ScrubStats(rows=self._scrubbed_rows[kind], values=values)
            for kind, values in _ranked(self._values)
        }


def _bin(richness: float | None) -> str:
    """The upper edge of the tenth that holds it; 0 belongs to the first."""
    if richness is None:
        return "unknown"
    return f"{max(1, min(10, -int(-richness * 10 // 1))) / 10:g}"


def _judge(judge: JudgeId) -> str:
    return f"{judge.name} {judge.version}"


def _certificate(folder: Path) -> CertificateStats | None:
    path = folder / CERTIFICATE
    if not path.is_file():
        return None
    held = read_certificate(folder)
    return CertificateStats(
        digest=file_digest(path),
        algorithm=held.algorithm,
        clusters=held.clusters,
        problems=held.problems,
        joins=held.joins,
        quarantined=len(held.quarantine),
        alarms=len(held.alarms),
        compared=held.compared,
        shared=sum(held.shared.values()),
        nearest=held.nearest.jaccard if held.nearest else None,
        known={
            benchmark: max((sum(pools.values()) for pools in rules.values()), default=0)
            for benchmark, rules in held.known.items()
        },
    )
