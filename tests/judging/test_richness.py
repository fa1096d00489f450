from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.judging import axis_of, coefficient, final_score, richness_verdict
from palio.records import Event
from palio.world import CATALOGUE_TOOLS
from tests.judging.runs import dispatch, think, trajectory


def calls(*emitted: int | None, tool: str = "find_product") -> list[Event]:
    return [dispatch(tool, {}, [], emitted_by=one) for one in emitted]


@pytest.mark.parametrize(
    ("emitted", "richness", "axis"),
    [
        ([0, 0], 1.0, "agentic"),
        ([None, None], 0.0, "subtask"),
        ([0, None], 0.5, "mixed"),
        ([0] * 9 + [None], 0.9, "agentic"),
        ([0] + [None] * 9, 0.1, "subtask"),
        ([], None, "unknown"),
    ],
)
def test_richness_and_axis(emitted: list[int | None], richness: float | None, axis: str) -> None:
    verdict = richness_verdict(trajectory(*calls(*emitted)))
    assert (verdict.richness, verdict.axis) == (richness, axis)
    assert verdict.evidence == ("unknown" if richness is None else "heuristic")
    assert verdict.dispatched == len(emitted)


def test_only_catalogue_tools_count() -> None:
    others = [
        dispatch(tool, {}, {}, emitted_by=None) for tool in ("recommend_product", "terminate")
    ]
    assert richness_verdict(trajectory(*others, think("x"))).richness is None
    for tool in CATALOGUE_TOOLS:
        assert richness_verdict(trajectory(*calls(0, tool=tool), *others)).richness == 1


def test_thresholds_are_part_of_the_judge() -> None:
    run = trajectory(*calls(0, None))
    verdict = richness_verdict(run, agentic=0.5)
    assert verdict.axis == "agentic"
    assert verdict.judge != richness_verdict(run).judge
    assert axis_of(0.5, subtask=0.5, agentic=0.6) == "subtask"


@pytest.mark.parametrize(
    ("quality", "value"),
    [(0, 0.3), (0.1, 0.3875), (0.3, 0.5625), (0.5, 0.7375), (0.7, 0.9125), (0.8, 1), (0.9, 1)],
)  # fmt: skip
def test_the_published_coefficients(quality: float, value: float) -> None:
    assert coefficient(quality) == pytest.approx(value)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_final_score_grows_with_both(rate: float, a: float, b: Any) -> None:
    low, high = sorted((a, b))
    assert 0 <= final_score(rate, low) <= final_score(rate, high) <= rate
