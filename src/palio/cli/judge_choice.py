"""What `--judge` names: the evidence judge, or a judge that asks models, from a TOML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import ExitStack

    from palio.judging.llm import LlmJudge
    from palio.records import ReasoningVerdict, Trajectory
    from palio.rollout.verdicts import ReasoningJudge

JUDGE = typer.Option("evidence", help="Reasoning judge: evidence, or llm:CONFIG.toml.")
MODEL_JUDGE = "llm:"
REPLIES = "judge.replies"
"""File of a run folder that keeps what models answered."""


def reasoning_judge(stack: ExitStack, name: str, cache: Path | None = None) -> ReasoningJudge:
    """The judge that `--judge` names; a model's connections close with the stack.

    Raises:
        ConfigError: there is no such judge, its file is wrong, or an API key is missing.
        MissingDependencyError: it asks a model and the client is not installed.
    """
    from palio.judging import EvidenceJudge
    from palio.records import ConfigError

    if name == "evidence":
        return EvidenceJudge()
    if not name.startswith(MODEL_JUDGE):
        raise ConfigError(
            f"no judge is called {name!r}", remedy="choose evidence, or llm:CONFIG.toml"
        )
    from palio.judging.llm import judge_from

    judge = judge_from(Path(name.removeprefix(MODEL_JUDGE)), os.environ, cache)
    return stack.enter_context(judge)


def threads_of(judge: ReasoningJudge) -> int:
    """Runs that a judge looks at at a time: one that waits for a server, several."""
    llm = as_llm(judge)
    return 1 if llm is None else llm.config.concurrency


def as_llm(judge: ReasoningJudge) -> LlmJudge | None:
    """The judge if it asks models."""
    from palio.judging import EvidenceJudge

    if isinstance(judge, EvidenceJudge):
        return None
    from palio.judging.llm import LlmJudge

    return judge if isinstance(judge, LlmJudge) else None


def verdicts_of(judge: ReasoningJudge, runs: Iterable[Trajectory]) -> Iterator[ReasoningVerdict]:
    """Verdicts in the order of the runs; of a judge that asks models, many at a time."""
    llm = as_llm(judge)
    return map(judge.verdict, runs) if llm is None else llm.verdicts(runs)


def pinned(judge: ReasoningJudge) -> dict[str, str]:
    """The identity that a race holds on to: a changed judge is another race."""
    found = judge.judge_id
    return {"name": found.name, "version": found.version, "config": found.config_digest}


def spent(judge: ReasoningJudge) -> dict[str, object]:
    """What a model judge spent, model by model and in all; {} for others."""
    import msgspec

    llm = as_llm(judge)
    if llm is None:
        return {}
    total = msgspec.to_builtins(llm.meter.total())
    return {"total": total, "models": msgspec.to_builtins(llm.meter.by_model())}
