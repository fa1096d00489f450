"""A stream over a real socket: token by token, equal to the whole, and none goes on for nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.agents.server import ModelServer
from palio.train.checkpoint import save_checkpoint
from palio.train.engine import Engine
from palio.train.growing import certain, decided
from palio.train.model import Qwen3
from palio.train.serving import open_checkpoint
from palio.train.tokenizer import ChatTokenizer
from tests.train.streams import Script, joined, told
from tests.train.test_growing import BROKEN, CALL
from tests.waiting import wait_for

ASKED: dict[str, Any] = {
    "model": "palio",
    "messages": [{"role": "user", "content": "a mug"}],
    "max_tokens": 60,
}
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
TEXT = "need blue wool. 6093 caf\u00e9 beige \U0001f642 no"


@contextmanager
def client_of(server: ModelServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def engine(small: Qwen3, tokenizer: ChatTokenizer) -> Iterator[Engine]:
    with Engine.of(small, tokenizer, slots=1) as made:
        yield made


@pytest.fixture
def server(engine: Engine) -> Iterator[ModelServer]:
    with ModelServer(engine) as running:
        yield running


@pytest.fixture(scope="module")
def client(small: Qwen3, tokenizer: ChatTokenizer) -> Iterator[openai.OpenAI]:
    """Of a model that writes anything: at temperature 1 bytes that are no text, too."""
    with (
        Engine.of(small, tokenizer, slots=8) as engine,
        ModelServer(engine) as server,
        client_of(server) as made,
    ):
        yield made


def both(client: openai.OpenAI, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a stream and the whole answer to the same request tell, but for their numbers."""
    asked = {"extra_body": {"return_token_ids": True}, **ASKED, **asked}
    stream = client.chat.completions.create(**asked, **STREAMED)
    streamed = joined(chunk.to_dict() for chunk in stream)
    whole = told(client.chat.completions.create(**asked).to_dict())
    assert streamed.pop("id") != whole.pop("id")
    return streamed, whole


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    temperature=st.sampled_from([0.0, 1.0, 3.0]),
    stop=st.lists(st.sampled_from(["e", " ", "\n", "\ufffd", "wool", "<tool_call>"]), max_size=2),
    logprobs=st.booleans(),
    max_tokens=st.integers(1, 80),
)
def test_the_openai_client_reads_from_a_stream_what_it_would_get_whole(
    client: openai.OpenAI, **asked: Any
) -> None:
    streamed, whole = both(client, **asked)
    assert streamed == whole


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (TEXT, {}),
        (TEXT, {"stop": ["beige no", "be", "\U0001f642"], "logprobs": True}),
        (f"<think>\nmug\n</think>\n\nfound\n{CALL}\n{CALL}", {}),
        (f"<think>\nmug\n</think>\n\nfound\n{CALL}\n{CALL}", {"parallel_tool_calls": False}),
        (f"{BROKEN}\n{CALL} and {BROKEN}", {"logprobs": True}),
        (f"{CALL}\n{CALL}", {"stop": "</tool_call>\n<"}),
        (f"{CALL}\n{CALL}", {"max_tokens": 20}),
        ("<think>\nlong and", {"max_tokens": 4}),
        ("", {}),
        ("x<|im_end", {}),
    ],
)
def test_calls_thinking_and_stop_strings_are_told_as_in_the_whole(
    engine: Engine, server: ModelServer, tokenizer: ChatTokenizer, text: str, more: dict[str, Any]
) -> None:
    Script(engine, tokenizer.encode(text))
    with client_of(server) as client:
        streamed, whole = both(client, **{"max_tokens": 400, **more})
    assert streamed == whole
    assert whole["usage"]["completion_tokens"] == len(whole["choices"][0]["token_ids"])


