"""Real ShoppingBench requests: voucher numbers exact, prices and services right on nearly all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palio.agents.reading import read_request
from palio.records import SERVICES

pytestmark = pytest.mark.shared
Task = dict[str, Any]


def tasks(folder: Path, kind: str) -> list[Task]:
    text = (folder / f"tasks_shoppingbench_{kind}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def rewards(task: Task) -> list[Task]:
    reward = task["reward"]
    return reward if isinstance(reward, list) else [reward]


def bounds(reward: Task) -> tuple[float | None, float | None]:
    if not reward.get("price"):
        return None, None
    low, high = next(iter(reward["price"][0].values()))
    return low, high


def test_every_voucher_is_exact(shared_data: Path) -> None:
    rows = tasks(shared_data, "voucher")
    assert len(rows) == 250
    for task in rows:
        voucher, read = task["voucher"], read_request(task["query"]).voucher
        assert read is not None
        fixed = voucher["discount_type"] == "fixed"
        value = voucher["face_value"] if fixed else voucher["discount"] * 100
        assert read.value == pytest.approx(value, abs=1e-9)
        for name in ("voucher_type", "threshold", "discount_type", "budget", "cap"):
            assert getattr(read, name) == voucher[name], task["query"]


@pytest.mark.parametrize(
    ("kind", "split", "right"),
    [("product", 0.98, 0.99), ("shop", 0.85, 0.97), ("voucher", 0.75, 0.98)],
)
def test_items_prices_and_services(
    shared_data: Path, kind: str, split: float, right: float
) -> None:
    """Measured: items 98.8, 87.6, 78.0 %; of those, prices 100, 98.9, 100 %, services 100, 98.6,
    99.3 %."""
    rows = tasks(shared_data, kind)
    pairs = [(read_request(task["query"]).items, rewards(task)) for task in rows]
    same = [(items, wanted) for items, wanted in pairs if len(items) == len(wanted)]
    assert len(same) / len(pairs) >= split
    units = [unit for items, wanted in same for unit in zip(items, wanted, strict=True)]
    priced = [(item.low, item.high) == bounds(reward) for item, reward in units]
    assert sum(priced) / len(units) >= right
    served = [set(item.services) == set(reward.get("service", [])) for item, reward in units]
    assert sum(served) / len(units) >= right


def test_one_shop_is_recognised(shared_data: Path) -> None:
    assert all(read_request(task["query"]).same_shop for task in tasks(shared_data, "shop"))
    assert not any(read_request(task["query"]).same_shop for task in tasks(shared_data, "product"))


def test_search_words_find_most_real_targets(shared_data: Path) -> None:
    """The words alone hold a word of the target's title in nearly every product request."""
    rows = tasks(shared_data, "product")
    hits = 0
    for task in rows:
        title = set(task["reward"]["title"][0].lower().split())
        hits += any(word in title for word in read_request(task["query"]).items[0].words)
    assert hits / len(rows) >= 0.9


def test_services_stand_in_canonical_order(shared_data: Path) -> None:
    for task in tasks(shared_data, "shop"):
        for item in read_request(task["query"]).items:
            assert list(item.services) == [tag for tag in SERVICES if tag in item.services]
