"""A teacher's turn is rolled out where it can be read and there is room, or counted as left out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.broker.upstream import RejectedError
from palio.corpus.rows import CorpusRow, row_of
from palio.records import InputError, Message, UpstreamError
from palio.train.ground import evenly
from palio.train.rl.grpo import _counts, train_grpo
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.prefixes import PrefixRoller, prefix_roller, prefixes_of, prompt_ids
from palio.train.rl.rollouts import Play, checked
from palio.train.rl.sampler import Decoding
from palio.train.rl.sources import rows_of
from palio.train.stage import read_metrics
from tests.train_rl.conftest import Scene, ToldSampler
from tests.train_rl.test_grpo import quiet, settings

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def taught(scene: Scene, count: int) -> list[CorpusRow]:
    return [row_of(talk, "told") for talk in scene.talks[:count]]


def sizes(scene: Scene, count: int) -> dict[str, int]:
    """Key of each turn with a call -> tokens of its prefix."""
    return {
        prefix.key: len(prompt_ids(scene.codec, prefix.talk))
        for number, row in enumerate(taught(scene, count))
        for prefix in prefixes_of(f"{row.problem_id}/{number}", row.typed(), row.offered)
    }


def test_a_prefix_without_room_for_a_turn_is_left_out_and_counted(
    scene: Scene, policy: OwnPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    found = sizes(scene, 3)
    edge = sorted(found.values())[len(found) // 2]
    with caplog.at_level(logging.WARNING, "palio.train.rl.prefixes"):
        roller = prefix_roller(taught(scene, 3), Play(longest=edge, threads=1), policy)
    kept = [key for key, size in found.items() if size < edge]
    assert list(roller.keys) == kept
    assert 0 < len(kept) < len(found)
    assert roller.left_out == {"unreadable": 0, "too_long": len(found) - len(kept)}
    first = next(key for key in found if key not in kept)
    assert f"the first is {first}" in caplog.text
    exact = prefix_roller(taught(scene, 3), Play(longest=edge + 1, threads=1), policy)
    assert set(exact.keys) >= {key for key, size in found.items() if size == edge}


def test_a_turn_ends_where_the_conversation_is_longest(scene: Scene, policy: OwnPolicy) -> None:
    found = sizes(scene, 1)
    key, size = next(iter(found.items()))
    roller = prefix_roller(taught(scene, 1), Play(longest=size + 3, threads=1), policy)
    [one] = roller.roll([key], [0], ToldSampler([list(range(40, 60))]))
    assert len(one.prompt) == size
    assert len(one.completion) == 3


def test_a_model_with_less_context_than_longest_leaves_out_what_it_cannot_read(
    scene: Scene, policy: OwnPolicy
) -> None:
    found = sizes(scene, 3)
    policy.model.config.max_position_embeddings = edge = max(found.values())
    roller = prefix_roller(taught(scene, 3), Play(longest=100_000, threads=1), policy)
    assert roller.left_out["too_long"] == sum(size == edge for size in found.values()) > 0


def test_nothing_to_roll_out_is_told_before_anything_is_sampled(
    scene: Scene, policy: OwnPolicy
) -> None:
    with pytest.raises(InputError, match=r"none of \d+ turns.*0 unreadable, \d+ too_long.*longest"):
        prefix_roller(taught(scene, 2), Play(longest=3), policy)
    with pytest.raises(InputError, match="none of 0 turns"):
        prefix_roller([], Play(), policy)


@pytest.mark.parametrize(
    "broken",
    [
        {"content": "<tool_call>[{]</tool_call>"},
        {"content": '<tool_call>\n{"name": "find_product"}\n</tool_call>'},
        {"arguments": '{"q": '},
        {"arguments": "[1]"},
    ],
)
def test_a_teachers_call_that_cannot_be_read_is_left_out_and_counted(
    scene: Scene, policy: OwnPolicy, tmp_path: Path, broken: dict[str, str]
) -> None:
    rows = taught(scene, 4)
    at = next(n for n, message in enumerate(rows[1].messages) if message.get("tool_calls"))
    spoilt = [dict(message) for message in rows[1].messages]
    if "content" in broken:
        spoilt[at]["content"] = broken["content"]
    else:
        call = spoilt[at]["tool_calls"][0]
        wrong = {**call["function"], "arguments": broken["arguments"]}
        spoilt[at]["tool_calls"] = [{**call, "function": wrong}]
    whole = prefix_roller(rows, Play(threads=2), policy)
    rows[1] = msgspec.structs.replace(rows[1], messages=tuple(spoilt))
    chosen = settings(1, reward="prefix", longest=4000)
    roller = prefix_roller(rows, chosen.play(), policy)
    assert set(whole.keys) - set(roller.keys) == {f"{rows[1].problem_id}/1#{at}"}
    assert roller.left_out == {"unreadable": 1, "too_long": 0}
    trainer = train_grpo(policy, roller, chosen, tmp_path, seed=1, report=quiet)
    assert _counts(trainer, roller) == {
        "steps": 1,
        "rollouts": 8,
        "stopped_early": 0,
        "unreadable": 1,
    }
    assert len(read_metrics(tmp_path)) == 1


class Refusing(ToldSampler):
    """Refuses what it is asked after the turns that it has."""

    def sample(self, ids: Any, decoding: Decoding) -> Any:
        if len(self.prompts) == len(self._turns):
            raise RejectedError("the prompt is more than the model's context")
        return super().sample(ids, decoding)


def test_a_turn_that_the_sampler_refuses_is_unscored(scene: Scene) -> None:
    talk = scene.talks[0]
    prefixes = prefixes_of("k", talk.messages, talk.tools)
    roller = PrefixRoller(prefixes, scene.codec, Play(threads=1, longest=4000))
    key, end = roller.keys[0], scene.codec.end
    good, lost = roller.roll([key, key], [0, 1], Refusing([[end]]))
    assert good.outcome is not None
    assert (lost.outcome, lost.completion, lost.success) == (None, [], False)
    assert checked([good, lost], end)[1].mask == [False]
    with pytest.raises(UpstreamError, match="none of 1 rollouts could be scored: the prompt is"):
        checked([lost], end)


def test_rows_are_chosen_of_all_kinds_and_by_digest(scene: Scene) -> None:
    rows = sorted(taught(scene, 45), key=lambda row: row.kind)
    kinds = sorted({row.kind for row in rows})
    assert len(kinds) == 3
    context: Any = type("C", (), {"rows": rows, "seed": 3})
    found = rows_of(settings(reward="prefix", problems=6), context)
    assert [row.kind for row in found] == [kind for kind in kinds for _ in range(2)]
    assert list(found) != rows[:6]
    assert list(rows_of(settings(reward="prefix"), context)) == rows
    fewer = rows[5:]
    again = evenly(fewer, 6, "grpo-3", lambda row: row.trajectory_id)
    assert {r.trajectory_id for r in found} & {r.trajectory_id for r in fewer} <= {
        r.trajectory_id for r in again
    }, "by digest, whatever stands before them"


def test_messages_of_rows_are_records(scene: Scene) -> None:
    assert all(isinstance(each, Message) for each in taught(scene, 1)[0].typed())
