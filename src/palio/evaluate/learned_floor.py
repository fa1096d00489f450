"""A trained policy may be a floor too: what learned only the form of an answer, on equal terms.

It is named by its checkpoint, which is then rolled out beside the policy, or by the folder of a
greedy evaluation of it. Equal terms are the same problems, worlds, tools and title similarity, and
turns that were not cut shorter than the policy's; an evaluation on others, or an unfinished one, is
refused before anything is rolled out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from palio.broker.limits import Limits
from palio.evaluate.loading import load_result
from palio.evaluate.report_data import StageResult
from palio.evaluate.results import EvalResult
from palio.evaluate.rollouts import IDENTITY, read_identity
from palio.records import ConfigError, InputError, Problem
from palio.train.checkpoint import checkpoint_folder, checkpoint_name

GREEDY_FOLDER = "greedy"
"""Where `palio eval run` puts the greedy rollouts, inside its own folder."""


def named_floor(text: str) -> tuple[str, Path]:
    """Name and path of "NAME=PATH"; the name is "" where there is none, or PATH holds the sign.

    Raises:
        ConfigError: a name that is no plain one: the floor's rollouts go into a folder of it.
    """
    name, sign, path = text.partition("=")
    if not sign or Path(text).exists():
        return "", Path(text)
    if not name or Path(name).name != name or name == "..":
        raise ConfigError(f"{name!r} names no floor", remedy="--floor format-only=FOLDER")
    return name, Path(path)


def called(name: str, path: Path) -> str:
    """What tables call a floor: its name, else that of its evaluation or its checkpoint."""
    if name:
        return name
    kept = evaluation_at(path)
    return str(read_identity(kept).get("policy", "")) if kept else checkpoint_name(path)


def evaluation_at(path: Path) -> Path | None:
    """The folder of greedy rollouts that `path` is, or holds; None where it is something else."""
    for folder in (path, path / GREEDY_FOLDER):
        if (folder / IDENTITY).is_file():
            return folder
    return None


def kept_floor(
    folder: Path,
    problems: Sequence[Problem],
    identity: Mapping[str, Any],
    clusters: Mapping[str, str] | None = None,
    name: str = "",
) -> StageResult:
    """A floor from the rollouts of an earlier evaluation.

    Args:
        folder: of greedy rollouts, as `evaluation_at` finds it.
        problems: the problems of the policy that it is a floor for.
        identity: the terms of the policy's evaluation (`palio.evaluate.policy.terms_of`).
        clusters: problem id -> leak cluster.
        name: what tables call it; "": as it was evaluated.

    Raises:
        InputError: it was made on other problems, in other worlds, with other tools, shorter turns,
            other limits or another title similarity, is no greedy evaluation, or not finished; or a
            shorter wall clock stopped some of its rollouts.
    """
    own = read_identity(folder)
    result = load_result(folder, problems, clusters)
    told = {
        "worlds": (own.get("worlds"), identity["worlds"]),
        "encoder": (own.get("encoder"), identity["encoder"]),
        "tools": tuple(list(each["settings"]["tools"]) for each in (own, identity)),
    }
    other = [name for name, (one, two) in told.items() if one != two]
    if _longest_turn(own) < _longest_turn(identity):
        other.append("max-tokens")
    if _budget(own) != _budget(identity):
        other.append("limits")
    if result.overall.timed_out and _clock(own) < _clock(identity):
        other.append("seconds")
    if result.mode != "greedy":
        other.append("decoding")
    if other:
        raise InputError(
            f"this floor was evaluated on other terms than the policy: other {', '.join(other)}",
            where=str(folder),
            remedy="evaluate it with the options of the policy, or name its checkpoint",
        )
    if result.unrun:
        raise InputError(
            f"the evaluation of this floor is not finished: {result.unrun} problems are missing",
            where=str(folder),
            remedy="run its command again, or name its checkpoint",
        )
    return as_floor(replace(result, name=name or result.name))


def _budget(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What a rollout could spend, but for time: only who was stopped by it lacked any."""
    return {key: n for key, n in _limits(identity).items() if key != "seconds"}


def _clock(identity: Mapping[str, Any]) -> float:
    return float(_limits(identity)["seconds"])


def _limits(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The budget; what an older version did not tell was as it is by default."""
    return {**msgspec.to_builtins(Limits()), **identity["settings"].get("limits", {})}


def _longest_turn(identity: Mapping[str, Any]) -> float:
    """Tokens that a turn could have; 0 stands for as many as the server allows."""
    return float(identity["settings"].get("max_tokens", 0)) or math.inf


def check_checkpoint(path: Path) -> None:
    """Raise InputError where a path is neither a checkpoint nor an evaluation."""
    if not (checkpoint_folder(path) / "config.json").is_file():
        raise InputError(
            "this floor is neither a checkpoint nor a greedy evaluation",
            where=str(path),
            remedy="name a checkpoint, or the --out of an earlier `palio eval run`",
        )


def as_floor(result: EvalResult) -> StageResult:
    """A greedy evaluation as a row among the floors."""
    return StageResult(name=result.name, greedy=result, floor=True)
