"""Finds the JSON and chat strings of a corpus that are worth one token each.

What lies between two values (keys, quotes, brackets, chat marks) is the same in every row, so it
carries no more than one token of information; a corpus of tool results is mostly that. One token
for each such string cut the prototype's trajectories to a quarter of their tokens.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from palio.records import Message
from palio.train.text import END, REPLY, assistant_text

MARKS = (
    f"\n{REPLY}",
    REPLY,
    "<|im_start|>user\n",
    "\n<|im_start|>user\n",
    "<|im_start|>system\n",
    "<|im_start|>",
    "\n<|im_start|>user\n<tool_response>\n",
    "\n<tool_response>\n",
    "\n</tool_response>",
    "<think>\n",
    "\n</think>\n\n",
    "<tool_call>\n",
    "\n</tool_call>",
)
"""Chat marks that are tokens in every vocabulary, whatever the corpus holds."""

_LEXEME = re.compile(
    r'(?P<key>"[^"\\]*":\s*)|"(?P<string>(?:[^"\\]|\\.)*)"|(?P<number>-?\d[\d.eE+-]*)'
    r"|(?P<other>true|false|null|[\[\]{},:]|\s+)|(?P<odd>.)",
    re.DOTALL,
)
_CLOSED = re.compile(r"[^A-Za-z0-9 ].+[^A-Za-z0-9 ]", re.DOTALL)
_TURN = re.compile(r"<think>\n.*?(\n</think>\n\n.*)", re.DOTALL)
_FEW = 4


def frequent_glue(
    conversations: Sequence[Sequence[Message]], *, limit: int, share: float = 0.004
) -> list[str]:
    """The most token-saving strings between values, best first.

    Args:
        conversations: a sample of the corpus.
        limit: how many strings at most.
        share: a string must occur at least this often a conversation, on average.
    """
    calls = [text for talk in conversations for text in _call_texts(talk)]
    fixed = _few_valued(calls)
    counts: Counter[str] = Counter()
    for text in calls:
        counts.update(_runs(text, fixed))
    for talk in conversations:
        for message in talk:
            if message.role == "tool":
                head, tail = "\n<|im_start|>user\n<tool_response>\n", "\n</tool_response>"
                counts.update(_runs(head + (message.content or "") + tail, {}))
    least = max(4, int(share * len(conversations)))
    found = [
        (count * (len(run) - 1), run)
        for run, count in counts.items()
        if count >= least and _CLOSED.fullmatch(run) and END not in run
    ]
    return [run for _, run in sorted(found, key=lambda item: (-item[0], item[1]))[:limit]]


def _call_texts(talk: Sequence[Message]) -> Iterator[str]:
    for message in talk:
        if message.role == "assistant" and message.tool_calls:
            text = assistant_text(message)
            turn = _TURN.fullmatch(text)
            yield turn.group(1) if turn else text[text.index("<tool_call>") :]


def _few_valued(texts: Sequence[str]) -> dict[str, set[str]]:
    """Keys of tool calls that take few values: such a value belongs to the string around it."""
    values: defaultdict[str, set[str]] = defaultdict(set)
    for text in texts:
        key = ""
        for lexeme in _LEXEME.finditer(text):
            if lexeme["key"]:
                key = lexeme["key"]
            elif lexeme["string"] is not None:
                values[key].add(lexeme["string"])
    return {
        key: found
        for key, found in values.items()
        if len(found) <= _FEW or key.startswith('"name"')
    }


def _runs(text: str, fixed: dict[str, set[str]]) -> Iterator[str]:
    """Maximal strings without a value; a value's quotes belong to the strings around it."""
    run, key = "", ""
    for lexeme in _LEXEME.finditer(text):
        if lexeme["string"] is not None and lexeme["string"] not in fixed.get(key, ()):
            yield run + '"'
            run = '"'
        elif lexeme["number"] is not None:
            yield run
            run = ""
        else:
            run += lexeme[0]
            key = lexeme["key"] or key
    yield run
