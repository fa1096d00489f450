"""One typed configuration decides a corpus; it is echoed and digested into everything written."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from palio.records import Axis, ConfigError, Profile, Record, digest
from palio.suites.clusters import EDGE_KINDS, EdgeKind
from palio.suites.guard import GuardConfig
from palio.suites.links import Links
from palio.suites.pools import DEFAULT_FRACTIONS, DEFAULT_SALT, check_fractions
from palio.suites.wordings import check_banks

PIPELINE_VERSION = "2"
"""Raised whenever an equal configuration would keep other rows than before."""


class RankingWeights(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Weights of the four ranking signals, each signal in [0, 1].

    The paper names the signals and not the weights. Verification weighs most, since it is the one
    that an agent cannot show without doing the work; depth weighs least, since padding buys it.
    """

    depth: float = 0.15
    reformulations: float = 0.2
    verification: float = 0.4
    regularity: float = 0.25


class CorpusConfig(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Every choice of a corpus build.

    Attributes:
        agentic: richness from which a trajectory is Axis A, in [0, 1].
        subtask: richness up to which it is Axis B; between the two it is mixed.
        axes: the axes that are kept.
        evidence: the levels of richness evidence that count; below them the axis is unknown.
        outcome: profile whose success is required; "none" keeps failures (KTO needs them).
        coefficient: least reasoning coefficient; 0 switches the gate off, unjudged rows included.
        grounding: whether every recommended id must stem from an earlier tool result.
        claims: whether a row goes whose agent told of results or calls that its record does not
            have.
        thinking: least share of assistant turns with thinking, in [0, 1].
        format: whether malformed conversations are dropped.
        token_budget: most tokens of a row, messages and tools together.
        bytes_per_token: the default count divides UTF-8 bytes by this. At 1 it is an upper bound
            for every byte-level tokenizer; 3 is near the mean of English with JSON.
        count_tools: whether the tool schemas are part of a row's tokens.
        terminal_tools: calls that need no response when they end the conversation.
        per_problem: most rows of one problem; 0 = no cap.
        weights: ranking of the candidates of one problem.
        edges: exact edges of the leak clusters.
        guard: edges of similarity and of operators, quarantine, and how the split is drawn.
        fractions: pool -> share of the split units. Besides the three pools of a corpus there is
            "never-touch", whose problems are in no file.
        salt: another salt is another split.
        keep_bodies: whether rejects.jsonl.zst holds whole trajectories or only their ids.
        unanimous: whether the judges that scored an outcome under one profile must agree on it.
        validators: least number of different judges that scored the outcome profile.
        per_cluster: most rows of one leak cluster; its problems take turns; 0 = no cap.
        same_calls: whether equal call sequences within a cluster are one row.
        near_duplicates: shingle similarity within a cluster from which the lower-ranked row goes,
            in (0, 1]; 0 switches it off.
        scrub: what is replaced by placeholders in every text: "secrets", "personal".
        phone_region: country whose telephone numbers are known without their prefix, "" = none.
        oracle_search: whether a search for a title's words that nothing had told drops the row.
        salvaged: whether rows made of sub-task traces (`palio corpus salvage`) are let in.
        salvaged_share: most of a pool's rows that may be salvaged, in [0, 1].
        heldout_banks: paraphrase banks whose problems never train and are never chosen on: every
            split unit that holds one goes to heldout or never-touch. Sorted; left out of echo and
            digest when there are none, so that corpora without it are what they were.
    """

    agentic: float = 0.9
    subtask: float = 0.1
    axes: tuple[Axis, ...] = ("agentic",)
    evidence: tuple[Literal["verified", "heuristic"], ...] = ("verified", "heuristic")
    outcome: Profile | Literal["none"] = "oro"
    coefficient: float = 0.7
    grounding: bool = True
    claims: bool = True
    thinking: float = 0.5
    format: bool = True
    token_budget: int = 14_336
    bytes_per_token: float = 1.0
    count_tools: bool = True
    terminal_tools: tuple[str, ...] = ("terminate",)
    per_problem: int = 50
    weights: RankingWeights = RankingWeights()
    edges: tuple[EdgeKind, ...] = EDGE_KINDS
    guard: GuardConfig = GuardConfig()
    fractions: dict[str, float] = msgspec.field(default_factory=lambda: dict(DEFAULT_FRACTIONS))
    salt: str = DEFAULT_SALT
    keep_bodies: bool = True
    unanimous: bool = False
    validators: int = 1
    per_cluster: int = 0
    same_calls: bool = False
    near_duplicates: float = 0.0
    scrub: tuple[Literal["secrets", "personal"], ...] = ()
    phone_region: str = "PH"
    oracle_search: bool = True
    salvaged: bool = False
    salvaged_share: float = 0.3
    heldout_banks: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    pipeline: str = PIPELINE_VERSION

    def __post_init__(self) -> None:
        named = tuple(sorted(set(self.heldout_banks or ())))
        msgspec.structs.force_setattr(self, "heldout_banks", named or msgspec.UNSET)

    @property
    def banks(self) -> tuple[str, ...]:
        """The held-out paraphrase banks, sorted; empty when none are."""
        return self.heldout_banks or ()

    def digest(self) -> str:
        """Digest over every field, defaults included."""
        return digest(self)

    def linked(self, links: Links) -> CorpusConfig:
        """The configuration with these links instead of its own."""
        return replace(self, guard=replace(self.guard, links=links))

    def axis_of(self, richness: float | None) -> Axis:
        """The axis of a richness under this configuration's thresholds."""
        if richness is None:
            return "unknown"
        if richness >= self.agentic:
            return "agentic"
        return "subtask" if richness <= self.subtask else "mixed"


POOLS = ("train", "development", "heldout")
"""The pools of a corpus, each one file; choices are made on development only."""

NEVER = "never-touch"
"""The pool of problems that nothing is published of but hashes."""


def checked(config: CorpusConfig) -> CorpusConfig:
    """The configuration itself, once it is known to make sense.

    Raises:
        ConfigError: thresholds out of range or order, shares that are no split, another pipeline.
    """
    unit = {
        "agentic": config.agentic,
        "subtask": config.subtask,
        "coefficient": config.coefficient,
        "thinking": config.thinking,
        "near_duplicates": config.near_duplicates,
        "salvaged_share": config.salvaged_share,
    }
    for name, value in unit.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} = {value} is outside 0 to 1")
    if config.subtask >= config.agentic:
        raise ConfigError(f"subtask = {config.subtask} must be below agentic = {config.agentic}")
    if config.token_budget < 1 or not config.bytes_per_token > 0 or config.per_problem < 0:
        raise ConfigError("token_budget, bytes_per_token and per_problem must be positive")
    if config.validators < 1 or config.per_cluster < 0:
        raise ConfigError("validators must be at least 1, per_cluster at least 0")
    check_fractions(config.fractions)
    check_banks(config.banks, config.fractions)
    config.guard.checked()
    unknown = sorted(set(config.fractions) - {*POOLS, NEVER})
    if unknown:
        known = ", ".join((*POOLS, NEVER))
        raise ConfigError(f"unknown pool {unknown[0]!r}", remedy=f"choose from {known}")
    if config.pipeline != PIPELINE_VERSION:
        raise ConfigError(
            f"the configuration asks for pipeline {config.pipeline}, this is {PIPELINE_VERSION}",
            remedy="use the palio that wrote it, or remove the key `pipeline`",
        )
    return config


def read_config(path: Path) -> CorpusConfig:
    """Read a configuration from TOML; keys that are left out have their defaults.

    Raises:
        ConfigError: no TOML, an unknown key, a wrong type, or values that make no sense.
    """
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
        return checked(msgspec.convert(plain, CorpusConfig))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"not a corpus configuration: {error}",
            where=str(path),
            remedy="the keys are those of palio.corpus.CorpusConfig",
        ) from error
