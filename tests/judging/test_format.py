from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.judging import Step, call_reward, format_score, length_score, step_reward
from palio.judging.format import jaccard, step_format
from palio.records import InputError

CALL = '[{"name": "find_product", "parameters": {"q": "x"}}]'
GOOD = f"<think>t</think>\n<tool_call>{CALL}</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"<tool_call>{CALL}</tool_call><think>order is free</think>",
        "<think>t</think><response>done</response>",
        "<think>t</think><tool_call>[]</tool_call><response>r</response>",
        "noise <think></think> noise <response></response>",
        GOOD + "<obs>tags that are not counted</obs>",
    ],
)
def test_well_formed_steps(text: str) -> None:
    assert step_format(text) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<think>t</think>",
        f"<tool_call>{CALL}</tool_call>",
        "<think>t<response>r</response>",
        "<think>t</think></think><response>r</response>",
        "</think><think><response>r</response>",
        "<think>t <response>r</response></think>",
        f"<think>a</think><think>b</think><tool_call>{CALL}</tool_call>",
        "<think>t</think><tool_call>not json</tool_call>",
        '<think>t</think><tool_call>{"name": "a", "parameters": {}}</tool_call>',
        '<think>t</think><tool_call>[{"name": 1, "parameters": {}}]</tool_call>',
        '<think>t</think><tool_call>[{"name": "a", "parameters": []}]</tool_call>',
        '<think>t</think><tool_call>[{"name": "a"}]</tool_call>',
        '<think>t</think><tool_call>["name parameters"]</tool_call>',
        "<think>t</think><tool_call>" + "[" * 100_000 + "</tool_call>",
        f"<think>t<tool_call></think>{CALL}</tool_call>",
    ],
)
def test_malformed_steps(text: str) -> None:
    assert step_format(text) == 0


def test_format_is_a_mean_and_halves_steps_without_a_timestamp() -> None:
    steps = [Step(text=GOOD, timestamp=1.0), Step(text=GOOD), Step(text=GOOD, timestamp=0)]
    assert format_score(steps) == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert format_score(steps, missing_timestamp=1.0) == 1
    assert format_score([Step(text="", timestamp=1.0), Step(text=GOOD, timestamp=1.0)]) == 0.5
    assert format_score([]) == 0


def test_length() -> None:
    assert length_score(4, terminated=True) == 0.25
    assert length_score(4, terminated=False) == 0
    assert length_score(0, terminated=True) == 0


def call(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


@pytest.mark.parametrize(
    ("written", "teacher", "reward"),
    [
        ([call("a", q="x")], [call("a", q="x")], 3.0),
        ([], [], 3.0),
        ([], [call("a")], -3.0),
        # names 1, keys 1, value 1/3 over L = 1 + 1 + 1
        ([call("a", q="x y")], [call("a", q="x,z")], 6 * (1 + 1 + 1 / 3) / 3 - 3),
        # whole numbers are compared, other types give nothing, True is no number
        ([call("a", n=2)], [call("a", n=1)], 6 * 2 / 3 - 3),
        ([call("a", n=1, f=1.5)], [call("a", n=1, f=1.5, z="")], 6 * (1 + 2 / 3 + 1) / 5 - 3),
        ([call("a", n=True)], [call("a", n=1, m=2)], 6 * (1 + 1 / 2) / 4 - 3),
        # each call is used once, the best one
        ([call("a", q="x"), call("b")], [call("a", q="x")] * 2, 6 * (1 / 3 + 2) / 5 - 3),
        ([call("a", q="y"), call("a", q="x")], [call("a", q="x")], 6 * (1 / 2 + 2) / 3 - 3),
        # both without parameters: key lists are equal, which counts 1
        ([call("a"), call("b")], [call("a")], 6 * (1 / 2 + 1) / 2 - 3),
        ([call("c")], [call("a")], -3.0),
    ],
)  # fmt: skip
def test_call_reward(written: Any, teacher: Any, reward: float) -> None:
    assert call_reward(written, teacher) == pytest.approx(reward)


def test_step_reward() -> None:
    assert step_reward(GOOD, GOOD) == (1.0, 3.0)
    assert step_reward(GOOD, "<think>t</think><response>r</response>") == (1.0, 0.0)
    assert step_reward("nothing", GOOD) == (0.0, -3.0)
    bare = f"<tool_call>{CALL}</tool_call>"
    assert step_reward(bare, bare) == (1.0, 3.0), "a bare teacher asks for no thinking"
    assert step_reward(bare, GOOD) == (0.0, 3.0)
    for broken in ('{"name": 1}', "[1]", '[{"name": "find_product"}]', '[{"parameters": {}}]'):
        assert step_reward(f"<tool_call>{broken}</tool_call>", GOOD)[1] == -3.0
    with pytest.raises(InputError, match="teacher"):
        step_reward(GOOD, "<tool_call>{</tool_call>")


names = st.sampled_from(["a", "b"])
values = st.one_of(st.sampled_from(["x", "x y", "y,z", ""]), st.integers(0, 2), st.none())
calls = st.lists(
    st.builds(lambda n, p: {"name": n, "parameters": p}, names, st.dictionaries(names, values)),
    max_size=3,
)


@given(calls, calls)
def test_call_reward_stays_in_its_range(written: Any, teacher: Any) -> None:
    reward = call_reward(written, teacher)
    assert -3 <= reward <= 3 + 1e-9
    assert call_reward(teacher, teacher) == 3
    text = f"<tool_call>{json.dumps(written)}</tool_call>"
    assert step_reward(text, f"<tool_call>{json.dumps(teacher)}</tool_call>") == (1.0, reward)


@given(st.lists(names), st.lists(names))
def test_jaccard_is_symmetric(a: list[str], b: list[str]) -> None:
    assert jaccard(a, b) == jaccard(b, a)
    assert (jaccard(a, b) == 1) == (sorted(a) == sorted(b))
