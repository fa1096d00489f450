"""An agent is named by one immutable spec: its file, its model, and whether it may be ranked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from palio.records import AgentKind, AgentRef, InputError, Record, bytes_digest

BUNDLED = Path(__file__).parent / "bundled"
"""Folder of the agent files that ship with palio."""

HARNESS = BUNDLED / "agentic.py"
"""The one policy harness; scripted models and checkpoints run through it alike."""


class AgentSpec(Record, frozen=True):
    """Everything that a driver needs to start an agent.

    Attributes:
        ref: name, version, kind, source digest and model, as every record will show them.
        path: the agent file; "" for a host-side policy (the oracle).
        model: what the model name "default" means for this agent; "" when it calls no model.
        eligible: whether its runs may count in standings.
        seed: added to the run's seed.
        sampling: parameters that the broker adds to each inference request that lacks them, such
            as {"temperature": 1.0, "top_p": 1.0}.
    """

    ref: AgentRef
    path: str = ""
    model: str = ""
    eligible: bool = True
    seed: int = 0
    sampling: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.ref.name


def agent_from_file(
    path: Path | str,
    *,
    name: str = "",
    kind: AgentKind = "external",
    model: str = "",
    eligible: bool = True,
    version: str = "1",
    sampling: dict[str, Any] | None = None,
) -> AgentSpec:
    """A spec for an agent file; the source digest is taken now.

    Raises:
        InputError: the file cannot be read.
    """
    path = Path(path)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the agent file: {error.strerror}",
            where=str(path),
            remedy="`palio agent new FILE` writes a working template",
        ) from error
    ref = AgentRef(
        name=name or path.stem,
        version=version,
        kind=kind,
        digest=bytes_digest(source),
        model=model,
    )
    return AgentSpec(
        ref=ref, path=str(path), model=model, eligible=eligible, sampling=dict(sampling or {})
    )


def policy_agent(
    name: str, model: str, *, sampling: dict[str, Any] | None = None, version: str = "1"
) -> AgentSpec:
    """The policy agent of any OpenAI-compatible endpoint: the harness plus a model name.

    Args:
        name: the agent's name in standings and records.
        model: what the upstream calls the model, e.g. a checkpoint's name.
        sampling: sampling parameters, e.g. {"temperature": 0}.
        version: what tells it from an earlier agent of this name.
    """
    return agent_from_file(
        HARNESS, name=name, kind="policy", model=model, version=version, sampling=sampling
    )
