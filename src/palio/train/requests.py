"""Reads an OpenAI chat request and writes the response; refuses what an engine cannot honour."""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from palio.broker.upstream import RejectedError
from palio.records import Message
from palio.train.growing import Growing
from palio.train.text import END, parse_assistant

STOPS = 16
"""Most stop strings of a request; OpenAI takes four."""
GREEDY_BELOW = 1e-6
"""A temperature under this is 0: it asks for the likeliest token, and logits that are divided by it
are no numbers any more."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "tool_choice": ("auto",),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "response_format": ({"type": "text"},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "modalities": (["text"],),
    "audio": (),
    "echo": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""Parameters of OpenAI and vLLM that change an answer and are not honoured -> the values that ask
for nothing. Names that nobody knows are ignored, as vLLM does: new ones mostly change nothing."""


class Wish(NamedTuple):
    """What one completion asks for.

    Attributes:
        temperature: 0, as where a request is silent or asks for less than `GREEDY_BELOW`: the
            likeliest token every time.
        top_p: sample from the likeliest tokens that reach this probability together.
        seed: of the sampling; equal requests with equal seeds get equal answers. Where a request
            names none it is drawn anew, as with other servers: k samples shall not be copies.
        stop: strings before which the answer ends.
        logprobs: tell the log-probability of each token.
        parallel: several calls in one turn.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    parallel: bool = True


def read_request(body: Mapping[str, Any], most: int) -> Wish:
    """Check a request.

    Raises:
        RejectedError: messages that are no conversation, a parameter out of range, or one that
            would change the answer and cannot be honoured.
    """
    raw = body.get("messages")
    if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
        _refuse("messages must be a non-empty list")
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            _refuse(f"{name} = {value!r}"[:200] + " cannot be honoured", f"leave {name} out")
    limits = (body.get("max_completion_tokens"), body.get("max_tokens"), most)
    wanted = next(limit for limit in limits if limit is not None)
    seed = body.get("seed")
    temperature = _number(_given(body, "temperature", 0.0), "temperature", 0.0, 10.0)
    return Wish(
        messages=tuple(_message(each) for each in raw),
        max_tokens=_whole(wanted, "max_tokens", 1, 1 << 20),
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_p=_number(_given(body, "top_p", 1.0), "top_p", 1e-6, 1.0),
        seed=secrets.randbits(31) if seed is None else _whole(seed, "seed", -(2**63), 2**63),
        stop=_stops(body.get("stop")),
        logprobs=_flag(body, "logprobs", False),
        parallel=_flag(body, "parallel_tool_calls", True),
    )


def read_tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tools that a request offers, for models that are shown them.

    Raises:
        RejectedError: they are no list of functions with names.
    """
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        _refuse("tools must be a list")
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            _refuse("a tool must be an object with a `function` that has a name")
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        if not isinstance(parameters, Mapping | None) or not isinstance(properties, Mapping | None):
            _refuse(f"the parameters of {function['name'][:40]!r} are no JSON schema of an object")
    return tools


def _message(raw: Any) -> Message:
    """One message; unknown fields are ignored, text parts are joined."""
    if not isinstance(raw, Mapping):
        _refuse("a message must be an object")
    content, role = raw.get("content"), raw.get("role")
    if isinstance(content, list):
        content = "".join(_text(part) for part in content)
    told = {
        **raw,
        "role": "system" if role == "developer" else role,
        "content": content,
        "tool_calls": raw.get("tool_calls") or (),
    }
    try:
        return msgspec.convert(told, Message)
    except msgspec.ValidationError as error:
        _refuse(f"a message has the wrong form: {error}")


def _text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        _refuse(f"the model reads text, and a part of a message is {str(kind)[:40]!r}")
    return text


def _given(body: Mapping[str, Any], name: str, default: float) -> Any:
    value = body.get(name)
    return default if value is None else value


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        _refuse(f"{name} must be true or false, not {value!r}"[:200])
    return value


