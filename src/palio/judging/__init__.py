"""Verdicts on a trajectory: outcome by rule, reasoning by evidence, richness by who called."""

from palio.judging.answers import answer_ids
from palio.judging.coefficient import coefficient, final_score
from palio.judging.encoders import (
    ENCODERS,
    PrecomputedEncoder,
    StubEncoder,
    TitleEncoder,
    TitleUnavailableError,
    default_encoder,
    encoder_named,
    minilm_encoder,
    precomputed_encoder,
)
from palio.judging.evidence import EvidenceJudge
from palio.judging.format import Step, call_reward, format_score, length_score, step_reward
from palio.judging.lexical import LexicalEncoder
from palio.judging.outcome import (
    LookupFailedError,
    OutcomeScorer,
    infrastructure_fault,
)
from palio.judging.richness import axis_of, richness_verdict

__all__ = [
    "ENCODERS",
    "EvidenceJudge",
    "LexicalEncoder",
    "LookupFailedError",
    "OutcomeScorer",
    "PrecomputedEncoder",
    "Step",
    "StubEncoder",
    "TitleEncoder",
    "TitleUnavailableError",
    "answer_ids",
    "axis_of",
    "call_reward",
    "coefficient",
    "default_encoder",
    "encoder_named",
    "final_score",
    "format_score",
    "infrastructure_fault",
    "length_score",
    "minilm_encoder",
    "precomputed_encoder",
    "richness_verdict",
    "step_reward",
]
