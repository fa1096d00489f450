"""One voucher arithmetic: the scorer's formula from the task record, and the tool's form of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.records import InputError, Voucher
from palio.world.catalogue import read_catalogue
from palio.world.importing import import_suite
from palio.world.voucher import (
    apply_discount,
    qualifies,
    total_after,
    voucher_total,
    within_budget,
)


def voucher(**changes: Any) -> Voucher:
    plain: dict[str, Any] = {
        "voucher_type": "platform",
        "threshold": 100.0,
        "discount_type": "fixed",
        "face_value": 30.0,
        "budget": 90.0,
    }
    return Voucher(**{**plain, **changes})


PERCENT = voucher(discount_type="percentage", face_value=None, discount=0.5, cap=20.0)


class TestScorer:
    def test_threshold_is_inclusive(self) -> None:
        assert voucher_total([60, 40], voucher()) == 70
        assert voucher_total([60, 39.5], voucher()) == 99.5

    def test_a_percentage_is_capped(self) -> None:
        assert voucher_total([100], PERCENT) == 80
        assert voucher_total([100], voucher(**_percent(cap=None))) == 50

    def test_a_shop_voucher_wants_one_shop(self) -> None:
        shop = voucher(voucher_type="shop")
        assert voucher_total([60, 60], shop, ["a", "a"]) == 90
        assert voucher_total([60, 60], shop, ["a", "b"]) == 120
        assert qualifies(voucher(), 120, ["a", "b"])

    def test_budget_with_or_without_the_voucher(self) -> None:
        assert within_budget([90], voucher())
        assert within_budget([120], voucher())
        assert not within_budget([95], voucher())
        assert not within_budget([121], voucher())

    def test_a_voucher_without_its_number_is_refused(self) -> None:
        with pytest.raises(InputError):
            total_after(voucher(face_value=None), 100)


def _percent(**changes: Any) -> dict[str, Any]:
    return {"discount_type": "percentage", "face_value": None, "discount": 0.5, **changes}


class TestTool:
    def test_per_cent_and_cap(self) -> None:
        capped = apply_discount([100, 50], "percentage", 34, threshold=150, cap=40)
        assert (capped.total_after, capped.discount, capped.applied) == (110, 40, True)
        assert apply_discount([100, 50], "percentage", 34).total_after == pytest.approx(99)
        assert apply_discount([100], "fixed", 30, threshold=100.01).applied is False

    def test_a_total_never_falls_below_zero(self) -> None:
        assert apply_discount([10], "fixed", 30).total_after == 0

    @given(
        st.lists(st.floats(0, 1e6), min_size=1, max_size=5),
        st.floats(1, 100),
        st.floats(0, 1e6),
        st.floats(0.01, 1e6),
    )
    def test_both_forms_agree(
        self, prices: list[float], per_cent: float, threshold: float, cap: float
    ) -> None:
        record = voucher(**_percent(discount=per_cent / 100, cap=cap, threshold=threshold))
        tool = apply_discount(prices, "percentage", per_cent, threshold=threshold, cap=cap)
        assert tool.total_after == pytest.approx(max(0.0, voucher_total(prices, record)))
        assert tool.total_after <= tool.total_before


@pytest.mark.shared
def test_real_vouchers_bring_their_targets_under_the_budget(shared_data: Path) -> None:
    suite, _ = import_suite(shared_data / "tasks_shoppingbench_voucher.jsonl")
    products = read_catalogue(shared_data / "products_real.jsonl")[0].products
    for problem in suite.problems:
        targets = [products[reward.product_id] for reward in problem.rewards]
        shops = {target.shop_id for target in targets}
        assert problem.voucher is not None
        assert within_budget([t.price for t in targets], problem.voucher, shops), problem.problem_id
