"""The formulas are scikit-learn's, and intervals treat scripts, not rows, as independent."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.evaluate.calibration import (
    agreement,
    balanced_accuracy,
    confusion,
    quadratic_kappa,
)

readings = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=60)


@given(readings)
def test_kappa_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the reference of the formula")
    labels, said = zip(*pairs, strict=True)
    mine = float(quadratic_kappa(confusion(labels, said)))
    if len(set(labels)) == 1 and set(labels) == set(said):
        assert np.isnan(mine)  # nothing could have disagreed
        return
    theirs = metrics.cohen_kappa_score(labels, said, weights="quadratic", labels=range(5))
    assert mine == pytest.approx(theirs, abs=1e-12)


@given(readings)
def test_balanced_accuracy_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the reference of the formula")
    labels, said = zip(*pairs, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that only the judge has
        theirs = metrics.balanced_accuracy_score(labels, said)
    assert float(balanced_accuracy(confusion(labels, said))) == pytest.approx(theirs)


@given(readings)
def test_confusion_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the reference of the formula")
    labels, said = zip(*pairs, strict=True)
    theirs = metrics.confusion_matrix(labels, said, labels=range(5))
    assert (confusion(labels, said) == theirs).all()


def test_perfect_reversed_and_independent_readings() -> None:
    diagonal = np.diag([10] * 5)
    assert float(quadratic_kappa(diagonal)) == 1
    assert float(quadratic_kappa(diagonal[:, ::-1])) == pytest.approx(-1)
    assert float(quadratic_kappa(np.full((5, 5), 4))) == pytest.approx(0)


def test_one_formula_serves_many_tables() -> None:
    tables = np.random.default_rng(0).integers(0, 9, size=(7, 5, 5))
    assert np.allclose(quadratic_kappa(tables), [quadratic_kappa(each) for each in tables])
    assert np.allclose(balanced_accuracy(tables), [balanced_accuracy(each) for each in tables])


def test_unjudged_rows_are_counted_and_in_no_rate() -> None:
    found = agreement([0, 1, 2, 3], [0, None, 2, 2], list("abcd"))
    assert (found.n, found.unjudged) == (3, 1)
    assert found.exact.value == pytest.approx(2 / 3)
    assert found.within_one.value == 1
    assert sum(map(sum, found.confusion)) == 3


def test_rows_of_one_script_make_no_interval_narrower() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 5, 40)
    said = np.where(rng.random(40) < 0.6, labels, (labels + 1) % 5)
    one = agreement(labels.tolist(), said.tolist(), [str(n) for n in range(40)])
    copies = agreement(
        labels.repeat(10).tolist(),
        said.repeat(10).tolist(),
        [str(n) for n in range(40) for _ in range(10)],
    )
    assert copies.n == 400
    assert copies.kappa.clusters == one.kappa.clusters == 40
    assert copies.kappa.value == pytest.approx(one.kappa.value)
    width = one.kappa.high - one.kappa.low
    assert copies.kappa.high - copies.kappa.low == pytest.approx(width, rel=0.2)
    assert one.kappa.low < (one.kappa.value or 0) < one.kappa.high


def test_the_interval_covers_the_truth() -> None:
    """80 draws of 60 rows from a known judge: the nominal 95 % interval holds kappa in 88 %+."""
    rng = np.random.default_rng(2)
    mix = np.full((5, 5), 0.02) + np.diag([0.4] * 5)
    joint = mix / mix.sum()
    truth = float(quadratic_kappa(joint * 1e6))
    hits = 0
    for seed in range(80):
        cells = rng.choice(25, size=60, p=joint.ravel())
        rows = [str(n) for n in range(60)]
        found = agreement(
            (cells // 5).tolist(), (cells % 5).tolist(), rows, seed=seed, resamples=500
        )
        hits += found.kappa.low <= truth <= found.kappa.high
    assert hits >= 71


def test_constant_readings_have_no_kappa() -> None:
    found = agreement([2, 2], [2, 2], ["a", "b"])
    assert found.kappa.value is None
    assert (found.kappa.low, found.kappa.high) == (-1, 1)


def test_a_perfect_judge_is_not_certain_to_be_perfect() -> None:
    labels = [0, 1, 2, 3, 4] * 4
    found = agreement(labels, labels, [str(n) for n in range(20)])
    assert found.kappa.value == found.balanced.value == found.exact.value == 1
    assert 0.6 < found.kappa.low < 0.95
    assert 0.7 < found.balanced.low < 0.95
    assert found.kappa.high == found.balanced.high == 1
