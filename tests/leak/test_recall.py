"""Planted variants are kept on one side by their texts alone; different problems are not joined."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.leak import false_pairs, recall, worlds
from bench.leak_variants import of_tasks, planted

from palio.evaluate.statistics import wilson
from palio.records import Problem
from palio.suites.files import read_any_suite

FLOOR = {"white space": 0.98, "reorder": 0.98, "paraphrase": 0.95, "voucher": 0.95}


def test_other_banks_and_other_vouchers_of_synthetic_requests_are_found() -> None:
    for kind, pairs in planted(quick=True).items():
        merged, reached, count = recall(pairs)
        assert wilson(reached, count).low >= FLOOR[kind], (kind, reached, count)
        assert merged >= 0.85 * count


def test_no_two_problems_of_synthetic_worlds_are_merged() -> None:
    strong, weak, count = false_pairs(worlds(quick=True))
    assert strong == 0
    assert weak <= 1e-4 * count


@pytest.fixture(scope="module")
def tasks(shared_data: Path) -> list[Problem]:
    found = []
    for name in ("product", "shop", "voucher", "web_simpleqa"):
        found += read_any_suite(shared_data / f"tasks_shoppingbench_{name}.jsonl")[0].problems
    return found


@pytest.mark.shared
def test_variants_of_public_tasks_are_found(tasks: list[Problem]) -> None:
    planted_pairs = of_tasks(tasks)
    for kind, floor in FLOOR.items():
        _, reached, count = recall(planted_pairs[kind])
        assert wilson(reached, count).low >= floor, (kind, reached, count)


@pytest.mark.shared
def test_different_public_tasks_are_hardly_ever_joined(tasks: list[Problem]) -> None:
    strong, weak, count = false_pairs(tasks)
    assert count == 404_550
    assert strong <= 2
    assert strong + weak <= 1e-4 * count
