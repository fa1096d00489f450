"""A host-side policy that knows the answers: it checks world, broker and scorer, never an agent."""

from __future__ import annotations

import json

from palio.broker.session import Session
from palio.records import Problem, Trajectory


def oracle_calls(problem: Problem) -> tuple[tuple[str, str], ...]:
    """The oracle's calls, (tool, argument JSON): look at the ground truth, recommend it, end."""
    ids = json.dumps({"product_ids": ",".join(reward.product_id for reward in problem.rewards)})
    return (
        ("view_product_information", ids),
        ("recommend_product", ids),
        ("terminate", json.dumps({"status": "success"})),
    )


def oracle_answer(session: Session) -> Trajectory:
    """Answer the session's problem with its ground truth, in order, and close the session.

    Open the session with the ref of `palio.agents.registry.ORACLE` and eligible=False: an oracle
    never counts for standings.
    """
    for tool, arguments in oracle_calls(session.problem):
        session.dispatch(tool, arguments)
    return session.close()
