"""Which rollouts become rows: successes only, no two alike, at most so many a problem."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from palio.records import InputError
from palio.train.batches import Example
from palio.train.codec import Codec, Talk
from palio.train.context import Context, Source
from palio.train.rollouts import Rollout
from palio.train.stages.examples import examples_of
from palio.train.tokenizer import Encoded

CORPUS, ROLLOUTS = "trajectories", "rollouts"
_LEAST = 0.01
"""Weight of a rollout that was kept with no reward at all: only a dry run keeps one."""
_REMEDIES = {
    "no prefix": "sample by a server that tells token ids when `return_token_ids` asks for them, "
    "as vLLM and `palio serve` do, and that leaves what was said before as it was",
    "rewritten": "leave `template` empty for palio's own, which keeps every turn",
    "too long": "raise `longest` in the recipe",
    "no success": "roll out more problems or samples, or train the stage before it longer",
    "unscored": "see that the model's server answers, and run the same again",
}
"""Why there is no row -> what to do; the first that applies: a success was lost by it."""


class Kept(NamedTuple):
    """Rollouts that are trained on, as token ids and masks.

    Attributes:
        rows: (rollout, example), in the order of the rollouts.
        counts: reason -> rollouts that were not kept.
        redrawn: rows whose text, tokenised again, would not have been the ids that were sampled.
    """

    rows: list[tuple[Rollout, Example]]
    counts: dict[str, int]
    redrawn: int


def keep(
    rollouts: Sequence[Rollout],
    codec: Codec,
    *,
    least: float,
    cap: int,
    longest: int,
    sampled: bool,
) -> Kept:
    """Choose rows.

    Args:
        rollouts: in a fixed order.
        codec: the student's.
        least: reward that a rollout needs; at 1 the profile's strict success decides.
        cap: rows a problem; 0: all that differ.
        longest: tokens of a row.
        sampled: whether the rows are the student's own samples: then their ids are used as they
            were sampled, and nothing is tokenised again.
    """
    counts: Counter[str] = Counter()
    rows: list[tuple[Rollout, Example]] = []
    seen: set[tuple[int, ...]] = set()
    held: defaultdict[str, int] = defaultdict(int)
    redrawn = 0
    for rollout in rollouts:
        reason = _refused(rollout, least)
        again = None if reason else encode(rollout, codec)
        encoded = rollout.encoded() if sampled and not reason else again
        example = Example.of(encoded, longest) if encoded is not None else None
        if not reason and example is None:
            reason = _no_example(encoded)
        elif example is not None and example.ids in seen:
            reason = "duplicate"
        elif example is not None and cap and held[rollout.problem_id] >= cap:
            reason = "over the cap"
        if reason or example is None:
            counts[reason] += 1
            continue
        seen.add(example.ids)
        held[rollout.problem_id] += 1
        redrawn += _redrawn(again, encoded)
        rows.append((rollout, example))
    return Kept(rows, dict(sorted(counts.items())), redrawn)


def _no_example(encoded: Encoded | None) -> str:
    if encoded is None:
        return "no prefix"
    return "too long" if encoded.ids else "rewritten"


def _redrawn(again: Encoded | None, sampled: Encoded | None) -> bool:
    """Whether the text has other ids; what follows the last sampled turn was never read."""
    if again is None or sampled is None:
        return False
    return again.ids[: len(sampled.ids)] != sampled.ids


def _refused(rollout: Rollout, least: float) -> str:
    if not rollout.scored:
        return "unscored"
    good = rollout.success if least >= 1.0 else rollout.reward >= least
    return "" if good else "no success"


def encode(rollout: Rollout, codec: Codec) -> Encoded:
    """The rollout's text as the codec's ids."""
    record = rollout.trajectory
    return codec.encode_talks([Talk(record.messages, record.tools)])[0]


def by_reward(kept: Kept, share: float) -> list[Source]:
    """Sources in which a rollout is drawn in proportion to its reward; together `share`."""
    groups: defaultdict[float, list[Example]] = defaultdict(list)
    for rollout, example in kept.rows:
        reward = 1.0 if rollout.success else max(_LEAST, round(rollout.reward, 2))
        groups[reward].append(example)
    total = sum(reward * len(found) for reward, found in groups.items())
    return [
        Source(ROLLOUTS if reward == 1.0 else f"{ROLLOUTS}-{reward:g}", groups[reward], weight)
        for reward in sorted(groups, reverse=True)
        if (weight := share * reward * len(groups[reward]) / total) > 0
    ]


def by_bucket(kept: Kept, share: float, buckets: Mapping[str, int]) -> list[Source]:
    """One source in which each row stands as often as its kind's bucket says; default once."""
    examples = [
        example for rollout, example in kept.rows for _ in range(buckets.get(rollout.kind, 1))
    ]
    return [Source(ROLLOUTS, examples, share)] if examples else []


def mixed(
    rows: Sequence[Source],
    mix: float,
    context: Context,
    previous: Path | None,
    counts: Mapping[str, int],
) -> list[Source]:
    """The rows beside the corpus, which is `mix` of the parts of batches, or with TRL of an epoch.

    Args:
        rows: sources of rollouts.
        mix: share of the corpus.
        context: of the stage.
        previous: checkpoint of the stage before.
        counts: reason -> rollouts that are no rows.

    Raises:
        InputError: there is no row; tells why.
    """
    if not rows:
        raise _no_row(context.name, counts)
    sources = [*rows]
    if mix > 0:
        sources.append(Source(CORPUS, examples_of(context.rows, context, previous), mix))
    return sources


def _no_row(stage: str, counts: Mapping[str, int]) -> InputError:
    """Rollouts that succeeded and cannot be trained on are another matter than failures."""
    lost = [reason for reason in ("no prefix", "rewritten", "too long") if counts.get(reason)]
    what = "no rollout that was a success can be a row" if lost else "no rollout was a success"
    told = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    first = next((reason for reason in _REMEDIES if counts.get(reason)), "no success")
    why = f"stage {stage!r}: {what} ({told or 'there is none'})"
    return InputError(why, remedy=_REMEDIES[first])
