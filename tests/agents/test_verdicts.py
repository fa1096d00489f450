from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from palio.agents.scripted.verdicts import compare, coverage, verdict

WORDS = st.text(alphabet="abcdefgh", min_size=1, max_size=5)


def test_a_verdict_puts_wanted_beside_seen_and_stops_at_the_first_no():
    row = {"attributes": {"color": ["beige"], "material": ["wool"]}}
    checks = compare([("color", "blue"), ("material", "wool")], row)
    assert verdict("6093", checks) == "6093 blue beige no."
    row = {"attributes": {"color": ["blue"], "material": ["wool"]}}
    checks = compare([("color", "blue"), ("material", "wool")], row)
    assert verdict("4821", checks) == "4821 blue blue yes wool wool yes."


def test_values_of_different_skus_do_not_add_up():
    row = {
        "sku_options": {
            "1": {"color_family": "red", "size": "xl"},
            "2": {"color_family": "blue", "size": "m"},
        }
    }
    wanted = [("color_family", "blue"), ("size", "xl")]
    assert [check.ok for check in compare(wanted, row)].count(True) == 1
    assert all(c.ok for c in compare([("color_family", "blue"), ("size", "m")], row))


def test_an_sku_and_the_attributes_add_up():
    row = {"sku_options": {"1": {"color_family": "blue"}}, "attributes": {"material": ["wool"]}}
    assert all(c.ok for c in compare([("color_family", "blue"), ("material", "wool")], row))


def test_a_value_without_a_name_is_looked_for_everywhere():
    row = {"sku_options": {"1": {"different": "button blue"}}, "attributes": {"brand": ["hosport"]}}
    assert [c.ok for c in compare([("", "hosport"), ("", "Button Blue")], row)] == [True, True]
    assert compare([("", "pink")], row)[0].seen == "none"


def test_a_product_without_details_fails_every_check():
    assert [c.ok for c in compare([("color", "blue")], {})] == [False]
    assert compare([], {}) == []


def test_coverage_ignores_case_order_and_plural():
    assert coverage(["acme", "lamps"], "Lamp ACME pro") == 1
    assert coverage(["acme", "lamp"], "acme mug") == 0.5
    assert coverage([], "anything") == 1


@given(st.lists(WORDS, min_size=1, max_size=5), st.lists(WORDS, max_size=5))
def test_coverage_is_a_share_and_full_when_the_title_holds_the_words(words, extra):
    assert 0 <= coverage(words, " ".join(extra)) <= 1
    assert coverage(words, " ".join([*extra, *words])) == 1


@given(st.dictionaries(WORDS, st.lists(WORDS, min_size=1, max_size=3), max_size=4))
def test_what_a_product_holds_passes_and_is_shown_as_seen(attributes):
    wanted = [(name, values[0]) for name, values in attributes.items()]
    checks = compare(wanted, {"attributes": attributes})
    assert all(check.ok and check.seen == check.wanted for check in checks)
