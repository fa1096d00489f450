"""With Qwen3's own template rollouts, evaluation and server read what a row has there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from palio.broker.upstream import RejectedError
from palio.judging.encoders import default_encoder
from palio.records import Message
from palio.train.backends.codec import PretrainedCodec
from palio.train.backends.qwen_template import QWEN3, qwen3_template
from palio.train.backends.templates import SKIPS
from palio.train.backends.weights import load_tokenizer
from palio.train.checkpoint import save_checkpoint
from palio.train.codec import Talk
from palio.train.engine import Sampled
from palio.train.ground import Ground
from palio.train.model import Qwen3
from palio.train.reading import read_recipe
from palio.train.recipe import PretrainedModel
from palio.train.rl.prefixes import Prefix, PrefixRoller
from palio.train.rl.rollouts import Play, WorldRoller
from palio.train.rl.sampler import Decoding
from palio.train.rl.tokens import TokenLog
from palio.train.rollouts import collect
from palio.train.serving import open_checkpoint
from palio.train.settings import Sampling
from palio.train.text import END, REPLY, assistant_text
from palio.train.tokenizer import ChatTokenizer
from tests.train.conftest import Shop
from tests.train.test_qwen_template import (
    ASKED,
    PLAIN,
    REFUSED,
    REQUEST,
    TOLD,
    TOOLS,
    real_qwen3,
    rendered,
    said,
    turn,
)

pytest.importorskip("trl", reason="Qwen3's template is in the package of TRL")

from palio.train.backends.served import Served
from palio.train.backends.snapshots import write_start

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def qwen() -> PretrainedCodec:
    return real_qwen3()


class Told:
    """Says the given turns, and keeps what it was asked."""

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self.turns = [list(turn) for turn in turns]
        self.prompts: list[list[int]] = []

    def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
        self.prompts.append(list(ids))
        turn = self.turns[len(self.prompts) - 1][: decoding.max_tokens]
        return Sampled(turn, [-0.5] * len(turn))


def test_rollouts_and_server_read_what_a_row_has_there(
    qwen: PretrainedCodec, shop: Shop, talks: list[Sequence[Message]], tmp_path: Path
) -> None:
    for number in range(3):
        problem, messages = shop.problems[number], talks[number]
        ground = Ground((problem,), {problem.catalogue: shop.world}, default_encoder())
        turns = [qwen.encode(text) for text in said(messages)]
        logged, served = Told(turns), Told(turns)
        [rolled] = WorldRoller([problem], ground, qwen, Play(longest=9000)).roll(
            [problem.problem_id], [0], logged
        )
        upstream = Served(served, qwen, name="q", longest=9000)
        sampling = Sampling(samples=1, max_tokens=500, threads=1)
        folder = tmp_path / str(number)
        [kept] = collect(
            ground, upstream, sampling, folder, name="q", seed=0, report=lambda *_: None
        ).rollouts
        assert rolled.trajectory is not None
        record = rolled.trajectory
        assert kept.trajectory.messages == record.messages
        [row] = qwen.encode_talks([Talk(record.messages, record.tools)])
        assert logged.prompts == served.prompts
        assert len(logged.prompts) == len(turns)
        assert all(prompt == row.ids[: len(prompt)] for prompt in logged.prompts)
        both = rolled.prompt + rolled.completion, [False] * len(rolled.prompt) + rolled.mask
        assert both == kept.encoded()
        assert both == (row.ids[: len(both[0])], row.trained[: len(both[0])])
        assert not any(row.trained[len(both[0]) :])


def body(messages: Sequence[Message]) -> dict[str, Any]:
    plain = [message.to_openai() for message in messages]
    return {"messages": plain, "tools": PLAIN, "return_token_ids": True}


def test_the_server_reads_what_qwen3s_template_writes_of_a_second_request(
    qwen: PretrainedCodec,
) -> None:
    served = Served(Told([[qwen.end]] * 2), qwen, name="q", longest=4000)
    messages = [*REQUEST, Message(role="user", content="and a cup")]
    answer = served.complete(body(messages))
    text = qwen.decode(answer["prompt_token_ids"])
    asked = {"tools": PLAIN, "add_generation_prompt": True, "tokenize": False}
    assert text == rendered(qwen, messages, **asked)
    assert "both: <b>1</b>" not in text, "Qwen3 forgets the thinking of an earlier request"


def test_a_rollout_goes_on_with_its_own_tokens_where_the_template_would_rewrite_them(
    qwen: PretrainedCodec,
) -> None:
    """Such a rollout has no row of text, and trains Dr. GRPO on what was read and sampled."""
    odd = qwen.encode(assistant_text(turn(None, "")) + END)
    sampler = Told([odd, [qwen.end]])
    log = TokenLog(sampler, qwen, max_tokens=99, longest=4000)
    first = log.complete(body([ASKED]))["choices"][0]["message"]
    more = {**body([ASKED]), "messages": [ASKED.to_openai(), first, TOLD.to_openai()]}
    log.complete(more)
    assert sampler.prompts[1][: log.prompt + len(odd)] == [*sampler.prompts[0], *odd]
    between = qwen.decode(sampler.prompts[1][log.prompt + len(odd) :])
    assert between == f"\n<|im_start|>user\n<tool_response>\n[]\n</tool_response>{END}\n{REPLY}"


def test_a_teachers_prefix_is_what_the_template_writes(qwen: PretrainedCodec) -> None:
    prefix = Prefix("k", Talk(REFUSED[SKIPS][:3], TOOLS), turn("7", "seven"))
    sampler = Told([[qwen.end]])
    PrefixRoller([prefix], qwen, Play(longest=4000)).roll(["k"], [0], sampler)
    asked = {"tools": PLAIN, "add_generation_prompt": True}
    assert sampler.prompts == [rendered(qwen, REFUSED[SKIPS][:3], **asked)]


def test_a_conversation_that_cannot_be_rendered_is_the_askers_fault(qwen: PretrainedCodec) -> None:
    served = Served(Told([]), qwen, name="q", longest=4000)
    with pytest.raises(RejectedError, match="cannot be rendered"):
        served.complete({"messages": [{"role": "system", "content": None}]})
    asked = {"messages": [{"role": "user", "content": "a mug"}]}
    with pytest.raises(RejectedError, match="a tool must be"):
        served.complete({**asked, "tools": [{"type": "function"}]})


def test_what_was_trained_with_qwen3s_template_is_saved_and_served_with_it(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    plain, start = tmp_path / "plain", tmp_path / "start"
    save_checkpoint(plain, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    model = {"backend": "transformers", "path": str(plain), "template": QWEN3}
    write_start(read_recipe({"model": model, "stage": [{"kind": "sft"}]}), start)
    assert (start / "chat_template.jinja").read_text("utf-8") == qwen3_template()
    told = json.loads((start / "manifest.json").read_bytes())["inputs"]["template"]
    messages, few = list(REQUEST[:5]), PLAIN[:1]
    with open_checkpoint(start) as upstream:
        answer = upstream.complete({**body(messages), "tools": few, "max_tokens": 3})
    codec = PretrainedCodec(load_tokenizer(PretrainedModel(path=str(start)), start))
    assert (codec.template, codec.template_digest) == (qwen3_template(), told)
    asked = {"tools": few, "add_generation_prompt": True, "tokenize": False}
    text = codec.decode(answer["prompt_token_ids"])
    assert text == rendered(codec, messages, **asked)
    assert text == rendered(codec, messages, **asked, chat_template=codec.template)
