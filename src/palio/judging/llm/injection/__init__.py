"""A suite of attacks on judges, and two scripted models that fall for what is not quoted."""

from palio.judging.llm.injection.attacks import (
    Attack,
    attacked,
    packaged_attacks,
    packaged_bases,
)
from palio.judging.llm.injection.gullible import FLATTERER, GULLIBLE, Scripted
from palio.judging.llm.injection.suite import InjectionReport, Trial, attack_judge

__all__ = [
    "FLATTERER",
    "GULLIBLE",
    "Attack",
    "InjectionReport",
    "Scripted",
    "Trial",
    "attack_judge",
    "attacked",
    "packaged_attacks",
    "packaged_bases",
]
