"""The scripted models behind the one door that real models use; each is a pure function.

A completion depends on the messages, the offered tools, the model's name and the seed, on nothing
else: equal requests get equal answers from any process. These are programs and are never called
language models.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from palio.agents.reading import Wanted, read_request
from palio.agents.scripted.conversation import Conversation
from palio.agents.scripted.desk import Call, Desk, NextTurn, arguments_json
from palio.agents.scripted.narrator import classify, narrate
from palio.agents.scripted.shopper import STYLES, Shopper
from palio.broker.relay import run_seed_of
from palio.broker.upstream import RejectedError
from palio.records import ConfigError, InputError

Reply = tuple[str, str, tuple[Call, ...]]
"""Thinking, content, calls."""

TEXT_MODELS: dict[str, Callable[[str], tuple[str, str]]] = {
    "scripted-narrator": narrate,
    "scripted-classifier": classify,
}
MODELS = (*STYLES, *TEXT_MODELS)
"""Names of all scripted models."""


def check_models(models: Iterable[str]) -> None:
    """See before anything is run that scripted models can answer.

    Raises:
        ConfigError: there is none of a name; every run would end unasked.
    """
    for model in models:
        if model not in MODELS:
            raise ConfigError(
                f"scripted models answer where no server is named, and none is called {model!r}",
                remedy=f"name a server too, or one of {', '.join(MODELS)}; "
                "a checkpoint races by the file that `palio agent from-checkpoint` writes",
            )


class ScriptedUpstream:
    """All scripted models, in process; implements the broker's Upstream protocol.

    Args:
        seed: what random choices start from; the run's seed, as a request's "seed" tells
            it, is added to it: a shopper keeps to what it decided in earlier turns.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @property
    def models(self) -> tuple[str, ...]:
        """The models that can be asked."""
        return MODELS

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One OpenAI chat completion; thread-safe.

        Raises:
            RejectedError: unknown model, or messages that are no conversation.
        """
        model = str(body.get("model", ""))
        if model not in MODELS:
            _refuse(f"the model {model!r} does not exist", f"known: {', '.join(MODELS)}")
        messages = body.get("messages")
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            _refuse("messages must be a non-empty list")
        try:
            conversation = Conversation(messages)
        except InputError as error:
            _refuse(error.what)
        seed = self.seed + run_seed_of(_whole(body.get("seed")))
        thinking, content, calls = _reply(model, conversation, offered_tools(body), seed)
        return _completion(body, messages, conversation.calls, thinking, content, calls)


def offered_tools(body: Mapping[str, Any]) -> frozenset[str]:
    """Names of the tools that a request offers; empty when it offers none."""
    tools = body.get("tools") or ()
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, Mapping)]
    return frozenset(str(function.get("name", "")) for function in functions)


def _reply(model: str, conversation: Conversation, offered: frozenset[str], seed: int) -> Reply:
    if model in TEXT_MODELS:
        return (*TEXT_MODELS[model](conversation.request), ())
    if conversation.finished:
        return "", "done.", ()
    if offered and "find_product" not in offered:
        return "", "I can only shop with find_product, which is not offered.", ()
    desk = Desk(conversation, offered)
    rng = random.Random(f"{seed} {model} {conversation.request}")
    try:
        wanted = _read(conversation.request)
        answer = Shopper(desk, wanted, STYLES[model], rng).solve()
        turn = desk.finish(answer)
    except NextTurn as asked:
        turn = asked
    return turn.thinking, "", turn.calls


@lru_cache(maxsize=4096)
def _read(request: str) -> Wanted:
    return read_request(request)


def _completion(
    body: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    before: int,
    thinking: str,
    content: str,
    calls: Sequence[Call],
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{before + place}",
                "type": "function",
                "function": {"name": name, "arguments": arguments_json(arguments)},
            }
            for place, (name, arguments) in enumerate(calls, start=1)
        ]
    written = tokens(thinking) + tokens(content)
    written += sum(tokens(name + arguments_json(arguments)) for name, arguments in calls)
    read = sum(_message_tokens(message) for message in messages)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return {
        "id": f"chatcmpl-{_reply_id(messages, message)}",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if calls else "stop",
                "logprobs": None,
            }
        ],
        "usage": usage,
    }


def tokens(text: str) -> int:
    """Reported tokens of a text: UTF-8 bytes / 4, rounded up, as where no tokenizer is at hand."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


def _message_tokens(message: Mapping[str, Any]) -> int:
    total = tokens(str(message.get("content") or ""))
    total += tokens(str(message.get("reasoning_content") or ""))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        total += tokens(f"{function.get('name', '')}{function.get('arguments', '')}")
    return total


def _reply_id(messages: Sequence[Mapping[str, Any]], message: Mapping[str, Any]) -> str:
    heads = [str(messages[0].get("content")), str(len(messages)), str(message)]
    return hashlib.sha256("\0".join(heads).encode("utf-8", "replace")).hexdigest()[:24]


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _refuse(what: str, remedy: str = "") -> NoReturn:
    raise RejectedError(what, remedy=remedy)
