"""The result of an evaluation is computed anew from its rollouts, never read from a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from palio.evaluate.pin import pin_of
from palio.evaluate.policy import EvalSettings, result_of
from palio.evaluate.results import EvalResult
from palio.evaluate.rollouts import IDENTITY, read_identity, read_scores
from palio.records import ConfigError, InputError, Problem, digest


def load_result(
    folder: Path, problems: Sequence[Problem], clusters: Mapping[str, str] | None = None
) -> EvalResult:
    """The result of an evaluation folder, computed anew from its rollouts.

    Args:
        folder: `out` of an earlier `evaluate_policy`.
        problems: the problems that were evaluated.
        clusters: problem id -> leak cluster.

    Raises:
        InputError: there is no evaluation, or it was made on other problems.
    """
    identity = read_identity(folder)
    if identity.get("problems") != digest(list(problems)):
        raise InputError(
            "was made on other problems",
            where=str(folder),
            remedy="name the suite that the evaluation used, with the same --limit and --pool",
        )
    try:
        settings = msgspec.convert({**identity["settings"], "threads": 1}, EvalSettings)
        name, encoder = str(identity["policy"]), str(identity["encoder"])
        model = pin_of(identity)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise InputError(
            f"not an evaluation's identity: {error}", where=str(folder / IDENTITY)
        ) from error
    return result_of(
        read_scores(folder).values(),
        problems,
        settings,
        name=name,
        encoder=encoder,
        model=model,
        clusters=clusters,
    )


def evaluated(folder: Path, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Those problems of a suite that an evaluation was made on, in its order.

    Args:
        folder: `out` of an earlier `evaluate_policy`.
        problems: of the suite, more of them maybe.

    Raises:
        InputError: there is no evaluation, it was made on other problems, or not all were run yet.
    """
    identity = read_identity(folder)
    ran = {score.problem_id for score in read_scores(folder).values()}
    found = tuple(problem for problem in problems if problem.problem_id in ran)
    for some in (found, tuple(sorted(found, key=lambda problem: problem.problem_id))):
        if digest(list(some)) == identity.get("problems"):
            return some
    raise InputError(
        f"of its problems the suite holds {len(found)}, and they are not those it was made on",
        where=str(folder),
        remedy="name the suite that the evaluation used, and finish the evaluation",
    )


def check_greedy(folder: Path, use: str) -> None:
    """Refuse an evaluation whose rollouts were sampled.

    Args:
        folder: of rollouts.
        use: what is told of greedy rollouts only, e.g. "a card shows greedy success".

    Raises:
        ConfigError: they were.
    """
    if read_identity(folder).get("settings", {}).get("temperature"):
        raise ConfigError(
            f"these rollouts are sampled, and {use}",
            where=str(folder),
            remedy="name the folder greedy beside it",
        )


def check_alike(a: Path, b: Path) -> tuple[str, ...]:
    """Refuse to pair two evaluations in which a problem was not the same task.

    Tools, length of turns and limits may differ: what they are worth is a question of its own.

    Returns:
        The settings that differ, to be told beside the comparison.

    Raises:
        InputError: one is none, or they were made in other worlds, or scored by another similarity.
    """
    one, two = read_identity(a), read_identity(b)
    other = [key for key in ("worlds", "encoder") if one.get(key) != two.get(key)]
    if other:
        raise InputError(
            f"these evaluations were not made on equal terms: other {' and '.join(other)}",
            where=f"{a} and {b}",
            remedy="evaluate both with the same --catalogue, --world and --encoder",
        )
    settings = [each.get("settings", {}) for each in (one, two)]
    if not any(each.get("temperature") for each in settings):
        settings = [{k: v for k, v in each.items() if k != "seed"} for each in settings]
    names = sorted(settings[0].keys() | settings[1].keys())
    return tuple(name for name in names if settings[0].get(name) != settings[1].get(name))
