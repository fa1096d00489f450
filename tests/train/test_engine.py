"""Many callers at once get what each would get alone, and what was read is not read again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from palio.agents.registry import find_agent
from palio.broker.upstream import RejectedError, Upstream
from palio.records import Message, UpstreamError
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.train.cache import Decoder
from palio.train.engine import Engine
from palio.train.model import Qwen3
from palio.train.text import END, chat_text
from palio.train.tokenizer import ChatTokenizer
from tests.train.conftest import Shop


@pytest.fixture
def engine(small: Qwen3, tokenizer: ChatTokenizer) -> Iterator[Engine]:
    with Engine.of(small, tokenizer, slots=32, max_tokens=24) as made:
        yield made


def bodies(talks: list[Sequence[Message]], **more: Any) -> list[dict[str, Any]]:
    return [
        {"model": "m", "messages": [m.to_openai() for m in talk[:cut]], **more}
        for talk in talks[:12]
        for cut in range(1, len(talk))
        if talk[cut].role == "assistant"
    ]


def answers(engine: Engine, asked: list[dict[str, Any]], threads: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(threads) as pool:
        return [reply["choices"][0] for reply in pool.map(engine.complete, asked)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_at_a_time_and_32_at_once_agree(
    small: Qwen3, tokenizer: ChatTokenizer, talks: list[Sequence[Message]], temperature: float
) -> None:
    asked = bodies(talks, temperature=temperature, seed=5, max_tokens=16)
    with Engine.of(small, tokenizer, slots=1) as one, Engine.of(small, tokenizer, slots=32) as many:
        assert answers(one, asked, 1) == answers(many, asked, 32)


def test_greedy_is_what_the_plain_model_would_write(
    engine: Engine, small: Qwen3, tokenizer: ChatTokenizer, talks: list[Sequence[Message]]
) -> None:
    asked = {"messages": [talks[0][0].to_openai()], "max_tokens": 8}
    prompt = tokenizer.encode(chat_text(talks[0][:1], reply=True))
    written: list[int] = []
    with torch.no_grad():
        while len(written) < 8 and tokenizer.end not in written:
            written.append(int(small(torch.tensor([prompt + written]))[0, -1].argmax()))
    reply = engine.complete(asked)
    assert reply["usage"]["completion_tokens"] == len(written)
    assert reply["usage"]["prompt_tokens"] == len(prompt)
    content = reply["choices"][0]["message"]["content"]
    assert content == tokenizer.decode(written).removesuffix(END)


def test_the_cache_steps_as_the_whole_model_does(small: Qwen3) -> None:
    torch.manual_seed(1)
    ids = torch.randint(2, small.config.vocab_size, (3, 40))
    lengths = [25, 40, 31]
    decoder = Decoder(small, 5)
    rows = [4, 0, 2]
    decoder.advance(rows, [ids[at, :10].tolist() for at in range(3)], [0, 0, 0])
    rest = [ids[at, 10 : lengths[at] - 1].tolist() for at in range(3)]
    decoder.advance(rows, rest, [10, 10, 10])
    last = [[int(ids[at, lengths[at] - 1])] for at in range(3)]
    logits = decoder.advance(rows, last, [length - 1 for length in lengths])
    for at in range(3):
        with torch.no_grad():
            whole = small(ids[at : at + 1, : lengths[at]])[0, -1]
        torch.testing.assert_close(logits[at], whole, atol=1e-4, rtol=1e-4)


def test_a_returning_conversation_is_read_from_where_it_was(
    engine: Engine, talks: list[Sequence[Message]]
) -> None:
    read: list[int] = []
    advance = engine._decoder.advance

    def counted(rows: Any, ids: Any, at: Any) -> Any:
        read.extend(len(each) for each in ids if len(each) > 1)
        return advance(rows, ids, at)

    engine._decoder.advance = counted  # type: ignore[method-assign]
    messages = [talks[0][0].to_openai()]
    reply = engine.complete({"messages": messages})["choices"][0]["message"]
    engine.complete({"messages": [*messages, reply, {"role": "user", "content": "go on"}]})
    assert len(read) == 2
    assert read[1] < 12


def test_sampled_tokens_are_read_back_as_sampled(engine: Engine, tokenizer: ChatTokenizer) -> None:
    transcript = engine._transcript
    asked = [Message(role="user", content="hi")]
    prompt = transcript.prompt(asked)
    odd = [tokenizer.id_of(letter) for letter in "yes"] + [tokenizer.end]
    text = transcript.remember(prompt, odd)
    assert tokenizer.encode(text) != odd[:-1]
    again = transcript.prompt([*asked, Message(role="assistant", content=text), asked[0]])
    assert again[len(prompt) : len(prompt) + len(odd)] == odd


def test_equal_seeds_equal_samples(engine: Engine, talks: list[Sequence[Message]]) -> None:
    (body, *_) = bodies(talks, temperature=1.0, top_p=0.9)
    drawn = [
        engine.complete({**body, "seed": seed})["choices"][0]["message"] for seed in (1, 1, 2, 3)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2] or drawn[0] != drawn[3]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": [3]},
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x"}], "temperature": -1},
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 0},
        {"messages": [{"role": "user", "content": "x"}], "n": 2},
        {"messages": [{"role": "user", "content": "x " * 9000}]},
    ],
)
def test_a_bad_request_is_refused_and_the_engine_lives(
    engine: Engine, body: dict[str, Any]
) -> None:
    with pytest.raises(RejectedError):
        engine.complete(body)
    reply = engine.complete({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3})
    assert reply["choices"][0]["finish_reason"] in ("length", "stop", "tool_calls")


def test_a_broken_engine_tells_every_caller(small: Qwen3, tokenizer: ChatTokenizer) -> None:
    engine = Engine.of(small, tokenizer, slots=4)

    def broken(*_: Any) -> Any:
        raise RuntimeError("no memory")

    engine._decoder.advance = broken  # type: ignore[method-assign]
    asked = {"messages": [{"role": "user", "content": "x"}]}
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            engine.complete(asked)
        except UpstreamError as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    engine.close()
    assert len(failures) == 8


def test_an_untrained_model_runs_through_the_broker(engine: Engine, shop: Shop) -> None:
    assert isinstance(engine, Upstream)
    record = run_problem(
        find_agent("careful"), shop.problems[0], shop.world, driver=InlineDriver(), upstream=engine
    )
    assert record.inferences
    assert record.fault is None


def test_a_conversation_near_the_context_s_end_is_read_beside_a_longer_prompt(small: Qwen3) -> None:
    """What fills it up lies behind the end; nobody reads that, and nobody trips over it."""
    places = small.config.max_positions
    torch.manual_seed(0)
    long, other = torch.randint(5, 100, (places - 10,)).tolist(), [7, 8, 9] * 20
    alone, beside = Decoder(small, 2), Decoder(small, 2)
    for decoder in (alone, beside):
        decoder.advance([0], [long], [0])
    rest = [11, 12, 13, 14]
    wanted = alone.advance([0], [rest], [len(long)])[0], alone.advance([1], [other], [0])[0]
    got = beside.advance([0, 1], [rest, other], [len(long), 0])
    for one, two in zip(got, wanted, strict=True):
        assert torch.allclose(one, two, atol=1e-4)
    ahead = [decoder.advance([0], [[15]], [len(long) + 4])[0] for decoder in (alone, beside)]
    assert torch.allclose(*ahead, atol=1e-4), "and the row goes on as if it had been alone"
