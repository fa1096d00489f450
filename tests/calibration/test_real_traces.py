"""Real generations, labelled by hand, where the shared data is at hand."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from palio.broker.conversation import build_messages
from palio.evaluate.calibration import LabelledRow, calibrate
from palio.records import AgentRef, InferenceEvent, Message, Trajectory
from tests.calibration.judged import by_evidence

HERE = Path(__file__).parent


def trajectory(row: dict[str, object]) -> Trajectory:
    """The first turn that the model generated, as the broker would have recorded it."""
    request = tuple(
        Message(role=message["role"], content=message["content"])
        for message in row["messages"]  # type: ignore[attr-defined]
    )
    event = InferenceEvent(
        seq=0,
        at_ms=1.0,
        duration_ms=1.0,
        prefix=0,
        request=request,
        completion=Message(role="assistant", content=str(row["raw_text"])),
    )
    query = request[-1].content or ""
    return Trajectory(
        trajectory_id=str(row["id"]),
        problem_id=str(row["id"]),
        query=query,
        kind="product",
        agent=AgentRef(name="released", kind="external"),
        events=(event,),
        messages=build_messages(query, [event]),
    )


@pytest.mark.shared
def test_first_turns_of_a_released_model_are_no_analysis(shared_data: Path) -> None:
    file = shared_data / "real_rollouts_oro_sft_prefix.jsonl"
    held = {row["id"]: row for row in map(json.loads, file.read_text().splitlines())}
    labels = tomllib.loads((HERE / "real_labels.toml").read_text())["label"]
    rows = tuple(
        LabelledRow(
            label=label["label"],
            trajectory=trajectory(held[label["id"]]),
            rationale=label["why"],
            population="real",
        )
        for label in labels
    )
    found = calibrate(rows, by_evidence(rows))
    assert found.overall.n == 3
    assert found.overall.exact.value == 1