def test_each_token_is_told_before_the_next_is_sampled(
    engine: Engine, server: ModelServer, tokenizer: ChatTokenizer
) -> None:
    ids = tokenizer.encode(TEXT)
    script, content = Script(engine, ids, steps=1), ""
    with client_of(server) as client:
        stream = iter(client.chat.completions.create(**ASKED, stream=True))
        for count in range(1, len(ids) + 1):
            sure = certain(tokenizer.decode(ids[:count]), ()).text
            while content != sure[: decided(sure)]:
                content += next(stream).choices[0].delta.content or ""
            assert script.done <= count, "no token that was not waited for"
            script.go()
        assert content == TEXT
        assert [chunk.choices[0].finish_reason for chunk in stream] == ["stop"]


def test_a_call_is_told_by_name_and_then_its_arguments_when_it_is_whole(
    engine: Engine, server: ModelServer, tokenizer: ChatTokenizer
) -> None:
    Script(engine, tokenizer.encode(f"found\n{CALL}"))
    status, events = raw(server, ASKED | STREAMED)
    assert status == 200
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert [chunk["choices"] for chunk in chunks[-1:]] == [[]]
    assert chunks.pop()["usage"]["completion_tokens"] == len(tokenizer.encode(f"found\n{CALL}")) + 1
    called = [part["delta"] for chunk in chunks for part in chunk["choices"]][-3:]
    first = {"name": "find_product", "arguments": ""}
    assert called == [
        {"tool_calls": [{"index": 0, "id": "call_1_0", "type": "function", "function": first}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"q":"mug"}'}}]},
        {},
    ]
    assert [part["finish_reason"] for chunk in chunks for part in chunk["choices"]][-2:] == [
        None,
        "tool_calls",
    ]


def test_a_stop_string_ends_the_work_too(
    engine: Engine, server: ModelServer, tokenizer: ChatTokenizer
) -> None:
    ids = tokenizer.encode("blue wool " * 40)
    steps = len(tokenizer.encode("blue wool blue"))
    script = Script(engine, ids, steps=steps)
    with client_of(server) as client:
        stream = client.chat.completions.create(**ASKED, stream=True, stop="wool")
        assert joined(chunk.to_dict() for chunk in stream)["choices"][0]["finish_reason"] == "stop"
    script.go()  # that it may be in by now
    wait_for(lambda: engine._slots.all[0].job is None)
    assert script.done <= steps + 1


@contextmanager
def answer_to(server: ModelServer, body: dict[str, Any]) -> Iterator[HTTPResponse]:
    connection = HTTPConnection(server.host, server.port, timeout=30)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        yield connection.getresponse()
    finally:
        connection.close()


def raw(server: ModelServer, body: dict[str, Any]) -> tuple[int, list[str]]:
    """Status and events; of an answer that is none, its text."""
    with answer_to(server, body) as reply:
        lines = [line for line in reply.read().decode().splitlines() if line]
    return reply.status, [line.removeprefix("data: ") for line in lines]


def test_who_hangs_up_frees_the_slot_at_the_next_token(
    engine: Engine, server: ModelServer, tokenizer: ChatTokenizer
) -> None:
    script = Script(engine, tokenizer.encode("blue wool " * 99), steps=3)
    [slot] = engine._slots.all
    with answer_to(server, {**ASKED, "stream": True}) as reply:
        while b"wool" not in reply.readline():
            pass
        wait_for(lambda: script.begun == 4)
        job = slot.job
        assert job is not None
    assert job.gone.wait(20)
    assert slot.job is job
    script.go()
    wait_for(lambda: slot.job is None)
    assert script.done == 4
    script.go(9)
    script._ids = [engine._tokenizer.end]
    assert raw(server, ASKED | STREAMED)[1][-1] == "[DONE]", "and the next one is answered"


@pytest.mark.parametrize(
    ("wrong", "status", "told"),
    [
        ({"n": 2}, 400, "n = 2"),
        ({"top_logprobs": 3}, 400, "top_logprobs"),
        ({"model": "gpt"}, 404, "model_not_found"),
        (
            {"messages": [{"role": "user", "content": "x " * 9000}]},
            400,
            "context_length_exceeded",
        ),
    ],
)
def test_what_is_refused_before_the_first_token_is_no_stream(
    server: ModelServer, wrong: dict[str, Any], status: int, told: str
) -> None:
    found, [text] = raw(server, {**ASKED, **wrong, "stream": True})
    assert found == status
    assert json.loads(text)["error"]["type"] == "invalid_request_error"
    assert told in text


@pytest.mark.parametrize("told", [0, 3])
def test_a_failure_is_a_refusal_before_the_first_token_and_an_event_after_it(
    engine: Engine, server: ModelServer, tokenizer: ChatTokenizer, told: int
) -> None:
    script = Script(engine, tokenizer.encode(TEXT), steps=max(1, told), breaks=told + 1)
    with answer_to(server, {**ASKED, "stream": True}) as reply:
        if told:
            assert b'"role":"assistant"' in reply.readline()
            script.go()
        [*_, last] = [line for line in reply.read().splitlines() if line]
    assert reply.status == (200 if told else 500)
    assert last.startswith(b"data: ") == bool(told), "an event, and no end mark after it"
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["type"] == "server_error"
    assert "no memory" in error["message"]


def test_the_openai_client_hears_of_a_failure_in_the_middle(
    engine: Engine, server: ModelServer, tokenizer: ChatTokenizer
) -> None:
    script = Script(engine, tokenizer.encode(TEXT), steps=2, breaks=3)
    with client_of(server) as client:
        stream = client.chat.completions.create(**ASKED, stream=True)
        assert next(stream).choices[0].delta.role == "assistant"
        script.go()
        with pytest.raises(openai.APIError, match="no memory"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="closed"):
            client.chat.completions.create(**ASKED, stream=True)


def test_streams_and_whole_answers_side_by_side_are_what_each_is_alone(
    client: openai.OpenAI,
) -> None:
    asked = [{"seed": seed, "temperature": 1.0, "max_tokens": 24} for seed in range(12)]
    alone = [both(client, **each)[1] for each in asked]
    with ThreadPoolExecutor(12) as pool:
        pairs = list(pool.map(lambda each: both(client, **each), asked))
    assert [streamed for streamed, _ in pairs] == alone
    assert [whole for _, whole in pairs] == alone


def in_pieces(client: openai.OpenAI) -> bool:
    """Whether content comes as it is written, and not at once."""
    chunks = client.chat.completions.create(**ASKED, temperature=1, seed=1, stream=True)
    return sum(bool(chunk.choices[0].delta.content) for chunk in chunks) > 2


def test_a_checkpoint_is_streamed_through_what_tells_its_digests(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    folder = tmp_path / ASKED["model"]
    save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    with (
        open_checkpoint(folder, slots=2) as served,
        ModelServer(served) as server,
        client_of(server) as client,
    ):
        assert in_pieces(client)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["slots", "batches"])
def test_a_pretrained_model_is_streamed_as_well(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("trl", reason="pretrained models are trained by TRL")
    from palio.train.backends.codec import PretrainedCodec
    from palio.train.backends.served import Served
    from palio.train.backends.slots import SlotSampler
    from palio.train.backends.weights import load_model, load_tokenizer
    from palio.train.recipe import PretrainedModel
    from palio.train.rl.sampler import TransformersSampler

    save_checkpoint(tmp_path / "x", small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    source = PretrainedModel(path=str(tmp_path / "x"))
    codec = PretrainedCodec(load_tokenizer(source, tmp_path / "x"))
    sampler = {"slots": SlotSampler, "batches": TransformersSampler}[kind]
    model = load_model(source, tmp_path / "x", 0).eval()
    with sampler(model, end=codec.end) as sampling:
        served = Served(sampling, codec, name="palio", longest=400)
        with ModelServer(served) as server, client_of(server) as client:
            for seed in range(4):
                more = {"temperature": 1.0, "seed": seed, "stop": "e", "logprobs": True}
                told, whole = both(client, **more)
                parts = [each["choices"][0].pop("logprobs")["content"] for each in (told, whole)]
                assert told == whole
                scores = [[entry.pop("logprob") for entry in part] for part in parts]
                assert parts[0] == parts[1]
                assert scores[0] == pytest.approx(scores[1]), "what was read is read in other parts"
            assert in_pieces(client)
