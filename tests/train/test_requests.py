"""What a request asks for is honoured or refused, never dropped; nobody's hang-up costs a slot."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest
from torch import nn

from palio.broker.hangup import asked_by, asked_within
from palio.broker.upstream import RejectedError
from palio.records import Message, UpstreamError
from palio.train.backends.codec import signature_list
from palio.train.engine import Engine
from palio.train.model import Qwen3
from palio.train.requests import Wish, Written, completion, read_request, read_tools
from palio.train.rl.sampler import Asked, Decoding, EngineSampler, TransformersSampler
from palio.train.rl.tokens import TokenLog
from palio.train.text import assistant_text
from palio.train.tokenizer import ChatTokenizer

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "a mug"}], "max_tokens": 12}


@pytest.fixture(scope="module")
def engine(small: Qwen3, tokenizer: ChatTokenizer) -> Iterator[Engine]:
    with Engine.of(small, tokenizer, slots=4) as made:
        yield made


def choice(engine: Engine, **more: Any) -> dict[str, Any]:
    answer = engine.complete({**ASKED, **more})
    found: dict[str, Any] = {**answer["choices"][0], "usage": answer["usage"]}
    return found


def said(engine: Engine, **more: Any) -> Any:
    return choice(engine, **more)["message"]["content"]


# ---- how it is sampled


def test_samples_without_a_seed_are_no_copies(engine: Engine) -> None:
    assert len({said(engine, temperature=1.0) for _ in range(4)}) > 1
    assert len({said(engine, temperature=1.0, seed=None) for _ in range(4)}) > 1
    assert len({said(engine, temperature=1.0, seed=0) for _ in range(3)}) == 1


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 9e-7])
def test_a_temperature_next_to_0_is_0(engine: Engine, temperature: float) -> None:
    """Divided by it, logits are infinite: what is drawn is garbage, and its log-probability NaN."""
    cold = choice(engine, temperature=temperature, logprobs=True)
    assert cold == choice(engine, temperature=0, logprobs=True)
    assert all(math.isfinite(each["logprob"]) for each in cold["logprobs"]["content"])
    least = choice(engine, temperature=1e-6, logprobs=True)
    assert all(math.isfinite(each["logprob"]) for each in least["logprobs"]["content"])


def test_null_says_nothing(engine: Engine) -> None:
    silent = dict.fromkeys(("temperature", "top_p", "stop", "logprobs", "n", "tools", "user"))
    assert said(engine, **silent) == said(engine) == said(engine, temperature=0)
    assert choice(engine)["logprobs"] is None


# ---- where it ends


def test_an_answer_ends_before_a_stop_string(engine: Engine, tokenizer: ChatTokenizer) -> None:
    whole = choice(engine, return_token_ids=True)
    text = whole["message"]["content"]
    stop = next(
        text[at : at + 2] for at in range(3, len(text)) if "\ufffd" not in text[at : at + 2]
    )
    for asked in (stop, ["nowhere to be found", stop, stop[0] + "nowhere"]):
        found = choice(engine, stop=asked, return_token_ids=True)
        assert found["finish_reason"] == "stop"
        assert found["message"]["content"] == text[: text.index(stop)]
        ids = found["token_ids"]
        assert ids == whole["token_ids"][: len(ids)]
        assert stop in tokenizer.decode(ids)
        assert stop not in tokenizer.decode(ids[:-1])
        assert found["usage"]["completion_tokens"] == len(ids)
    assert said(engine, stop=["nowhere to be found"]) == text


def made(tokenizer: ChatTokenizer, text: str, **more: Any) -> dict[str, Any]:
    """The answer of a model that wrote a text and ended its turn."""
    body = {**ASKED, **more}
    ids = [*tokenizer.encode(text), tokenizer.end]
    written = Written([1], ids, [-0.5] * len(ids))
    answer = completion(
        *(body, read_request(body, 99), written, tokenizer.decode),
        end=tokenizer.end,
        name="m",
        number=1,
    )
    found: dict[str, Any] = answer["choices"][0]
    return found


def test_the_longest_of_the_stops_at_a_place_counts(tokenizer: ChatTokenizer) -> None:
    found = made(tokenizer, "blue wool, red wool", stop=["wool", "wool,", "red"])
    assert found["message"]["content"] == "blue "
    assert made(tokenizer, "blue wool", stop="blue")["message"]["content"] == ""
    last = made(tokenizer, "blue wool", stop="wool", return_token_ids=True)
    assert last["finish_reason"] == "stop"
    assert tokenizer.decode(last["token_ids"]) == "blue wool", "the end mark came after it"


CALLS = (
    '<think>\nx\n</think>\n\n<tool_call>\n{"name": "find_product", "arguments": {"q":"mug"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "terminate", "arguments": {}}\n</tool_call>'
)


def test_one_call_a_turn_where_no_more_are_wanted(tokenizer: ChatTokenizer) -> None:
    for several, names in ((True, ["find_product", "terminate"]), (False, ["find_product"])):
        found = made(tokenizer, CALLS, parallel_tool_calls=several)
        assert [call["function"]["name"] for call in found["message"]["tool_calls"]] == names
        assert found["finish_reason"] == "tool_calls"


# ---- with what probability


def test_log_probabilities_are_those_that_the_engine_sampled_with(engine: Engine) -> None:
    told = choice(engine, temperature=1.3, seed=4, logprobs=True, return_token_ids=True)
    prompt = engine.complete({**ASKED, "return_token_ids": True})["prompt_token_ids"]
    sampled = EngineSampler(engine).sample(prompt, Decoding(12, 1.3, 1.0, 4))
    assert told["token_ids"] == sampled.ids
    entries = told["logprobs"]["content"]
    assert [each["logprob"] for each in entries] == sampled.logprobs
    assert all(each["top_logprobs"] == [] for each in entries)


def test_the_tokens_that_are_told_join_to_the_text(tokenizer: ChatTokenizer) -> None:
    text = "need blue wool. 6093 blue beige no. caf\u00e9"
    entries = made(tokenizer, text, logprobs=True)["logprobs"]["content"]
    joined = b"".join(bytes(each["bytes"]) for each in entries).decode()
    assert joined.startswith("need blue wool. 6093 blue beige no. caf")
    assert joined.endswith("<|im_end|>")
    plain = made(tokenizer, "need blue wool", logprobs=True)["logprobs"]["content"]
    assert "".join(each["token"] for each in plain) == "need blue wool<|im_end|>"


def test_an_answer_that_a_stop_string_ended_tells_its_tokens_and_no_more(
    tokenizer: ChatTokenizer,
) -> None:
    more = {"stop": "red", "logprobs": True, "return_token_ids": True}
    found = made(tokenizer, "blue wool, red wool", **more)
    entries = found["logprobs"]["content"]
    assert "".join(each["token"] for each in entries) == "blue wool, red"
    assert len(entries) == len(found["token_ids"])


# ---- what cannot be honoured


@pytest.mark.parametrize(
    ("name", "wrong", "neutral"),
    [
        ("n", 2, 1),
        ("tool_choice", "required", "auto"),
        ("tool_choice", {"type": "function", "function": {"name": "x"}}, "auto"),
        ("tool_choice", "none", None),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
        ("structured_outputs", {"json": {}}, None),
        ("top_logprobs", 5, 0),
        ("top_k", 20, -1),
        ("min_p", 0.1, 0.0),
        ("repetition_penalty", 1.1, 1.0),
        ("frequency_penalty", 0.5, 0.0),
        ("presence_penalty", -1, 0),
        ("logit_bias", {"5": 100}, {}),
        ("chat_template_kwargs", {"enable_thinking": False}, {}),
        ("continue_final_message", True, False),
        ("stop", [""], []),
        ("stop", [3], ["x"]),
        ("stop", ["x"] * 17, ["x"] * 16),
        ("logprobs", 3, False),
        ("parallel_tool_calls", "no", True),
        ("max_tokens", 2.5, 2.0),
        ("seed", 0.5, 3),
        ("seed", True, 3),
        ("temperature", "hot", 1),
    ],
)
def test_what_would_be_dropped_is_refused_by_name(name: str, wrong: Any, neutral: Any) -> None:
    with pytest.raises(RejectedError, match=name):
        read_request({**ASKED, name: wrong}, 9)
    assert isinstance(read_request({**ASKED, name: neutral}, 9), Wish)


def test_what_nobody_knows_is_ignored() -> None:
    more = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    assert read_request({**ASKED, **more, "seed": 1}, 9) == read_request({**ASKED, "seed": 1}, 9)


def test_pictures_are_refused_and_developers_are_the_system() -> None:
    words = [{"type": "text", "text": "a "}, {"type": "text", "text": "mug"}]
    asked = {"messages": [{"role": "developer", "content": words}]}
    assert read_request(asked, 9).messages == (Message(role="system", content="a mug"),)
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    for part, told in ((picture, "image_url"), ("a mug", "str")):
        with pytest.raises(RejectedError, match=told):
            read_request({"messages": [{"role": "user", "content": [part]}]}, 9)


def test_tools_that_cannot_be_shown_are_the_asker_s_fault() -> None:
    good = {"type": "function", "function": {"name": "x", "parameters": {"properties": {}}}}
    bare: dict[str, Any] = {"type": "function", "function": {"name": "x", "parameters": None}}
    assert read_tools({"tools": [good, bare]}) == [good, bare]
    assert read_tools({"tools": None}) == read_tools({}) == []
    for wrong in (
        "tools",
        {"a": good},
        ["x"],
        [{"type": "function", "name": "x"}],
        [{"type": "function", "function": {"parameters": {}}}],
        [{"type": "function", "function": {"name": "x", "parameters": "q"}}],
        [{"type": "function", "function": {"name": "x", "parameters": {"properties": ["q"]}}}],
    ):
        with pytest.raises(RejectedError, match="tool|parameters"):
            read_tools({"tools": wrong})


def test_signatures_take_every_json_schema() -> None:
    schemas = {"q": {"type": "string"}, "sort": {"enum": ["a", "b"]}, "any": True}
    function = {"name": "find", "parameters": {"properties": schemas, "required": ["q"]}}
    assert "\nfind(q, sort?=a|b, any?): " in signature_list([{"function": function}])


def test_a_rollout_that_is_trained_on_is_whole(engine: Engine) -> None:
    log = TokenLog(EngineSampler(engine), None, max_tokens=9, longest=99)  # type: ignore[arg-type]
    for more in ({"stop": "x"}, {"logprobs": True}, {"parallel_tool_calls": False}):
        with pytest.raises(RejectedError, match="as the model wrote it"):
            log.complete({**ASKED, **more})


def test_a_turn_is_read_back_as_it_was_written(tokenizer: ChatTokenizer) -> None:
    found = made(tokenizer, CALLS)["message"]
    asked = {"messages": [found]}
    assert assistant_text(read_request(asked, 9).messages[0]) == CALLS


# ---- who hangs up, or has no time left


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (lambda gone: asked_by(gone), "who asked has hung up"),
        (
            lambda gone: asked_within(lambda: 0.0 if gone.is_set() else 60.0),
            "the engine had not answered when the run's time was over",
        ),
    ],
    ids=["hung up", "time over"],
)
def test_a_slot_is_free_when_nobody_waits_for_its_answer(
    small: Qwen3, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch, asked: Any, what: str
) -> None:
    monkeypatch.setattr(tokenizer, "end", -1)  # a model that never ends
    long, gone, failed = {**ASKED, "max_tokens": 3_900}, threading.Event(), []

    def ask() -> None:
        with asked(gone):
            try:
                engine.complete(long)
            except UpstreamError as error:
                failed.append(error)

    with Engine.of(small, tokenizer, slots=1) as engine:
        threads = [threading.Thread(target=ask) for _ in range(2)]  # one is answered, one waits
        for thread in threads:
            thread.start()
        while engine._slots.tick < 3:
            time.sleep(0.01)
        gone.set()
        for thread in threads:
            thread.join(60)
        assert [error.what for error in failed] == [what] * 2
        assert said(engine, max_tokens=3)
        assert engine._slots.tick < 3_800, "nobody waited for the end of what nobody reads"
        assert engine.alive
    assert not engine.alive


class Abandoned(TransformersSampler):
    """Whoever asked for 99 tokens hangs up while the batch is on its way."""

    def _complete(self, rows: Sequence[Asked]) -> None:
        for row in rows:
            row.written.ids.append(7)
            if row.decoding.max_tokens == 99:
                assert not self._is_done(row)
                assert row.done.cancel()
                assert self._is_done(row), "the batch does not go on for it"


def test_a_batch_outlives_who_hung_up() -> None:
    with Abandoned(nn.Identity(), end=0) as sampler, ThreadPoolExecutor(2) as pool:
        asked = [Decoding(count, 0.0, 1.0, 0) for count in (99, 5)]
        left, kept = (pool.submit(sampler.sample, [1], decoding) for decoding in asked)
        assert isinstance(left.exception(20), CancelledError)
        assert kept.result(20).ids == [7]
        assert sampler.sample([1], asked[1]).ids == [7]
        assert sampler.alive
