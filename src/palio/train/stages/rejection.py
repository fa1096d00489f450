"""Stage 2: the model's own successes, sampled on training problems, beside the corpus."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec

from palio.broker.upstream import HttpUpstream, Upstream, no_upstream
from palio.records import ConfigError, ResumeError
from palio.train.context import Context, Kind, ground_of
from palio.train.rollouts import SETTLED, Collected, any_scored, collect, settle
from palio.train.settings import Sampling, SftSettings, small_training
from palio.train.stage import Report, StageResult
from palio.train.stages.kept import Kept, by_reward, keep, mixed

_ROLLED = 0.5
"""Share of the stage's progress that is the rollouts."""
_TURN = 1024
"""Tokens of a turn where the recipe names no `max_tokens`, as in KTO."""
ASKED_FOR = "rollouts.asked"
"""In the stage's folder: what its server is asked for, one of the two below."""
TOKENS = "token ids"
CHAT = "chat completions"


class RejectionSettings(SftSettings, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Sampling, filtering and training; the defaults are the paper's.

    Attributes:
        sampling: k rollouts a training problem.
        mix: share of the parts of batches that is the SFT corpus; with TRL, of an epoch.
        least: reward that a rollout needs. 1: strict success under `sampling.profile`. Below 1,
            rollouts are drawn in proportion to their reward.
        cap: rows a problem, all different; 0: all.
    """

    sampling: Sampling = Sampling()
    mix: float = 0.5
    least: float = 1.0
    cap: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mix < 1 or not 0 < self.least <= 1 or self.cap < 0:
            raise ConfigError("mix must be in [0, 1), least in (0, 1], cap at least 0")


def run_rejection(
    settings: RejectionSettings, context: Context, previous: Path | None, out: Path, report: Report
) -> StageResult:
    """Roll out, keep the successes, train on them and the corpus."""
    found = roll_out(settings.sampling, context, previous, out, report)
    kept = keep(
        found.rollouts,
        context.backend.codec(previous, context),
        least=0.0 if context.recipe.dry else settings.least,
        cap=settings.cap,
        longest=context.recipe.data.longest,
        sampled=True,
    )
    rows = by_reward(kept, 1.0 - settings.mix)
    sources = mixed(rows, settings.mix, context, previous, kept.counts)
    settle(out)
    after = lambda share, note: report(_ROLLED + (1 - _ROLLED) * share, note)  # noqa: E731
    made = context.backend.sft(sources, settings, previous, out, context, after)
    return told(made, found, kept)


def roll_out(
    sampling: Sampling, context: Context, previous: Path | None, out: Path, report: Report
) -> Collected:
    """Rollouts of the previous checkpoint, by our engine or by the server that is named.

    A server that completes token ids, as vLLM does, is given them: tokens in, tokens out. Another
    one, such as `palio serve`, is asked for chat completions with their ids.

    Raises:
        UpstreamError: the server does not answer, or refuses the key.
        ResumeError: it no longer completes token ids, which the stage began with.
    """
    with ExitStack() as open_now:
        upstream: Upstream = no_upstream  # of a stage that is settled, whose server may be gone
        if not sampling.base_url:
            upstream = open_now.enter_context(context.backend.serve(previous, context))
        elif not (out / SETTLED).exists():
            by_token = token_server(sampling, context, previous, out)
            upstream = by_token or open_now.enter_context(
                HttpUpstream(sampling.base_url, context.keys.sampler)
            )
        return collect(
            ground_of(context),
            upstream,
            sampling,
            out,
            name=f"{context.recipe.name}-{context.name}",
            seed=context.seed,
            report=lambda share, note: report(_ROLLED * share, note),
        )


def token_server(
    sampling: Sampling, context: Context, previous: Path | None, out: Path
) -> Upstream | None:
    """The server at `sampling.base_url` by its completions of token ids; None: it has none.

    A stage that has scored rollouts goes on as it began: those of the other kind may be no row.
    """
    from palio.train.rl.completions import CompletionsSampler, takes_address
    from palio.train.rl.tokens import TokenServer

    noted = out / ASKED_FOR
    begun = noted.read_text("utf-8").strip() if noted.exists() and any_scored(out) else ""
    if begun == CHAT:
        return None
    named = sampling.model or str(previous)
    sampler = CompletionsSampler(sampling.base_url, named, key=context.keys.sampler)
    codec = context.backend.codec(previous, context)
    completes = takes_address(sampling.base_url) and sampler.answers([codec.end])
    if begun == TOKENS and not completes:
        raise ResumeError(
            f"the stage began with a server of {TOKENS}, and the one at `sampling.base_url` now "
            "completes none",
            where=str(out),
            remedy="put that server back, name another --out, or remove this folder",
        )
    out.mkdir(parents=True, exist_ok=True)
    noted.write_text(f"{TOKENS if completes else CHAT}\n", "utf-8")
    if not completes:
        return None
    longest = context.recipe.data.longest
    return TokenServer(sampler, codec, max_tokens=_TURN, longest=longest)


def told(made: StageResult, found: Collected, kept: Kept) -> StageResult:
    """The result with what was rolled out and kept."""
    rolled = len(found.rollouts)
    scored = max(1, rolled - found.unscored)
    counts = {
        "rolled out": rolled,
        "kept": len(kept.rows),
        "problems kept": len({rollout.problem_id for rollout, _ in kept.rows}),
        **{f"rejected:{reason}": n for reason, n in kept.counts.items()},
        "redrawn": kept.redrawn,
    }
    measures = {
        "success": sum(each.success for each in found.rollouts) / scored,
        "reward": sum(each.reward for each in found.rollouts) / scored,
    }
    return msgspec.structs.replace(
        made, counts={**counts, **made.counts}, measures={**made.measures, **measures}
    )


def shrink(settings: RejectionSettings) -> RejectionSettings:
    """Two rollouts; in a dry run any reward is kept, or untrained weights would keep nothing."""
    small = msgspec.structs.replace(
        settings.sampling, problems=1, samples=2, max_tokens=24, base_url="", threads=2
    )
    made = small_training(settings)
    assert isinstance(made, RejectionSettings)
    return msgspec.structs.replace(made, sampling=small)


REJECTION = Kind(
    settings=RejectionSettings,
    run=run_rejection,
    shrink=shrink,
    ground=True,
    own=True,
    asks=lambda settings, previous: settings.sampling.endpoint(previous),
)
