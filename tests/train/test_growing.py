"""Whatever a model writes and however it is cut: what is told of it is the completion, exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.records import UpstreamError
from palio.train.growing import Growing, certain, decided
from palio.train.requests import Written, completion, read_request
from palio.train.streamed import Stream
from palio.train.text import END, parse_assistant
from palio.train.tokenizer import ChatTokenizer
from tests.train.streams import LETTERS, joined, told

CALL = '<tool_call>\n{"name": "find_product", "arguments": {"q":"mug"}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "find_product", "arg</tool_call>'
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "\n", "\n\n", END, "<|im_", "<tool"]
WORDS = ["blue wool", "STOP", "ST", " ", "caf\u00e9", "\U0001f642", "\x1e", "\x1c", "\x1f", "{}"]
STOPS = [
    "STOP",
    "TOP",
    "wool",
    "wool STOP",
    "\n",
    "</tool_call>",
    "<tool",
    "\u00e9",
    "|>",
    "\ufffd",
]

pieces = st.sampled_from([CALL, CALL, BROKEN, *MARKS, *WORDS]) | st.text(max_size=4)
parts = st.tuples(st.booleans(), pieces) | st.binary(min_size=1, max_size=3)
writings = st.lists(parts, max_size=9)


class Vocabulary:
    """A tokenizer that can also write byte by byte."""

    def __init__(self, encode: Callable[[str], list[int]], decode: Any, letter: Any, end: int):
        self.encode, self.decode, self.letter, self.end = encode, decode, letter, end

    def ids(self, parts: Sequence[Any]) -> list[int]:
        """Of pieces: as a tokenizer cuts them, or spelled; never the end mark."""
        made: list[int] = []
        for part in parts:
            spelled = isinstance(part, bytes) or part[0]
            data = part if isinstance(part, bytes) else part[1].encode("utf-8", "replace")
            letters = [self.letter(LETTERS[byte]) for byte in data]
            made += letters if spelled else self.encode(data.decode())
        return [each for each in made if each != self.end]


@pytest.fixture(scope="module", params=["ours", "qwen3"])
def vocabulary(request: pytest.FixtureRequest, tokenizer: ChatTokenizer) -> Vocabulary:
    if request.param == "ours":
        return Vocabulary(tokenizer.encode, tokenizer.decode, tokenizer.id_of, tokenizer.end)
    pytest.importorskip("trl", reason="Qwen3's vocabulary is in the package of TRL")
    from tests.train.test_qwen_template import real_qwen3

    qwen = real_qwen3()
    letter = qwen.tokenizer.convert_tokens_to_ids
    return Vocabulary(qwen.encode, qwen.decode, letter, qwen.end)


@settings(max_examples=300)
@given(
    parts=writings,
    ended=st.booleans(),
    stop=st.lists(st.sampled_from(STOPS) | st.text(min_size=1, max_size=3), max_size=3),
    flags=st.fixed_dictionaries(
        {
            "logprobs": st.booleans(),
            "return_token_ids": st.booleans(),
            "parallel_tool_calls": st.booleans(),
        }
    ),
    cuts=st.sets(st.integers(0, 200), max_size=30) | st.just(set(range(200))),
)
def test_a_stream_is_the_completion_however_it_is_cut(
    vocabulary: Vocabulary,
    parts: list[Any],
    ended: bool,
    stop: list[str],
    flags: dict[str, bool],
    cuts: set[int],
) -> None:
    ids = vocabulary.ids(parts) + [vocabulary.end] * ended or [vocabulary.end]
    body = {"messages": [{"role": "user", "content": "a mug"}], "stop": stop, "seed": 1, **flags}
    body["stream_options"] = {"include_usage": True}
    wish, scores = read_request(body, 999), [-float(at) for at in range(len(ids))]
    named: dict[str, Any] = {"name": "m", "number": 7}
    answer = completion(
        *(body, wish, Written([1], ids, scores), vocabulary.decode), end=vocabulary.end, **named
    )
    chunks: list[dict[str, Any]] = []
    stream = Stream(body, wish, [1], vocabulary.decode, tell=chunks.append, **named)
    for cut in sorted(cut for cut in cuts if cut <= len(ids)):
        if not stream.hear(ids[:cut], scores[:cut]):
            early = Written([1], ids[:cut], scores[:cut])
            stopped = completion(body, wish, early, vocabulary.decode, end=vocabulary.end, **named)
            assert stopped == answer, "what comes after a stop string makes no difference"
            break
    stream.end(answer)
    assert joined(chunks) == told(answer), answer
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}


@given(parts=st.lists(parts, max_size=60))
def test_a_text_that_grows_is_at_each_step_what_all_its_ids_say(
    vocabulary: Vocabulary, parts: list[Any]
) -> None:
    ids = vocabulary.ids(parts)
    growing = Growing(vocabulary.decode)
    for count, token in enumerate(ids, 1):
        growing.add([token])
        assert growing.text == vocabulary.decode(ids[:count])
    assert growing.ids == ids


class Counted:
    """A `decode` that knows the most ids it was given at once."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode, self.longest = decode, 0

    def __call__(self, ids: list[int]) -> str:
        self.longest = max(self.longest, len(ids))
        return self._decode(ids)


