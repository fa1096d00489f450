"""Teachers' turns one at a time: the student's next turn after a prefix, scored without a world."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from palio.broker.upstream import RejectedError
from palio.corpus.rows import CorpusRow
from palio.judging.format import step_format
from palio.records import InputError, Message, PalioError, Tool, UpstreamError
from palio.train.codec import Codec, Talk
from palio.train.rl.policy import Policy
from palio.train.rl.rewards import prefix_reward, upstream_text
from palio.train.rl.rollouts import Play, Rollout
from palio.train.rl.sampler import Decoding, Sampler
from palio.train.rl.tokens import PROBE, Span
from palio.train.text import END, parse_assistant

LOG = logging.getLogger(__name__)


class Prefix(msgspec.Struct, frozen=True):
    """A teacher's conversation up to one of its turns, and that turn.

    Attributes:
        key: unique, e.g. the problem and the number of the turn.
    """

    key: str
    talk: Talk
    teacher: Message


def prefixes_of(key: str, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Prefix]:
    """One prefix for each turn of a teacher's conversation that makes a call."""
    return [
        Prefix(f"{key}#{at}", Talk(tuple(messages[:at]), tuple(tools)), message)
        for at, message in enumerate(messages)
        if at and message.role == "assistant" and message.tool_calls
    ]


class PrefixRoller:
    """One turn after a teacher's prefix, scored against the teacher's by the upstream formula.

    Left out is a turn of the teacher's whose calls cannot be read, and a prefix after which there
    is no room for a turn. A turn that the sampler does not give is unscored.

    Args:
        prefixes: teacher's steps, keys unique; those of one row (`prefixes_of`) stand together.
        codec: the policy's tokens.
        play: of the turn; `longest` counts the prefix too.

    Attributes:
        left_out: reason -> how many prefixes.
    """

    def __init__(self, prefixes: Sequence[Prefix], codec: Codec, play: Play) -> None:
        self._codec, self._play = codec, play
        self._prompts: dict[str, list[int]] = {}
        readable = [prefix for prefix in prefixes if _is_readable(prefix.teacher)]
        self._prefixes = {prefix.key: prefix for prefix in self._fitting(readable)}
        lost = [prefix.key for prefix in prefixes if prefix.key not in self._prefixes]
        unreadable = len(prefixes) - len(readable)
        self.left_out = {"unreadable": unreadable, "too_long": len(lost) - unreadable}
        if lost:
            LOG.warning(
                "%d of %d turns of the teacher are left out, the first is %s: %d have calls that "
                "cannot be read, %d leave no room within %d tokens",
                *(len(lost), len(prefixes), lost[0], *self.left_out.values(), play.longest),
            )

    def _fitting(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """Those with room for a turn; where the last one of a row has it, all of the row have."""
        rows: dict[str, list[Prefix]] = {}
        for prefix in prefixes:
            rows.setdefault(prefix.key.rpartition("#")[0], []).append(prefix)
        fitting: list[Prefix] = []
        for row in rows.values():
            fitting += row if self._fits(row[-1]) else filter(self._fits, row)
        return fitting

    def _fits(self, prefix: Prefix) -> bool:
        return len(prompt_ids(self._codec, prefix.talk)) < self._play.longest

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the teacher's steps."""
        return tuple(self._prefixes)

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        """See `Roller`."""
        for key in set(keys) - self._prompts.keys():
            self._prompts[key] = prompt_ids(self._codec, self._prefixes[key].talk)
        with ThreadPoolExecutor(self._play.threads, thread_name_prefix="rollout") as pool:
            return list(pool.map(lambda key, seed: self._one(key, seed, sampler), keys, seeds))

    def _one(self, key: str, seed: int, sampler: Sampler) -> Rollout:
        play, prompt = self._play, self._prompts[key]
        room = play.longest - len(prompt)
        decoding = Decoding(min(play.max_tokens, room), play.temperature, play.top_p, seed)
        try:
            if room < 1:  # a template that leaves out of a longer conversation what it once said
                raise RejectedError(f"the prefix has more than {play.longest} tokens", where=key)
            ids, logprobs = sampler.sample(prompt, decoding)
        except (UpstreamError, RejectedError) as error:
            return _unanswered(key, prompt, error)
        written = parse_assistant(self._codec.decode(ids).removesuffix(END))
        reward = prefix_reward(written, self._prefixes[key].teacher)
        return Rollout(
            key=key,
            prompt=prompt,
            completion=ids,
            mask=[True] * len(ids),
            logprobs=logprobs,
            spans=(Span(0, len(ids)),),
            outcome=reward,
            credits=None,
            success=reward >= 4.0,  # format 1 and the teacher's very calls, 3
        )


def _unanswered(key: str, prompt: list[int], fault: PalioError) -> Rollout:
    """A rollout in which the model was not asked."""
    return Rollout(
        key=key,
        prompt=prompt,
        completion=[],
        mask=[],
        logprobs=[],
        spans=(),
        outcome=None,
        credits=None,
        success=False,
        fault=fault,
    )


def _is_readable(teacher: Message) -> bool:
    """Whether a turn's calls, if any, are a list of names with parameters, as the formula asks."""
    text = upstream_text(teacher)
    return "<tool_call>" not in text or bool(step_format(text, ("tool_call",)))


def prompt_ids(codec: Codec, talk: Talk) -> list[int]:
    """Ids of a conversation up to the opening of an assistant turn, by re-encoding its turns."""
    ids, trained = codec.encode_talks([Talk((*talk.messages, PROBE), talk.tools)])[0]
    last = len(ids) - 1
    while not trained[last]:
        last -= 1
    while trained[last]:
        last -= 1
    return list(ids[: last + 1])


def prefix_roller(rows: Sequence[CorpusRow], play: Play, policy: Policy) -> PrefixRoller:
    """A roller of all turns of the rows that make a call.

    Raises:
        InputError: there is none that can be rolled out.
    """
    prefixes = [
        prefix
        for number, row in enumerate(rows)
        for prefix in prefixes_of(f"{row.problem_id}/{number}", row.typed(), row.offered)
    ]
    room = getattr(policy.model.config, "max_position_embeddings", play.longest)
    play = msgspec.structs.replace(play, longest=min(play.longest, room))
    roller = PrefixRoller(prefixes, policy.codec, play)
    if not roller.keys:
        lost = ", ".join(f"{count} {reason}" for reason, count in roller.left_out.items())
        raise InputError(
            f"none of {len(prefixes)} turns with a call can be rolled out: {lost}",
            remedy="give it a corpus with turns that make calls, or raise `longest`",
        )
    return roller
