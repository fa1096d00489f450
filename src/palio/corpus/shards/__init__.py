"""Raw traces of any size become gated columns, shard by shard, resumably, on one core or many."""

from palio.corpus.shards.columns import trajectories_of
from palio.corpus.shards.config import ShardConfig
from palio.corpus.shards.engine import Plan, plan, run
from palio.corpus.shards.shard import ShardJob, ShardManifest, make_shard
from palio.rollout.cluster import EXECUTORS

__all__ = [
    "EXECUTORS",
    "Plan",
    "ShardConfig",
    "ShardJob",
    "ShardManifest",
    "make_shard",
    "plan",
    "run",
    "trajectories_of",
]