def test_of_a_long_text_only_the_end_is_decoded_again(vocabulary: Vocabulary) -> None:
    decode = Counted(vocabulary.decode)
    growing = Growing(decode)
    ids = vocabulary.encode("blue wool, caf\u00e9 mugs and 6093 reds. " * 60)
    for token in ids:
        growing.add([token])
    assert len(ids) > 500
    assert growing.text == vocabulary.decode(ids)
    assert decode.longest < 100


@given(writings, st.lists(st.sampled_from(STOPS), max_size=2))
def test_what_is_certain_only_grows(
    vocabulary: Vocabulary, parts: list[Any], stops: list[str]
) -> None:
    ids = vocabulary.ids(parts)
    texts = [vocabulary.decode(ids[:count]) for count in range(len(ids) + 1)]
    for one, other in pairwise(certain(text, stops) for text in texts):
        assert other.text.startswith(one.text)
        assert not one.ended or other == one
        before, after = (text[: decided(text)] for text in (one.text, other.text))
        assert after.startswith(before)
        assert (parse_assistant(after).content or "").startswith(
            parse_assistant(before).content or ""
        )


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        ("a mug", "a mug"),
        ("a mug\n", "a mug"),
        ("a mug\n<tool", "a mug"),
        ("a mug<", "a mug"),
        ("a mug< b", "a mug< b"),
        ("a\n<tool_call>\n{", "a"),
        (f"a{CALL}\nb", f"a{CALL}\nb"),
        (f"{BROKEN} b", f"{BROKEN} b"),
        (f"{CALL}\n{CALL[:-1]}", CALL),
        ("<thi", ""),
        ("<think>\nlong", ""),
        ("<think>x</think>", "<think>x</think>"),
        ("<think>x</think>\n\nyes", "<think>x</think>\n\nyes"),
        ("well <think>", "well <think>"),
    ],
)
def test_what_is_held_back_is_what_may_be_a_call_or_thinking(text: str, sure: str) -> None:
    assert text[: decided(text)] == sure


@pytest.mark.parametrize(
    ("text", "stops", "sure", "ended"),
    [
        ("blue wo", ["wool"], "blue ", False),
        ("blue woo!", ["wool"], "blue woo!", False),
        ("blue wool", ["wool"], "blue ", True),
        ("blue wool", ["wool", "wool,"], "blue ", False),
        ("blue wool!", ["wool", "wool,"], "blue ", True),
        ("blue wool", ["wool", "ue wool s"], "bl", False),
        ("x<|im_end|>", [], "x", False),
        ("x<|im_end|><|im", [], "x", False),
        ("x<|im_end|>y", [], "x<|im_end|>y", False),
        ("x\ufffd", [], "x", False),
        ("x\ufffdy", [], "x\ufffdy", False),
    ],
)
def test_what_is_held_back_is_what_may_be_an_end(
    text: str, stops: list[str], sure: str, ended: bool
) -> None:
    assert certain(text, stops) == (sure, ended)


def test_a_vocabulary_that_takes_back_what_it_said_is_an_error_and_no_wrong_answer() -> None:
    def decode(ids: list[int]) -> str:
        return "one word" if len(ids) < 3 else "another " * len(ids)

    body = {"messages": [{"role": "user", "content": "a mug"}]}
    wish, ids = read_request(body, 99), [5, 6, 7]
    chunks: list[dict[str, Any]] = []
    stream = Stream(body, wish, [1], decode, name="m", number=1, tell=chunks.append)
    assert stream.hear(ids[:2], ())
    answer = completion(body, wish, Written([1], ids, ()), decode, end=9, name="m", number=1)
    with pytest.raises(UpstreamError, match="taken back"):
        stream.end(answer)
