"""What the verifier reads of a corpus folder; what it does not need is skipped while parsing."""

from __future__ import annotations

from typing import Any

import msgspec


class Price(msgspec.Struct, frozen=True):
    """Bounds of a price."""

    low: float | None = None
    high: float | None = None


class Item(msgspec.Struct, frozen=True):
    """One wanted item."""

    product_id: str
    title: tuple[str, ...] = ()
    sku_options: tuple[dict[str, str], ...] = ()
    attributes: tuple[dict[str, tuple[str, ...]], ...] = ()
    service: tuple[str, ...] = ()
    price: tuple[Price, ...] = ()


class Task(msgspec.Struct, frozen=True):
    """One published problem."""

    problem_id: str
    query: str
    rewards: tuple[Item, ...] = ()
    families: tuple[str, ...] = ()
    catalogue: str = ""
    kind: str = ""
    difficulty: str = ""
    bank: str = ""


class Row(msgspec.Struct, frozen=True):
    """One row of a pool file.

    Attributes:
        place: the file and line that it was read from.
        told: digest of the conversation, however its JSON is laid out.
        whole: digest of every column.
        beside: texts of system messages and of user messages after the first.
    """

    trajectory_id: str
    problem_id: str
    cluster_id: str
    pool: str
    place: str
    query: str
    told: str
    whole: str
    beside: tuple[str, ...] = ()


class RawRow(msgspec.Struct, frozen=True):
    """A row as it stands in the file."""

    messages: tuple[dict[str, Any], ...]
    trajectory_id: str
    problem_id: str
    cluster_id: str
    tools: str = ""
    agent: str = ""
    kind: str = ""


class LexicalBounds(msgspec.Struct, frozen=True):
    """Thresholds of lexical edges; `least` and `inside` in nats."""

    jaccard: float
    containment: float
    weak_jaccard: float
    weak_containment: float
    least: float
    inside: float


class RunBounds(msgspec.Struct, frozen=True):
    """Length of a run in words, and how many of them must carry content."""

    words: int
    content: int


class LinkPairs(msgspec.Struct, frozen=True):
    """What an operator said."""

    must: tuple[tuple[str, str], ...] = ()
    cannot: tuple[tuple[str, str], ...] = ()


class Rules(msgspec.Struct, frozen=True):
    """How the clusters were to be drawn."""

    lexical: LexicalBounds | None
    grams: RunBounds | None
    trust_families: bool
    links: LinkPairs
    embedding: dict[str, Any] | None = None
    weak: str = "drop"
    split: str = "hash"


class Joined(msgspec.Struct, frozen=True):
    """An edge that the certificate states and nobody can compute without the model."""

    one: str
    other: str


class Suspected(msgspec.Struct, frozen=True):
    """A suspicion of the same sort."""

    problems: tuple[str, ...]
    kind: str = ""
    key: str = ""


class Away(msgspec.Struct, frozen=True):
    """A quarantined problem."""

    problem: str
    pool: str


class Closest(msgspec.Struct, frozen=True):
    """The stated nearest pair."""

    jaccard: float
    train: str
    measured: str


class Wordings(msgspec.Struct, frozen=True):
    """Paraphrase banks that were held out, and counts of what that moved."""

    banks: tuple[str, ...]
    problems: int
    units: int
    mixed: int
    along: int


class PoolRule(msgspec.Struct, frozen=True):
    """By which rule units became pools.

    Attributes:
        earlier: digest of the assignment that pools were kept from.
        carried: problems that stand where it put them, whatever the rule says.
    """

    version: str
    salt: str
    fractions: dict[str, float]
    earlier: str = ""
    carried: tuple[str, ...] = ()
    wordings: Wordings | None = None


class Stated(msgspec.Struct, frozen=True):
    """The certificate."""

    algorithm: str
    files: dict[str, str]
    edges: tuple[str, ...]
    guard: Rules
    request_words: tuple[str, ...]
    weights: str
    documents: int
    rows: dict[str, int]
    problems: dict[str, int]
    clusters: int
    sizes: dict[str, int]
    joins: dict[str, int]
    suspicions: dict[str, int]
    quarantine: tuple[Away, ...]
    embedding: tuple[Joined, ...]
    embedding_suspicions: tuple[Suspected, ...]
    compared: dict[str, int]
    shared: dict[str, int]
    nearest: Closest | None
    rule: PoolRule | None = None


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of the folder."""

    outputs: dict[str, str]
    config: dict[str, Any] = {}
    config_digest: str = ""
    counts: dict[str, int] = {}


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it must be.

    Attributes:
        rule: what was broken: "product", "lexical", "file" ...
        what: one sentence.
        pair: the problems that leak into each other, if it is a leak.
        rows: places of rows of these problems, at most three each.
    """

    rule: str
    what: str
    pair: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


class Verification(msgspec.Struct, frozen=True):
    """The outcome: nothing found is the only good one.

    Attributes:
        checked: rule -> keys, pairs or files that were looked at.
        notes: what could not be recomputed and was taken as stated, and why.
        unchecked: what could not be checked at all, and why: no pass, and no finding.
    """

    findings: tuple[Finding, ...]
    checked: dict[str, int]
    notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether nothing was found; `whole` says whether everything was looked at."""
        return not self.findings

    @property
    def whole(self) -> bool:
        """Whether nothing was found and nothing was left unchecked."""
        return self.good and not self.unchecked
