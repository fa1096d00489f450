"""A calibration says how right a judge is, for whom, at which gate, and on which pairs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from palio.evaluate.calibration import (
    Calibration,
    LabelledRow,
    calibrate,
    drift,
    read_labels,
    save_chart,
    trajectories_of,
)
from palio.records import ConfigError, InputError, JudgeId, ReasoningVerdict, to_json

JUDGE = JudgeId(name="toy", version="1")


def row(name: str, label: float, **more: str) -> LabelledRow:
    return LabelledRow(label=label, trajectory_id=name, **more)


def verdict(name: str, quality: float | None, judge: JudgeId = JUDGE) -> ReasoningVerdict:
    return ReasoningVerdict(
        trajectory_id=name,
        problem_id="p",
        judge=judge,
        status="unjudged" if quality is None else "judged",
        quality=quality,
    )


def verdicts(**qualities: float | None) -> dict[str, ReasoningVerdict]:
    return {name: verdict(name, quality) for name, quality in qualities.items()}


ROWS = (
    row("a", 0.9, population="pair-x", pair="1"),
    row("b", 0.5, population="pair-x", pair="1"),
    row("c", 0.9, population="pair-x", pair="2"),
    row("d", 0.7, population="pair-x", pair="2"),
    row("e", 0.3, population="trace"),
    row("f", 0.1, population="trace"),
)
GIVEN = verdicts(a=0.9, b=0.5, c=0.3, d=0.7, e=0.7, f=None)


@pytest.fixture(scope="module")
def found() -> Calibration:
    return calibrate(ROWS, GIVEN)


def test_false_refutations_and_false_passes_stand_apart(found: Calibration) -> None:
    assert (found.refuted.successes, found.admitted.successes, found.refuted.n) == (1, 1, 5)
    assert [(m.row_id, m.label, m.given) for m in found.misses] == [
        ("c", 0.9, 0.3),
        ("e", 0.3, 0.7),
    ]


def test_rows_without_a_judgement_say_why() -> None:
    some = {name: each for name, each in GIVEN.items() if name != "a"}
    assert calibrate(ROWS, some).unjudged == {"no reason given": 1, "no verdict": 1}


def test_an_error_is_charged_to_the_gate_that_made_it(found: Calibration) -> None:
    two, four = found.gates[1], found.gates[3]
    assert (two.refuted.successes, two.refuted.n) == (1, 4)  # c passes gate 2 and was stopped there
    assert (two.admitted.successes, two.admitted.n) == (
        1,
        1,
    )  # e stops at gate 2 and was let through
    assert (four.refuted.successes, four.refuted.n) == (0, 2)
    assert found.gates[0].refuted.n == 5


def test_a_pair_is_right_when_both_members_are(found: Calibration) -> None:
    pairs = found.pairs["pair-x"]
    assert pairs.both_right.value == 0.5
    assert pairs.right_order.value == 0.5
    assert found.pairs["all"] == pairs


def test_every_population_has_its_own_agreement(found: Calibration) -> None:
    groups = found.groups["population"]
    assert groups["pair-x"].exact.value == 0.75
    assert (groups["trace"].n, groups["trace"].unjudged, groups["trace"].exact.value) == (1, 1, 0)


def test_gates_of_a_label_stop_at_the_first_failure() -> None:
    assert row("x", 0.1).gates == (False,)
    assert row("x", 0.5).gates == (True, True, False)
    assert row("x", 0.9).gates == (True, True, True, True)


def test_verdicts_of_two_judges_are_not_mixed() -> None:
    mixed = {**GIVEN, "a": verdict("a", 0.9, JudgeId(name="toy", version="2"))}
    with pytest.raises(InputError, match="several judges: toy 1, toy 2"):
        calibrate(ROWS, mixed)


def test_no_verdict_at_all_is_an_error() -> None:
    with pytest.raises(InputError, match="none of the 6 labelled rows"):
        calibrate(ROWS, verdicts(other=0.9))


def test_a_quality_outside_the_bins_is_an_error() -> None:
    with pytest.raises(InputError, match=r"a: quality 0\.8 is no bin"):
        calibrate(ROWS, {**GIVEN, **verdicts(a=0.8)})


def test_rows_without_a_trajectory_cannot_be_judged() -> None:
    with pytest.raises(InputError, match="'a' has no trajectory"):
        trajectories_of(ROWS)


def test_drift_is_paired() -> None:
    newer = verdicts(a=0.9, b=0.5, c=0.9, d=0.5, e=0.3, f=0.1)
    moved = drift(ROWS, GIVEN, newer)
    assert moved.n == 5  # f was unjudged before
    assert (moved.changed.successes, moved.raised, moved.lowered) == (3, 1, 2)
    assert moved.moves == {"c": (0.9, 0.3, 0.9), "d": (0.7, 0.7, 0.5), "e": (0.3, 0.7, 0.3)}
    assert moved.accuracy.difference == pytest.approx(1 / 5)
    assert (moved.test.only_a, moved.test.only_b) == (2, 1)
    assert moved.shift.value == pytest.approx((0.6 - 0.2 - 0.4) / 5)
    with pytest.raises(InputError, match="judged by both"):
        drift(ROWS, verdicts(f=0.1), verdicts(a=0.9))


def test_the_picture_shows_every_population_and_count(found: Calibration, tmp_path: Path) -> None:
    for name in ("c.svg", "again.svg", "c.png"):
        save_chart(found, tmp_path / name)
    svg = (tmp_path / "c.svg").read_text("utf-8")
    assert svg == (tmp_path / "again.svg").read_text("utf-8")
    root = ElementTree.fromstring(svg)
    assert (root.get("width"), root.get("height")) == ("860", "410")
    words = " ".join(root.itertext())
    assert "toy 1" in words
    for text in ("pair-x", "trace", "all rows", "pairs, both right", "n = 5", "75.0 %"):
        assert text in words
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"use \.png or \.svg"):
        save_chart(found, tmp_path / "c.gif")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b"{"], r":1: not a valid LabelledRow"),
        ([b'{"label":0.4,"trajectory_id":"x"}'], r":1: label 0.4 is none of 0.1, 0.3"),
        ([b'{"label":0.5}'], r":1: the row has neither trajectory"),
        ([to_json(row("x", 0.5)), b"", to_json(row("x", 0.7))], r":3: row 'x' occurs twice"),
    ],
)
def test_bad_labels_name_their_line(tmp_path: Path, lines: list[bytes], message: str) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match=message):
        read_labels(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_labels(tmp_path / "none.jsonl")
