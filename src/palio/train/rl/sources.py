"""What a Dr. GRPO stage rolls out, problems or a teacher's turns, and who grades its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from palio.agents.scripted import ScriptedUpstream
from palio.broker.upstream import HttpUpstream, Upstream
from palio.corpus.rows import CorpusRow
from palio.records import InputError, to_json
from palio.train.context import Context
from palio.train.ground import Ground, evenly
from palio.train.rl.material import GROUND, write_ground
from palio.train.rl.policy import Policy
from palio.train.rl.prefixes import prefix_roller
from palio.train.rl.processes import ROWS
from palio.train.rl.rewards import TeacherPolicy
from palio.train.rl.rollouts import Roller, WorldRoller
from palio.train.rl.settings import GrpoSettings, TeacherSettings


def rows_of(settings: GrpoSettings, context: Context) -> Sequence[CorpusRow]:
    """The teacher's rows of prefix mode."""
    salt = f"grpo-{context.seed}"
    return evenly(context.rows, settings.problems, salt, lambda row: row.trajectory_id)


def write_material(out: Path, ground: Ground | None, rows: Sequence[CorpusRow]) -> None:
    """What the training processes read."""
    if ground is not None:
        write_ground(ground, out / GROUND)
    (out / ROWS).write_bytes(b"".join(to_json(row) + b"\n" for row in rows))


def problems_of(ground: Ground | None) -> Ground:
    """The training problems.

    Raises:
        InputError: there are none.
    """
    if ground is None or not ground.problems:
        raise InputError(
            "rollouts need training problems and their catalogues",
            remedy='name them with --suite and --catalogue, or use reward = "prefix"',
        )
    return ground


@contextmanager
def teacher_of(settings: TeacherSettings, key: str) -> Iterator[Upstream]:
    """The teacher's endpoint, or the scripted models."""
    if not settings.base_url:
        yield ScriptedUpstream(settings.seed)
        return
    with HttpUpstream(settings.base_url, key) as upstream:
        yield upstream


def make_roller(
    settings: GrpoSettings,
    ground: Ground | None,
    rows: Sequence[CorpusRow],
    seed: int,
    policy: Policy,
    upstream: Upstream,
) -> Roller:
    """What the stage rolls out: turns of rows in prefix mode, else training problems.

    Raises:
        InputError: there are no training problems, or in prefix mode no turn that can be rolled
            out.
    """
    play = settings.play()
    if settings.reward == "prefix":
        return prefix_roller(rows, play, policy)
    ground = problems_of(ground)
    problems = ground.evenly(settings.problems, f"grpo-{seed}")
    named = settings.teacher
    teacher = TeacherPolicy(upstream, named.model, where=named.base_url)
    asked = teacher if settings.reward == "on_policy" else None
    return WorldRoller(problems, ground, policy.codec, play, asked)
