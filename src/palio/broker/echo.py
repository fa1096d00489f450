"""A call that the harness planned stays the harness's, even when it has the model repeat it.

A proof says that the model wrote a call, not that it chose it: a harness can put a finished call
into the prompt and ask for it back. So the arguments of each call are looked for in the text that
the agent itself wrote into the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from palio.broker.wire import load_json
from palio.records import InputError, Message, ToolCall

SHORTEST = 4
"""Characters; shorter values (page "2", sort "asc") stand in any prompt by chance."""
_SQUASH = str.maketrans({"'": '"', "\\": None, " ": None, "\n": None, "\r": None, "\t": None})


class Prompts:
    """What a run's model can have from the host or from itself; the rest the agent wrote."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._known: list[str] = [query]
        self._said: set[str] = set()
        self._results: set[str] = set()

    def result(self, text: str) -> None:
        """A tool gave `text`."""
        self._known.append(text)
        self._results.add(text)

    def completion(self, message: Message) -> None:
        """The model said `message`."""
        texts = [message.content or "", message.reasoning_content or ""]
        texts += [call.function.arguments for call in message.tool_calls]
        self._known += [text for text in texts if text]
        self._said.update(text for text in texts if text)

    def echoed(self, messages: Sequence[Message], calls: Sequence[ToolCall]) -> tuple[bool, ...]:
        """For each call of a completion to `messages`: whether the agent had written it there.

        True if the argument JSON stands in the agent's own text, white space and quoting aside, or
        if all its longer string values do; unless the query, a tool result or an earlier
        completion holds them too: then the model may have them from there.
        """
        own = "\n".join(self._own(messages))
        if not own or not calls:
            return (False,) * len(calls)
        squashed, folded = own.translate(_SQUASH), own.casefold()
        return tuple(self._repeats(call, squashed, folded) for call in calls)

    def _own(self, messages: Sequence[Message]) -> Iterator[str]:
        for message in messages:
            text = message.content or ""
            if message.role in ("system", "user"):
                if text != self._query:
                    yield text
            elif message.role == "assistant":
                said = (text, message.reasoning_content or "")
                yield from (each for each in said if each and each not in self._said)
                for call in message.tool_calls:
                    if call.function.arguments not in self._said:
                        yield call.function.arguments
            elif not self._shown(text):
                yield text

    def _shown(self, text: str) -> bool:
        """Whether a tool message holds what a tool gave, with or without warnings after it."""
        if text in self._results or text.partition("\n")[0] in self._results:
            return True
        return any(result in text for result in self._results)

    def _repeats(self, call: ToolCall, squashed: str, folded: str) -> bool:
        text = call.function.arguments.translate(_SQUASH)
        if len(text) > SHORTEST and text in squashed:
            return not any(text in known.translate(_SQUASH) for known in self._known)
        values = [value.casefold() for value in _values(call.function.arguments)]
        if not values or not all(value in folded for value in values):
            return False
        return not any(value in known.casefold() for value in values for known in self._known)


def _values(arguments: str) -> list[str]:
    """String values long enough not to stand in a prompt by chance."""
    try:
        return [value for value in _strings(load_json(arguments)) if len(value) >= SHORTEST]
    except (InputError, RecursionError):
        return []


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value.strip()
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
