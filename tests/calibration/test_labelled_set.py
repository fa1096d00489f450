"""The shipped set is what its generator makes, is balanced, and pins what our judge reaches."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from palio.evaluate.calibration import (
    Calibration,
    LabelledRow,
    calibrate,
    labels_digest,
    shipped_labels,
)
from palio.records import DispatchEvent
from tests.calibration.judged import by_evidence

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:992be92741744440e333521759efd3cd2811060d347f67c005fdfb56f10e7d84"
FLOORS = {
    "pair-record": 1.0,
    "pair-thinking": 0.818,
    "template-compact": 0.938,
    "template-full": 0.936,
    "trace": 0.937,
}
"""Share in the label's bin that evidence-v2 was measured with; 0.02 below it is a regression."""
SPLITS = {"development": 0.989, "heldout": 0.888}
PAIRS = 0.879
KAPPA = 0.984
SLACK = 0.02


@pytest.fixture(scope="module")
def rows() -> tuple[LabelledRow, ...]:
    return shipped_labels()


@pytest.fixture(scope="module")
def measured(rows: tuple[LabelledRow, ...]) -> Calibration:
    return calibrate(rows, by_evidence(rows))


def test_the_set_is_the_one_that_was_measured(rows: tuple[LabelledRow, ...]) -> None:
    assert labels_digest(rows) == DIGEST


def test_the_generator_makes_the_same_rows() -> None:
    script = ROOT / "scripts" / "labelled" / "build.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_sixty_rows_a_bin_in_every_population(rows: tuple[LabelledRow, ...]) -> None:
    assert len(rows) >= 300
    assert min(Counter(row.label for row in rows).values()) >= 60
    for population in FLOORS:
        there = Counter(row.label for row in rows if row.population == population)
        assert len(there) == 5, population


def test_every_row_says_why(rows: tuple[LabelledRow, ...]) -> None:
    assert all(row.rationale and row.population and row.author for row in rows)
    assert {row.split for row in rows} == {"development", "heldout"}


def test_scripts_and_pairs_stay_on_one_side_of_the_split(rows: tuple[LabelledRow, ...]) -> None:
    for field in ("script", "pair"):
        sides: dict[str, set[str]] = {}
        for row in rows:
            if getattr(row, field):
                sides.setdefault(getattr(row, field), set()).add(row.split)
        assert all(len(side) == 1 for side in sides.values())
    sizes = Counter(row.split for row in rows)
    assert abs(sizes["development"] - sizes["heldout"]) <= 20


def test_pairs_have_two_members_with_two_labels(rows: tuple[LabelledRow, ...]) -> None:
    members: dict[str, list[LabelledRow]] = {}
    for row in rows:
        if row.pair:
            members.setdefault(row.pair, []).append(row)
    assert len(members) >= 60
    for pair in members.values():
        one, two = pair
        assert one.label > two.label
        assert one.trajectory is not None
        assert two.trajectory is not None
        assert one.trajectory.query == two.trajectory.query
        assert one.trajectory.agent == two.trajectory.agent
        if one.population == "pair-record":
            assert words(one) == words(two), one.pair
        else:
            assert words(one) != words(two)


def words(row: LabelledRow) -> set[str]:
    """Words of the run's author, the model or its harness, that are no tool output."""
    assert row.trajectory is not None
    texts = [
        f"{e.completion.reasoning_content or ''} {e.completion.content or ''}"
        for e in row.trajectory.inferences
        if e.completion is not None
    ]
    texts += [
        (message.content or "").removeprefix("Notes of the shopping program: ")
        for event in row.trajectory.inferences
        for message in event.request
        if message.role == "user" and "\nReply ok." in (message.content or "")
    ]
    text = " ".join(texts).replace("\nReply ok.", "")
    return set(text.replace("<think>", " ").replace("</think>", " ").split()) - {"ok"}


def test_agents_tell_no_label(rows: tuple[LabelledRow, ...]) -> None:
    names: dict[str, set[float]] = {}
    for row in rows:
        assert row.trajectory is not None
        names.setdefault(row.trajectory.agent.name, set()).add(row.label)
    assert len(names) == 12
    assert all(len(labels) == 5 for labels in names.values())


def test_records_are_consistent(rows: tuple[LabelledRow, ...]) -> None:
    ids = set()
    for row in rows:
        trajectory = row.trajectory
        assert trajectory is not None
        ids.add(trajectory.trajectory_id)
        assert [event.seq for event in trajectory.events] == list(range(len(trajectory.events)))
        assert trajectory.messages[0].role in ("system", "user")
        asked = {e.seq for e in trajectory.inferences}
        for event in trajectory.events:
            if isinstance(event, DispatchEvent) and event.emitted_by is not None:
                assert event.emitted_by in asked
    assert len(ids) == len(rows)


@pytest.mark.parametrize("population", FLOORS)
def test_our_judge_is_no_worse_than_it_was(measured: Calibration, population: str) -> None:
    rate = measured.groups["population"][population].exact.value
    assert rate is not None
    assert rate >= FLOORS[population] - SLACK


@pytest.mark.parametrize("split", SPLITS)
def test_our_judge_holds_on_both_halves(measured: Calibration, split: str) -> None:
    rate = measured.groups["split"][split].exact.value
    assert rate is not None
    assert rate >= SPLITS[split] - SLACK


def test_our_judge_believes_little_that_is_not_there(measured: Calibration) -> None:
    assert measured.admitted.successes <= 3
    assert [gate.admitted.successes for gate in measured.gates[:3]] == [0, 0, 0]
    assert measured.overall.within_one.value == 1


def test_our_judge_on_pairs_and_overall(measured: Calibration) -> None:
    assert measured.overall.unjudged == 0
    assert (measured.pairs["all"].both_right.value or 0) >= PAIRS - SLACK
    assert (measured.overall.kappa.value or 0) >= KAPPA - SLACK
