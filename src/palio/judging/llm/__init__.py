"""Judges that ask a model, alone or as a panel; what they say is checked against the record."""

from palio.judging.llm.config import (
    Endpoint,
    JudgeConfig,
    Member,
    Price,
    endpoint_config,
    read_config,
)
from palio.judging.llm.document import document
from palio.judging.llm.judge import LlmJudge, judge_from
from palio.judging.llm.panel import consensus
from palio.judging.llm.spend import Spend

__all__ = [
    "Endpoint",
    "JudgeConfig",
    "LlmJudge",
    "Member",
    "Price",
    "Spend",
    "consensus",
    "document",
    "endpoint_config",
    "judge_from",
    "read_config",
]
