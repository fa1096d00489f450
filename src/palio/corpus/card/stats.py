"""What a corpus holds, in numbers that each say of how many rows they speak.

One pass over the published rows and their lineage; per row a few numbers are in memory.
"""

from __future__ import annotations

from typing import Any

import msgspec

from palio.corpus.card.spread import Spread
from palio.corpus.funnel import Funnel
from palio.records import Record
from palio.records.base import current_schema


class PoolStats(Record, frozen=True, omit_defaults=False):
    """One pool, or all of them together.

    Attributes:
        rows: lines of its file.
        queries: different requests after normalisation: what rows must not be mistaken for.
        problems, clusters, agents: different ones among the rows.
        kinds: kind of problem -> rows.
        rows_per_query: rows of one request.
        top_query: rows of the request that has most.
        bytes: UTF-8 bytes of a row's messages as JSON; tool schemas are not part of it.
        written: bytes of them that the model wrote (thinking, text, calls): what is trained on.
        tokens: tokens of a row under the tokenizer that was given; None when none was.
        turns: assistant messages of a row.
        calls: tool calls of a row.
    """

    rows: int
    queries: int
    problems: int
    clusters: int
    agents: int
    kinds: dict[str, int]
    rows_per_query: Spread
    top_query: int
    bytes: Spread
    written: Spread
    tokens: Spread | None
    turns: Spread
    calls: Spread


class AgentStats(Record, frozen=True, omit_defaults=False):
    """One agent's part.

    Attributes:
        taken: its trajectories that came in, 0 when the funnel does not say.
        share: its rows / all rows.
        queries: different requests among its rows.
        sequences: different tool sequences; `entropy` of them in bits.
        coefficient: mean reasoning coefficient of its judged rows; None without any.
    """

    rows: int
    taken: int
    share: float
    queries: int
    sequences: int
    entropy: float
    coefficient: float | None


class SequenceStats(Record, frozen=True, omit_defaults=False):
    """One tool sequence: names in order, a run of one tool written once with its length."""

    tools: tuple[str, ...]
    rows: int
    agents: int


class Diversity(Record, frozen=True, omit_defaults=False):
    """How much of the corpus is one thing.

    Attributes:
        top_agent, top_share: the agent with most rows, and its part of all rows.
        effective_agents: agents of equal part that would have the same entropy.
        sequences: different sequences of tool names; `sequence_entropy` of them in bits, and
            `effective_sequences` = 2 ** that.
        call_sequences: different sequences of tools with their arguments.
        top_sequences: the most frequent tool sequences.
        agents: by name, most rows first.
    """

    top_agent: str
    top_share: float
    effective_agents: float
    sequences: int
    sequence_entropy: float
    effective_sequences: float
    call_sequences: int
    top_sequences: tuple[SequenceStats, ...]
    agents: dict[str, AgentStats]


class OutcomeStats(Record, frozen=True, omit_defaults=False):
    """Outcome verdicts of one profile: rows by what the first verdict says."""

    success: int = 0
    failure: int = 0
    unscored: int = 0
    missing: int = 0


class JudgingStats(Record, frozen=True, omit_defaults=False):
    """What the judges said of the kept rows.

    Attributes:
        quality: reasoning quality -> rows, every bin there, and "unjudged".
        coefficient: of the judged rows.
        richness: ten bins of [0, 1], upper edge as key, and "unknown".
        evidence: level of the richness evidence -> rows.
        outcomes: by profile.
        judges: "name version" of every judge -> verdicts.
    """

    quality: dict[str, int]
    coefficient: Spread
    richness: dict[str, int]
    evidence: dict[str, int]
    outcomes: dict[str, OutcomeStats]
    judges: dict[str, int]


class SourceStats(Record, frozen=True, omit_defaults=False):
    """Rows of one source, and the licence that the card's author gave for it."""

    rows: int
    licence: str


class ScrubStats(Record, frozen=True, omit_defaults=False):
    """Placeholders of one kind in published rows: rows that have any, different values in them."""

    rows: int
    values: int


class CertificateStats(Record, frozen=True, omit_defaults=False):
    """Summary of the certificate of the split.

    Attributes:
        digest: of the certificate file.
        compared: rule -> keys compared between the pools; `shared` of them are in two pools.
        nearest: similarity of the nearest training and measuring requests, None without a pair.
        known: benchmark -> problems of the corpus that it has, whatever the rule.
    """

    digest: str
    algorithm: str
    clusters: int
    problems: dict[str, int]
    joins: dict[str, int]
    quarantined: int
    alarms: int
    compared: dict[str, int]
    shared: int
    nearest: float | None
    known: dict[str, int]


class Stats(Record, frozen=True, omit_defaults=False):
    """The statistics of a corpus folder, as in its `stats.json`.

    Attributes:
        manifest: digest of the manifest of the corpus that was measured.
        config: the configuration of its build.
        total: all pools together; the pools share no request, problem or cluster.
        tokenizer: digest of the tokenizer that counted, "" without one.
    """

    name: str
    manifest: str
    tool_version: str
    config: dict[str, Any]
    config_digest: str
    inputs: dict[str, str]
    funnel: Funnel
    total: PoolStats
    pools: dict[str, PoolStats]
    diversity: Diversity
    judging: JudgingStats
    sources: dict[str, SourceStats]
    scrubbed: dict[str, ScrubStats]
    certificate: CertificateStats | None
    tokenizer: str = ""
    schema_version: str = msgspec.field(default_factory=current_schema)
