"""One problem end to end, and a suite end to end with concurrency, time-outs and resume."""

from palio.rollout.bulk import BulkReport, Shard, bulk
from palio.rollout.problem import StoppedError, run_problem
from palio.rollout.reading import final_attempts, read_trajectories
from palio.rollout.suite import Job, Progress, SuiteReport, run_suite

__all__ = [
    "BulkReport",
    "Job",
    "Progress",
    "Shard",
    "StoppedError",
    "SuiteReport",
    "bulk",
    "final_attempts",
    "read_trajectories",
    "run_problem",
    "run_suite",
]
