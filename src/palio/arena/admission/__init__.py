"""Static admission checks: what a file says, before anything of it is ever run."""

from palio.arena.admission.checking import check
from palio.arena.admission.config import AdmissionConfig
from palio.arena.admission.findings import (
    RULES,
    Concern,
    Finding,
    Severity,
    concern_of,
    rejected,
)
from palio.arena.admission.similarity import overlap, shingles

__all__ = [
    "RULES",
    "AdmissionConfig",
    "Concern",
    "Finding",
    "Severity",
    "check",
    "concern_of",
    "overlap",
    "rejected",
    "shingles",
]
