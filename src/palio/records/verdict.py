"""Judgements beside a trajectory: append-only, versioned, and never mixed into one number early."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from palio.records.base import Record, current_schema
from palio.records.trajectory import Fault

Profile = Literal["upstream", "oro", "strict"]
PROFILES: tuple[Profile, ...] = ("upstream", "oro", "strict")
Axis = Literal["agentic", "subtask", "mixed", "unknown"]
QUALITY_BINS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The only values that a reasoning judge may give."""


class JudgeId(Record, frozen=True):
    """Who judged: name, version and the digest of everything that decides (thresholds, prompts)."""

    name: str
    version: str
    config_digest: str = ""


class OutcomeVerdict(Record, frozen=True, tag="outcome"):
    """Rule-based outcome under one profile.

    Attributes:
        status: "unscored" means infrastructure failed: it is not 0 and leaves the denominator.
        scores: the profile's score dictionary (rule, product, gt, title, price, service,
            "sku & attrs", shop | budget | web), each in [0, 1]; may be empty (see judging facts).
        success: strict success; False when unscored.
        encoder: id of the title similarity that decided the title term.
        notes: why the strict profile refused (extra ids, ungrounded ids, not terminated).
    """

    trajectory_id: str
    problem_id: str
    judge: JudgeId
    profile: Profile
    status: Literal["scored", "unscored"]
    scores: dict[str, float] = {}
    success: bool = False
    encoder: str = ""
    fault: Fault | None = None
    notes: tuple[str, ...] = ()
    schema_version: str = msgspec.field(default_factory=current_schema)


class GateAnswer(Record, frozen=True):
    """One gate of the reasoning tree, with the evidence that decided it."""

    gate: int
    question: str
    passed: bool
    event_seq: int | None = None
    quote: str = ""


class Overruling(Record, frozen=True):
    """A gate that a judge called passed and that the record refutes.

    Attributes:
        gate: 1 to 4.
        reason: short name of the refutation, e.g. "span_absent".
        why: one sentence.
    """

    gate: int
    reason: str
    why: str


class Opinion(Record, frozen=True):
    """What one judge of a panel found, with everything that identifies it.

    Attributes:
        judge: name, version and digest of everything below that decides.
        model: the model that answered; "" for a judge that asks none.
        prompt: digest of the prompt file and answer schema, "" for a judge that asks no model.
        decoding: sampling parameters and token budgets of the request.
        stated: the value that the model gave, before the record was asked; None if it gave none.
        gates: its answers, after the record was asked.
        overruled: gates that the record refutes.
        reason: why it is unjudged, e.g. "truncated_reply"; "" when judged.
        notes: what else should be known, one sentence each.
        prompt_tokens: of the accepted reply, None when the server did not say.
        completion_tokens: likewise.
        cost: US dollars of the accepted reply; None when the price or the tokens are unknown.
    """

    judge: JudgeId
    status: Literal["judged", "unjudged"]
    model: str = ""
    prompt: str = ""
    decoding: dict[str, Any] = {}
    quality: float | None = None
    stated: float | None = None
    gates: tuple[GateAnswer, ...] = ()
    overruled: tuple[Overruling, ...] = ()
    explanation: str = ""
    reason: str = ""
    fault: Fault | None = None
    notes: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None


class ReasoningVerdict(Record, frozen=True, tag="reasoning"):
    """Reasoning quality in [0, 1], one of `QUALITY_BINS`; None when unjudged (never 0).

    Attributes:
        coefficient: 1 if quality >= 0.8 else 0.3 + quality * 0.7 / 0.8.
        reason: why it is unjudged, e.g. "no_quorum"; "" when judged.
        opinions: of a model or a panel, what each judge found; the verdict is their consensus.
        flags: what a person should look at: "disagreement" (opinions more than one bin apart),
            "overruled" (the record refuted a gate of some opinion), "evidence_differs" (the
            evidence judge is more than one bin away).
    """

    trajectory_id: str
    problem_id: str
    judge: JudgeId
    status: Literal["judged", "unjudged"]
    quality: float | None = None
    coefficient: float | None = None
    gates: tuple[GateAnswer, ...] = ()
    explanation: str = ""
    fault: Fault | None = None
    reason: str = ""
    opinions: tuple[Opinion, ...] = ()
    flags: tuple[str, ...] = ()
    schema_version: str = msgspec.field(default_factory=current_schema)


class RichnessVerdict(Record, frozen=True, tag="richness"):
    """Who emitted the catalogue calls.

    Attributes:
        evidence: "verified" by nonce, "heuristic" by aligning dispatches with completions,
            "unknown" without evidence.
        richness: emitted / dispatched in [0, 1]; None when nothing was dispatched or no evidence.
    """

    trajectory_id: str
    problem_id: str
    judge: JudgeId
    evidence: Literal["verified", "heuristic", "unknown"]
    emitted: int
    dispatched: int
    richness: float | None
    axis: Axis
    schema_version: str = msgspec.field(default_factory=current_schema)


Verdict = OutcomeVerdict | ReasoningVerdict | RichnessVerdict
