"""The host-written record of one agent on one problem."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any, Literal

import msgspec

from palio.records.base import CanonicalRecord, Record, current_schema, digest
from palio.records.faults import Blame, blame_of
from palio.records.message import Message, Tool

SALVAGE_MARK = "salvage:"
"""Start of the `source` of a salvaged trajectory; the id of what it was made of follows."""

AgentKind = Literal[
    "agentic", "subtask", "shortcut", "broken", "oracle", "policy", "external", "unknown"
]


class FaultCode(IntEnum):
    """Every way a run can go wrong: agent 1xxx, validator 2xxx, platform 3xxx."""

    agent_crashed = 1001
    agent_timed_out = 1002
    agent_bad_source = 1003
    agent_bad_return = 1004
    agent_output_limit = 1005
    agent_budget_exhausted = 1006
    sandbox_launch_failed = 2001
    scorer_unavailable = 2002
    run_interrupted = 2003
    record_unwritable = 2004
    upstream_unreachable = 3001
    upstream_server_error = 3002
    upstream_rate_limited = 3003
    upstream_garbage = 3004
    upstream_timed_out = 3005
    catalogue_unavailable = 3006
    upstream_model_unknown = 3007
    upstream_truncated = 3008
    upstream_key_refused = 3009


NonceStatus = Literal["", "valid", "missing", "mismatch", "expired", "replayed", "malformed"]
"""What a dispatch proves about the model's having asked for it; "": nonces were not in use."""


class Fault(Record, frozen=True):
    """A fault with its party; a fault blamed on anybody but the agent makes a run unscored.

    Raises:
        ValueError: a code that charges nobody; in a file, a record that cannot be read.
    """

    code: int
    what: str
    remedy: str = ""

    def __post_init__(self) -> None:
        blame_of(self.code)

    @property
    def blame(self) -> Blame:
        """The party that the code charges."""
        return blame_of(self.code)


class Ending(StrEnum):
    """Why a run stopped."""

    terminated = "terminated"  # the agent called terminate
    returned = "returned"  # agent_main returned without terminate
    step_limit = "step_limit"  # the harness's step budget ran out
    timed_out = "timed_out"  # the host's wall clock stopped it
    crashed = "crashed"  # the agent raised, or its process died
    invalid = "invalid"  # unusable source or return value
    infra = "infra"  # validator or platform fault: unscored


class AgentRef(CanonicalRecord, frozen=True):
    """Which agent ran; `kind` is declared and never used to judge, `digest` is the source's."""

    name: str
    version: str = "1"
    kind: AgentKind = "unknown"
    digest: str = ""
    model: str = ""


class Usage(Record, frozen=True):
    """Token counts of one inference call, as the server reported them; None = not reported."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class InferenceEvent(CanonicalRecord, frozen=True, tag="inference"):
    """One chat completion that passed through the broker.

    Attributes:
        seq: position in the run's record, from 0.
        at_ms: milliseconds since the run started, when the reply was complete.
        prefix: how many messages of the request equal the conversation recorded so far (the last
            inference event's prefix + request + completion); `request` holds only the rest.
        completion: the assistant message, None when the call failed.
        params: model and sampling parameters of the request.
    """

    seq: int
    at_ms: float
    duration_ms: float
    prefix: int
    request: tuple[Message, ...]
    completion: Message | None
    params: dict[str, Any] = {}
    finish_reason: str = ""
    usage: Usage = Usage()
    fault: Fault | None = None


class DispatchEvent(Record, frozen=True, tag="dispatch"):
    """One tool call that the broker executed.

    Attributes:
        arguments: the raw argument JSON as received.
        call_id: the id that the caller named, "" if none.
        emitted_by: `seq` of the inference event whose completion asked for this call with the same
            name and canonical arguments; None when no completion did: the harness made it up.
        result: the JSON text that the agent got.
        warnings: what the tool told the agent beside the result.
        nonce: whether the call came with the proof that the broker had minted for it.
        echoed: the completion that asked for this call found its arguments in text that the agent
            itself had written into the prompt: the harness planned it, the model repeated it.
    """

    seq: int
    at_ms: float
    duration_ms: float
    tool: str
    arguments: str
    result: str
    call_id: str = ""
    emitted_by: int | None = None
    error: str = ""
    warnings: tuple[str, ...] = ()
    fault: Fault | None = None
    nonce: NonceStatus = ""
    echoed: bool = False


Event = InferenceEvent | DispatchEvent


class Trajectory(CanonicalRecord, frozen=True):
    """One agent on one problem, as the host saw it.

    Attributes:
        trajectory_id: digest of what was run (agent, problem, catalogue, seed, attempt), not of
            what came out; see `trajectory_key`.
        query: the request text, so that a trajectory can be judged on its own.
        messages: the conversation of record in OpenAI form, built by the host from `events`; for an
            agent that never called a model: the request alone.
        tools: the tool schemas that the model was offered, nested OpenAI form.
        answer: the last recommend_product argument exactly as given (a string, or a list), None if
            there was none.
        differences: where what the agent returned departs from the record, one sentence each.
        isolation: sandbox driver's isolation, "none" for plain child processes, "inline" for
            trusted in-process policies.
        eligible: whether it may count in standings.
        journal: chain hash of the run's last entry in the broker's journal, which holds all bodies
            in full; "" when none was kept.
        source: "rollout", or the reader and file of an imported trace.
    """

    trajectory_id: str
    problem_id: str
    query: str
    kind: str
    agent: AgentRef
    events: tuple[Event, ...]
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    answer: Any = None
    ending: Ending = Ending.returned
    fault: Fault | None = None
    differences: tuple[str, ...] = ()
    suite_id: str = ""
    catalogue: str = ""
    catalogue_digest: str = ""
    isolation: str = "none"
    eligible: bool = True
    seed: int = 0
    attempt: int = 0
    duration_s: float = 0.0
    source: str = "rollout"
    tool_version: str = ""
    journal: str = ""
    schema_version: str = msgspec.field(default_factory=current_schema)

    @property
    def dispatches(self) -> tuple[DispatchEvent, ...]:
        """The executed tool calls in order."""
        return tuple(event for event in self.events if isinstance(event, DispatchEvent))

    @property
    def salvaged(self) -> bool:
        """Whether it was made of another trajectory; any rationalised thinking also says so."""
        return self.source.startswith(SALVAGE_MARK) or any(
            message.rationalised for message in self.messages
        )

    @property
    def inferences(self) -> tuple[InferenceEvent, ...]:
        """The completions in order."""
        return tuple(event for event in self.events if isinstance(event, InferenceEvent))


def trajectory_key(
    *, agent: AgentRef, problem_id: str, catalogue_digest: str, seed: int, attempt: int
) -> str:
    """The id of a run before it is run: what makes resume possible without running twice."""
    parts = [agent.name, agent.version, agent.digest, agent.model, problem_id, catalogue_digest]
    return digest([*parts, seed, attempt])[7:39]
