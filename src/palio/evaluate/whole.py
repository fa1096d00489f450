"""A result without holes, or none: what is compared must be of the same problems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from palio.evaluate.faults import bare
from palio.evaluate.results import EvalResult
from palio.records import FaultCode, UpstreamError

ATTEMPTS = 2
"""At a rollout that infrastructure breaks, before a result is given up until the next command."""


def whole(answer: Callable[[], EvalResult], where: Path, others: str = "arms") -> EvalResult:
    """The result once every rollout is scored: two results with holes are not of the same problems.

    Args:
        answer: evaluates; what infrastructure broke before gets another attempt.
        where: folder of the rollouts.
        others: what the result is compared with, for the remedy.

    Raises:
        UpstreamError: the last attempt has left some unscored; says how many, and why the first.
    """
    for _ in range(ATTEMPTS):
        result = answer()
        if not result.overall.unscored_rollouts:
            return result
    broken = next(row for row in result.scores if row.status == "unscored")
    why = f": {broken.fault.code} {bare(broken.fault)}" if broken.fault else ""
    raise UpstreamError(
        f"{result.overall.unscored_rollouts} rollouts could not be scored, {broken.problem_id} "
        f"among them{why}",
        code=broken.fault.code if broken.fault else FaultCode.run_interrupted,
        where=str(where),
        remedy="the same command tries them again; a run with holes is none, for its problems are "
        f"not those of the other {others}",
    )