def _number(value: Any, name: str, low: float, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        _refuse(f"{name} must be a number from {low:g} to {high:g}, not {value!r}"[:200])
    return value


def _whole(value: Any, name: str, low: int, high: int) -> int:
    found = _number(value, name, low, high)
    if found != int(found):
        _refuse(f"{name} must be a whole number, not {value!r}")
    return int(found)


def _stops(value: Any) -> tuple[str, ...]:
    stops = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or len(stops) > STOPS:
        _refuse(f"stop must be a string or a list of at most {STOPS}")
    if not all(isinstance(stop, str) and stop for stop in stops):
        _refuse("stop must be strings, none of them empty")
    return tuple(stops)


class Written(NamedTuple):
    """What a model wrote after a prompt.

    Attributes:
        prompt: ids that it read.
        ids: that it sampled, the end token included where it wrote one.
        logprobs: of each, in nats; empty where nobody asked.
    """

    prompt: Sequence[int]
    ids: Sequence[int]
    logprobs: Sequence[float]


def completion(
    body: Mapping[str, Any],
    wish: Wish,
    written: Written,
    decode: Callable[[list[int]], str],
    *,
    end: int,
    name: str,
    number: int,
) -> dict[str, Any]:
    """The answer to a request, up to its first stop string.

    Args:
        body: the request.
        wish: the same, read.
        written: by the model.
        decode: the text of ids.
        end: id of the token that ends a turn.
        name: of the model, where the request names none.
        number: of the completion.
    """
    ids, text, stopped = _stopped(list(written.ids), decode, wish.stop)
    message = read_turn(text, wish)
    ended = stopped or ids[-1:] == [end]
    finish = ("tool_calls" if message.tool_calls else "stop") if ended else "length"
    model = str(body.get("model") or name)
    answer = response(model, number, message, finish, len(written.prompt), len(ids))
    if wish.logprobs:
        told = Told(decode)
        told.read(ids, written.logprobs[: len(ids)])
        answer["choices"][0]["logprobs"] = {"content": told.entries, "refusal": None}
    return with_token_ids(answer, written.prompt, ids) if body.get("return_token_ids") else answer


def _stopped(
    ids: list[int], decode: Callable[[list[int]], str], stops: Sequence[str]
) -> tuple[list[int], str, bool]:
    """Ids and text up to the first stop string, which the ids hold and the text does not."""
    text = decode(ids).removesuffix(END)
    found = [at for at in map(text.find, stops) if at >= 0]
    if not found:
        return ids, text, False
    first = min(found)
    stop = max((stop for stop in stops if text.startswith(stop, first)), key=len)
    count = bisect_left(
        range(1, len(ids)), True, key=lambda n: len(decode(ids[:n])) >= first + len(stop)
    )
    return ids[: count + 1], text[:first], True


def read_turn(text: str, wish: Wish) -> Message:
    """The message that a turn of a model is, or the beginning of one, as a request wants it."""
    message = parse_assistant(text, call_ids=f"call_{len(wish.messages)}")
    if wish.parallel:
        return message
    return msgspec.structs.replace(message, tool_calls=message.tool_calls[:1])


class Told:
    """Log-probabilities in OpenAI's form; the tokens joined are the text, the end mark included.

    A token by itself may have another text: half a character, or a word without the space before.

    Attributes:
        entries: one for each token.
        lengths: of the text up to each token, in characters.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode, self._growing = decode, Growing(decode)
        self.entries: list[dict[str, Any]] = []
        self.lengths: list[int] = []

    @property
    def text(self) -> str:
        """Of all tokens so far."""
        return self._growing.text

    def read(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add some more tokens."""
        for token, logprob in zip(ids, logprobs, strict=True):
            before = self.text
            self._growing.add([token])
            goes_on = self.text.startswith(before)
            piece = self.text[len(before) :] if goes_on else self._decode([token])
            of_text = {"token": piece, "logprob": logprob, "bytes": list(piece.encode())}
            self.entries.append({**of_text, "top_logprobs": []})
            self.lengths.append(len(self.text))


def response(
    model: str, number: int, message: Message, finish: str, prompt: int, written: int
) -> dict[str, Any]:
    """The completion as OpenAI writes it."""
    plain = message.to_openai()
    plain.setdefault("content", None)
    return {
        **frame(model, number),
        "choices": [{"index": 0, "message": plain, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        },
    }


def frame(model: str, number: int, kind: str = "chat.completion") -> dict[str, Any]:
    """What a completion and each chunk of it tell beside their choices."""
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 0, "model": model}


def with_token_ids(
    answer: dict[str, Any], prompt: Sequence[int], sampled: Sequence[int]
) -> dict[str, Any]:
    """The completion with its token ids where vLLM puts them for `return_token_ids`."""
    first = {**answer["choices"][0], "token_ids": list(sampled)}
    return {**answer, "choices": [first], "prompt_token_ids": list(prompt)}


def _refuse(what: str, remedy: str = "correct the request") -> NoReturn:
    raise RejectedError(what, remedy=remedy)
