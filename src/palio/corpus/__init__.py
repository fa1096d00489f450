"""Judged trajectories to a gated, leak-guarded, split corpus; every drop is counted."""

from palio.corpus.build import read_pools
from palio.corpus.config import POOLS, CorpusConfig, RankingWeights, read_config
from palio.corpus.funnel import AgentCount, Funnel, FunnelStep, PoolCount, read_funnel
from palio.corpus.lineage import Lineage, read_lineage
from palio.corpus.reading import TraceReader
from palio.corpus.rows import CorpusRow, read_rows
from palio.rollout.verdicts import Judged, Panel, Verdicts, judge_all

__all__ = [
    "POOLS",
    "AgentCount",
    "CorpusConfig",
    "CorpusRow",
    "Funnel",
    "FunnelStep",
    "Judged",
    "Lineage",
    "Panel",
    "PoolCount",
    "RankingWeights",
    "TraceReader",
    "Verdicts",
    "judge_all",
    "read_config",
    "read_funnel",
    "read_lineage",
    "read_pools",
    "read_rows",
]
