"""Tokens in, tokens out; SFT, KTO and GRPO train on the same tokens: all of the assistant's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.broker.upstream import RejectedError, scoped
from palio.records import Message, UpstreamError
from palio.train.engine import Sampled
from palio.train.preference.labels import sample_labels, usable
from palio.train.rl.rollouts import Play, WorldRoller, checked
from palio.train.rl.sampler import Decoding
from palio.train.rl.tokens import TokenLog, TokenServer
from palio.train.text import END, assistant_text, chat_text
from palio.train.tokenizer import ChatTokenizer
from tests.train_rl.conftest import Scene, ToldSampler


def turns_of(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> list[list[int]]:
    return [
        tokenizer.encode(assistant_text(message) + END)
        for message in messages
        if message.role == "assistant"
    ]


def test_masks_of_sft_kto_and_grpo_are_alike(scene: Scene, tmp_path) -> None:
    for number, talk in enumerate(scene.talks[:12]):
        problem = scene.ground.problems[number]
        roller = WorldRoller([problem], scene.ground, scene.codec, Play())
        said = turns_of(scene.tokenizer, talk.messages)
        [rollout] = roller.roll([problem.problem_id], [0], ToldSampler(said))
        sft = scene.tokenizer.encode_chat(talk.messages)
        whole = rollout.prompt + rollout.completion
        trained = [False] * len(rollout.prompt) + rollout.mask
        assert whole == sft.ids[: len(whole)]
        assert trained == sft.trained[: len(whole)]
        assert not any(sft.trained[len(whole) :]), "nothing that is trained on is missing"
        folder = tmp_path / str(number)
        folder.mkdir()
        [row] = sample_labels(roller, ToldSampler(said), folder, samples=1, seed=0)
        assert (list(row.completion), list(map(bool, row.mask))) == (
            rollout.completion,
            rollout.mask,
        )
        assert row.label == rollout.success


def test_the_mask_decodes_to_what_the_assistant_said(scene: Scene) -> None:
    for number, talk in enumerate(scene.talks[:12]):
        problem = scene.ground.problems[number]
        roller = WorldRoller([problem], scene.ground, scene.codec, Play())
        sampler = ToldSampler(turns_of(scene.tokenizer, talk.messages))
        [rollout] = roller.roll([problem.problem_id], [0], sampler)
        runs = groupby(zip(rollout.completion, rollout.mask, strict=True), key=lambda pair: pair[1])
        said = [scene.tokenizer.decode([t for t, _ in run]) for kept, run in runs if kept]
        wanted = [assistant_text(m) + END for m in talk.messages if m.role == "assistant"]
        assert said == wanted, "every turn with its end token, and nothing else"
        spans = [rollout.completion[start:end] for start, end in rollout.spans]
        assert [scene.tokenizer.decode(span) for span in spans] == wanted
        assert rollout.trajectory is not None
        assert chat_text(rollout.trajectory.messages) == chat_text(talk.messages)


def test_what_was_sampled_is_never_tokenised_again(scene: Scene) -> None:
    """Text spelled in bytes stays in bytes, in the log and in the next prompt."""
    talk = scene.talks[0]
    problem = scene.ground.problems[0]
    said = turns_of(scene.tokenizer, talk.messages)
    thinking = next(m.reasoning_content for m in talk.messages if m.role == "assistant")
    assert thinking
    spelled = [token for char in thinking for token in scene.tokenizer.encode(char)]
    head = scene.tokenizer.encode("<think>\n")
    tail = said[0][len(head) + len(scene.tokenizer.encode(thinking)) :]
    odd = [*head, *spelled, *tail]
    assert odd != said[0]
    sampler = ToldSampler([odd, *said[1:]])
    roller = WorldRoller([problem], scene.ground, scene.codec, Play())
    [rollout] = roller.roll([problem.problem_id], [0], sampler)
    start, end = rollout.spans[0]
    assert rollout.completion[start:end] == odd
    assert sampler.prompts[1][: len(sampler.prompts[0]) + len(odd)] == [*sampler.prompts[0], *odd]


def body(messages: Sequence[Message]) -> dict[str, object]:
    return {"messages": [message.to_openai() for message in messages]}


def test_a_turn_that_was_cut_off_gets_an_end_that_is_not_trained_on(scene: Scene) -> None:
    talk = scene.talks[0].messages
    said = turns_of(scene.tokenizer, talk)
    log = TokenLog(ToldSampler([said[0], said[1]]), scene.codec, max_tokens=5, longest=4000)
    first = log.complete(body(talk[:1]))
    assert first["choices"][0]["finish_reason"] == "length"
    assert (log.cut, log.ids[-1], log.trained[-1]) == (1, scene.tokenizer.end, False)
    assert log.trained.count(True) == 5
    written = Message(role="assistant", content=first["choices"][0]["message"]["content"])
    log.complete(body([talk[0], written, Message(role="user", content="go on")]))
    assert scene.tokenizer.decode(log.ids).count(END) >= 3


def test_a_server_of_tokens_keeps_each_conversation_s_own(scene: Scene) -> None:
    """Each run goes on from the very ids that it sampled, however the text would be cut anew."""
    talk = scene.talks[0].messages
    said = [[*turn[:-1], scene.tokenizer.end] for turn in turns_of(scene.tokenizer, talk)]
    spelled = [t for char in "so be it" for t in scene.tokenizer.encode(char)]
    odd = [*spelled, scene.tokenizer.end]
    sampler = ToldSampler([said[0], said[1], odd, said[1], odd])
    server = TokenServer(sampler, scene.codec, max_tokens=500, longest=4000)
    asked = {**body(talk[:1]), "return_token_ids": True}
    for first in (said[0], odd):
        run = scoped(server, "problem/0")
        answer = run.complete(dict(asked))
        assert answer["choices"][0]["token_ids"] == first
        written = Message(role="assistant", **known(answer))
        more = {**body([talk[0], written, Message(role="user", content="go on")])}
        later = run.complete({**more, "return_token_ids": True})
        whole = [*answer["prompt_token_ids"], *first]
        assert later["prompt_token_ids"][: len(whole)] == whole
    assert "prompt_token_ids" not in server.complete(body(talk[:1])), "only where it is asked"


def known(answer: dict[str, Any]) -> dict[str, Any]:
    told = msgspec.convert(answer["choices"][0]["message"], Message)
    names = ("content", "reasoning_content", "tool_calls")
    return {name: getattr(told, name) for name in names}


def test_a_changed_history_is_refused(scene: Scene) -> None:
    talk = scene.talks[0].messages
    log = TokenLog(
        ToldSampler(turns_of(scene.tokenizer, talk)), scene.codec, max_tokens=500, longest=4000
    )
    log.complete(body(talk[:1]))
    with pytest.raises(RejectedError, match="go on"):
        log.complete(body([talk[0], Message(role="assistant", content="no"), *talk[2:3]]))


def test_a_conversation_over_the_budget_ends(scene: Scene) -> None:
    talk = scene.talks[0].messages
    log = TokenLog(
        ToldSampler(turns_of(scene.tokenizer, talk)), scene.codec, max_tokens=50, longest=9
    )
    with pytest.raises(RejectedError, match="more than 9 tokens"):
        log.complete(body(talk[:1]))


def test_a_rollout_that_never_began_can_be_padded_and_is_not_trained_on(scene: Scene) -> None:
    problem = scene.ground.problems[0]
    said = turns_of(scene.tokenizer, scene.talks[0].messages)
    short = WorldRoller([problem], scene.ground, scene.codec, Play(longest=9))
    good = WorldRoller([problem], scene.ground, scene.codec, Play())
    [silent] = short.roll([problem.problem_id], [0], ToldSampler(said))
    [spoken] = good.roll([problem.problem_id], [0], ToldSampler(said))
    assert silent.completion == []
    assert silent.outcome is None
    end = scene.tokenizer.end
    padded, same = checked([silent, spoken], end)
    assert (padded.prompt, padded.completion, padded.mask, padded.spans) == (
        [end],
        [end],
        [False],
        (),
    )
    assert same is spoken


def test_a_step_in_which_nothing_could_be_scored_is_an_error(scene: Scene) -> None:
    class Down:
        def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
            raise UpstreamError("nobody there", code=3001, remedy="start vLLM")

    problem = scene.ground.problems[0]
    roller = WorldRoller([problem], scene.ground, scene.codec, Play(threads=2))
    rollouts = roller.roll([problem.problem_id] * 2, [0, 1], Down())
    assert [rollout.outcome for rollout in rollouts] == [None, None]
    with pytest.raises(UpstreamError, match="none of 2 rollouts could be scored: .*nobody there"):
        checked(rollouts, scene.tokenizer.end)


@pytest.mark.parametrize("more", [0, 1, 40])
def test_a_rollout_that_runs_into_its_limit_is_a_row_of_that_length(
    scene: Scene, tmp_path: Path, more: int
) -> None:
    problem = scene.ground.problems[0]
    word = scene.tokenizer.encode("a")[:1]
    first = WorldRoller([problem], scene.ground, scene.codec, Play())
    [rollout] = first.roll([problem.problem_id], [0], ToldSampler([[scene.tokenizer.end]] * 20))
    longest = len(rollout.prompt) + 10 + more
    roller = WorldRoller([problem], scene.ground, scene.codec, Play(longest=longest))
    [row] = sample_labels(roller, ToldSampler([word * 200] * 20), tmp_path, samples=1, seed=0)
    assert len(row.prompt) + len(row.completion) == longest
    assert not row.label
    assert usable([row], longest) == [row], "a runaway is what KTO is to learn from"
