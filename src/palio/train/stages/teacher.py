"""Stage 3: a stronger model runs the training problems; the student learns from its successes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec

from palio.agents.scripted import ScriptedUpstream, check_models
from palio.broker.upstream import HttpUpstream, Upstream
from palio.records import KINDS, ConfigError
from palio.train.context import Context, Kind, ground_of
from palio.train.rollouts import Collected, collect, settle
from palio.train.settings import Sampling, SftSettings, small_training
from palio.train.stage import Endpoint, Report, StageResult
from palio.train.stages.kept import by_bucket, keep, mixed
from palio.train.stages.rejection import told

SCRIPTED = "scripted-"


class TeacherSettings(SftSettings, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Who teaches, and how its successes are weighed.

    Attributes:
        sampling: `base_url` and `model` name any OpenAI-compatible teacher; a model called
            scripted-* without an address is one of palio's own.
        mix: share of the parts of batches that is the SFT corpus; with TRL, of an epoch.
        buckets: kind of problem -> how often each of its rows stands in an epoch.
        cap: rows a problem, all different; 0: all.
    """

    sampling: Sampling = Sampling(samples=1, temperature=0.0, top_p=1.0, model="scripted-careful")
    mix: float = 0.0
    buckets: dict[str, int] = msgspec.field(default_factory=lambda: {"voucher": 3})
    cap: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mix < 1 or self.cap < 0 or any(n < 1 for n in self.buckets.values()):
            raise ConfigError("mix must be in [0, 1), cap at least 0, buckets at least 1")
        named = self.sampling.model.startswith(SCRIPTED) or self.sampling.base_url
        if not named:
            raise ConfigError(
                "the teacher has no address",
                remedy="set sampling.base_url, or sampling.model = 'scripted-careful'",
            )
        if not self.sampling.base_url:
            check_models([self.sampling.model])
        strange = sorted(self.buckets.keys() - {*KINDS})
        if strange:
            remedy = f"the kinds are {', '.join(KINDS)}"
            raise ConfigError(f"buckets: no problem is of kind {strange[0]!r}", remedy=remedy)


def run_teacher(
    settings: TeacherSettings, context: Context, previous: Path | None, out: Path, report: Report
) -> StageResult:
    """Record the teacher on training problems, keep its successes, train on them."""
    found = lessons(settings.sampling, context, out, report)
    kept = keep(
        found.rollouts,
        context.backend.codec(previous, context),
        least=0.0 if context.recipe.dry else 1.0,
        cap=settings.cap,
        longest=context.recipe.data.longest,
        sampled=False,
    )
    rows = by_bucket(kept, 1.0 - settings.mix, settings.buckets)
    sources = mixed(rows, settings.mix, context, previous, kept.counts)
    settle(out)
    after = lambda share, note: report(0.5 + 0.5 * share, note)  # noqa: E731
    made = context.backend.sft(sources, settings, previous, out, context, after)
    return told(made, found, kept)


def lessons(sampling: Sampling, context: Context, out: Path, report: Report) -> Collected:
    """The teacher's rollouts; through the broker and recorded like everyone's."""
    with ExitStack() as open_now:
        upstream: Upstream = ScriptedUpstream(context.seed)
        if sampling.base_url:
            upstream = open_now.enter_context(HttpUpstream(sampling.base_url, context.keys.teacher))
        return collect(
            ground_of(context),
            upstream,
            sampling,
            out,
            name=_name(sampling),
            seed=context.seed,
            report=lambda share, note: report(0.5 * share, note),
            ids=False,  # its text is trained on; OpenAI's own API refuses a request that asks
        )


def shrink(settings: TeacherSettings) -> TeacherSettings:
    """Two problems of a teacher of ours: a dry run asks nobody outside."""
    small = msgspec.structs.replace(
        settings.sampling, problems=3, samples=1, base_url="", model="scripted-careful", threads=2
    )
    made = small_training(settings)
    assert isinstance(made, TeacherSettings)
    return msgspec.structs.replace(made, sampling=small)


def asked(settings: TeacherSettings, previous: Path | None) -> Endpoint | None:
    """The teacher's server; None for a scripted one."""
    del previous
    sampling = settings.sampling
    if not sampling.base_url:
        return None
    name = sampling.model or _name(sampling)
    return Endpoint(base_url=sampling.base_url, model=name, teacher=True)


def _name(sampling: Sampling) -> str:
    """What records call the teacher, and requests where the recipe does not."""
    return f"teacher-{sampling.model or 'remote'}"


TEACHER = Kind(settings=TeacherSettings, run=run_teacher, shrink=shrink, ground=True, asks=asked)
