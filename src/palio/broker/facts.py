"""What a run is made with, for those who write it down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from palio.broker.limits import Limits
from palio.broker.nonce import Mint
from palio.broker.relay import RelayPolicy
from palio.records import AgentRef, Problem
from palio.world.world import World


class RunFacts(Protocol):
    """One agent on one problem, before anything has happened; a `session.Session` has them all.

    Attributes:
        agent: who runs.
        problem: what is asked.
        world: where tools act.
        limits: of the run.
        seed, attempt: which of several runs on the problem.
        suite_id: "" for a problem of no suite.
        isolation: how the agent's sandbox keeps it apart.
        eligible: whether the run can be ranked.
        relay: which models the agent may ask.
        mint: of proofs of who emitted a call.
    """

    agent: AgentRef
    problem: Problem
    world: World
    limits: Limits
    seed: int
    attempt: int
    suite_id: str
    isolation: str
    eligible: bool
    relay: RelayPolicy
    mint: Mint

    @property
    def trajectory_id(self) -> str:
        """The id of the run, known before it is run."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the policy harness is told of the run."""
