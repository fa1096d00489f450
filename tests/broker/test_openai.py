"""The real openai client works against a run unmodified: sync, async, streams, tools, schemas."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from palio.broker.limits import Limits
from palio.broker.server import BrokerServer
from palio.broker.session import Session
from palio.broker.upstream import HttpUpstream
from tests.broker.conftest import Replies, completion
from tests.broker.modelserver import ModelServer

Open = Callable[..., Session]
ASK: Any = [{"role": "user", "content": "a red mug"}]
FIND = '{"q":"red mug"}'
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "find_product",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}


class Pick(BaseModel):
    """A structured answer."""

    product_id: str
    price: float


@pytest.fixture
def serve(server: BrokerServer, open_session: Open) -> Iterator[Callable[..., tuple[Session, str]]]:
    handles = []

    def make(upstream: Any, **more: Any) -> tuple[Session, str]:
        session = open_session(upstream, **more)
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        handles.append(server.serve(session, sock))
        return session, f"http://127.0.0.1:{port}/v1"

    yield make
    for handle in handles:
        handle.close()


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="whatever", max_retries=0)


def test_a_whole_tool_loop(serve: Any) -> None:
    first = completion("", ("c1", "find_product", FIND))
    session, url = serve(Replies(first, completion("it is 1")))
    with client(url) as api:
        said = api.chat.completions.create(model="default", messages=ASK, tools=[TOOL])
        (call,) = said.choices[0].message.tool_calls or ()
        result = session.dispatch(call.function.name, call.function.arguments, call.id)  # type: ignore[union-attr]
        answer = {"role": "tool", "tool_call_id": call.id, "content": result.result}
        messages = [*ASK, said.choices[0].message, answer]
        last = api.chat.completions.create(model="default", messages=messages, tools=[TOOL])
    assert last.choices[0].message.content == "it is 1"
    run = session.close()
    assert run.dispatches[0].nonce == "valid"
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert run.differences == ()


def test_a_stream_is_put_together_again(serve: Any) -> None:
    long = json.dumps({"q": "red mug " * 900})
    reply = completion("x" * 5000, ("c1", "find_product", FIND), ("c2", "find_product", long))
    session, url = serve(Replies(reply))
    with (
        client(url) as api,
        api.chat.completions.stream(
            model="default", messages=ASK, stream_options={"include_usage": True}
        ) as stream,
    ):
        chunks = [event for event in stream if event.type == "chunk"]
        made = stream.get_final_completion()
    message = made.choices[0].message
    assert len(chunks) > 8
    assert message.content == "x" * 5000
    assert [call.function.arguments for call in message.tool_calls or ()] == [FIND, long]
    assert made.usage is not None
    assert made.usage.completion_tokens == 5
    first = (message.tool_calls or ())[0]
    session.dispatch("find_product", FIND, first.id)
    assert session.close().dispatches[0].nonce == "valid"


def test_structured_output_passes_through(serve: Any) -> None:
    upstream = Replies(completion('{"product_id": "1", "price": 10.0}'))
    _, url = serve(upstream)
    with client(url) as api:
        made = api.chat.completions.parse(model="default", messages=ASK, response_format=Pick)
    assert made.choices[0].message.parsed == Pick(product_id="1", price=10.0)
    assert upstream.bodies[0]["response_format"]["json_schema"]["name"] == "Pick"


def test_the_async_client_over_a_real_model_server(serve: Any) -> None:
    async def go(url: str) -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as api:
            asked = [api.chat.completions.create(model="m", messages=ASK) for _ in range(5)]
            whole = [made.choices[0].message.content for made in await asyncio.gather(*asked)]
            stream = await api.chat.completions.create(model="m", messages=ASK, stream=True)
            parts = [part.choices[0].delta.content or "" async for part in stream]
            return [*whole, "".join(parts)]

    with ModelServer("good").running() as models, HttpUpstream(models.url, "secret") as upstream:
        session, url = serve(upstream)
        assert asyncio.run(go(url)) == ["hello"] * 6
    # The agent's own key is nothing; the host's goes to the model server and nowhere else.
    assert {headers["Authorization"] for headers in models.headers} == {"Bearer secret"}
    assert len(session.close().inferences) == 6


def test_errors_are_the_client_s_own_types(serve: Any) -> None:
    from palio.broker.relay import RelayPolicy

    policy = RelayPolicy(models=("other",))
    _, url = serve(Replies(completion("x")), relay=policy, limits=Limits(inferences=1))
    with client(url) as api:
        with pytest.raises(openai.NotFoundError) as refused:
            api.chat.completions.create(model="gpt-very-dear", messages=ASK)
        assert refused.value.code == "model_not_found"
        api.chat.completions.create(model="default", messages=ASK)
        with pytest.raises(openai.PermissionDeniedError, match="budget exhausted"):
            api.chat.completions.create(model="default", messages=ASK)
