"""Reading never fails and never invents: any text gives a request with an item."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from palio.agents.reading import WantedVoucher, read_request

PIECES = st.sampled_from(
    ["(1)", "first,", "; ", ". ", "also", "both", "between", "100", "and", "₱", "lazmall", "under",
     "shop", "same", "blue", "mug", "Mug", "1,000", "pesos", "-", "\n", "'"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=25).map(" ".join)))
@example("")
@example("   ")
@example("(1) (2) (3)")
def test_any_text_is_read(text: str) -> None:
    wanted = read_request(text)
    assert len(wanted.items) >= 1
    for item in wanted.items:
        assert item.low is None or item.high is None or item.low <= item.high


def test_english_price_phrases() -> None:
    read = {
        "Looking for a mug from 88 to 99 pesos.": (88, 99),
        "Looking for a mug that costs over 1,175 PHP": (1175, None),
        "Show me mugs, price range of 90 to 279 pesos": (90, 279),
        "A mug for no more than ₱250 please": (None, 250),
        "A mug priced at least P30": (30, None),
        "A 500 ml mug with power usage between 1 and 500": (None, None),
        "i want a mug under 300": (None, 300),
    }
    for text, bounds in read.items():
        item = read_request(text).items[0]
        assert (item.low, item.high) == bounds, text


def test_a_clause_without_a_name_belongs_to_the_item_before() -> None:
    wanted = read_request("Find a white polo shirt and also with free shipping.")
    assert len(wanted.items) == 1
    assert wanted.items[0].services == ("freeShipping",)
    assert wanted.items[0].values == (("color_family", "white"),)


def test_a_voucher_in_running_text() -> None:
    text = (
        "i want a mug by zora. my budget is 90 and i have a voucher: a 20 percent discount capped "
        "at 30 when the total exceeds 70."
    )
    assert read_request(text).voucher == WantedVoucher(
        voucher_type="platform",
        threshold=70.0,
        discount_type="percentage",
        value=20.0,
        budget=90.0,
        cap=30.0,
    )
    assert read_request(text).items[0].words == ("zora", "mug")
