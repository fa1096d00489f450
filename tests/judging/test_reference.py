"""evidence-v2: results spoken of as a whole, candidates named otherwise, reasons that are none."""

from __future__ import annotations

import time

import pytest

from palio.judging import EvidenceJudge
from palio.records import Event, Trajectory
from tests.judging.runs import PADDING, ROWS, SEARCH, VIEW, dispatch, think, trajectory

JUDGE = EvidenceJudge()


def quality(*events: Event, **fields: object) -> float | None:
    return JUDGE.verdict(trajectory(*events, **fields)).quality


def after_view(text: str) -> float | None:
    return quality(SEARCH, VIEW, think(f"{text} {PADDING}"))


@pytest.mark.parametrize(
    "text",
    [
        "Both of these listings seem usable.",
        "Hardly anything in this list differs.",
        "All the products shown are nearly alike.",
        "Some of the titles repeat one another.",
        "The search gave me plenty to choose between.",
        "Among the hits I saw no reason to go on.",
        "From the rows I take an upper one.",
    ],
)
def test_what_is_said_of_the_results_passes_gate_two_alone(text: str) -> None:
    assert after_view(text) == 0.5
    assert quality(think(f"{text} {PADDING}"), SEARCH, VIEW) == 0.3, "nothing had come yet"


@pytest.mark.parametrize(
    "text",
    [
        "Let me see whether the results are usable.",
        "I will go through the rows and see what is in the list.",
        "Suppose the results had been good.",
        "I studied the results in depth and with care.",
        "I compared these candidates with one another.",
        "The customer's list is long and has many items.",
        "The details of the request are clear to me.",
        "When the results come, they are compared.",
        "The seven results are all alike.",
    ],
)
def test_plans_claims_and_the_request_say_nothing_of_results(text: str) -> None:
    assert after_view(text) == 0.3


@pytest.mark.parametrize(
    "text",
    [
        "Shop 771 asks 150, shop 772 asks 180.5. I go to shop 771, which is cheaper.",
        "The first row costs 150, the second row 180.5. I prefer the first row.",
        "6093 at 150, 4821 at 180.5. The latter is pricey, so I take the former.",
        "4821? 180.5 is steep when 6093 is there for 150.",
        "6093 kostet 150, 4821 kostet 180.5. Ich nehme 6093, es ist günstiger.",
        "- 6093: 150\n- 4821: 180.5\nThe second costs more, so the first wins.",
    ],
)
def test_candidates_are_named_by_shop_place_and_in_other_languages(text: str) -> None:
    assert after_view(text) == 0.9


@pytest.mark.parametrize(
    "text",
    [
        "6093 is blue and 4821 is beige. I prefer 6093 over 4821, since blue suits better.",
        "6093 costs 180.5, 4821 costs 150. So 4821 is better than 6093 at that price.",
        "pick 4821 over 4821, because it is wool.",
        "6093 is beige. pick 4821 over 6093, because it is waterproof.",
        "4821 is blue and I prefer it to the second, whatever that is.",
        "The second row is better than 9999, which is beige.",
    ],
)
def test_swapped_values_itself_and_invented_reasons_do_not_weigh(text: str) -> None:
    assert (after_view(text) or 1) <= 0.7


def test_a_reason_that_only_a_description_holds_is_not_invented() -> None:
    view = dispatch(
        "view_product_information",
        {"product_ids": "4821"},
        [{"product_id": "4821", "description": "A waterproof one.", "attributes": {"c": ["blue"]}}],
    )
    text = "pick 4821 (180.5) over 6093 (150), because it is waterproof."
    assert quality(SEARCH, view, think(text + PADDING)) == 0.9


def test_places_are_those_of_the_result_with_the_datum() -> None:
    other = [{**row, "product_id": f"7{row['product_id']}", "price": 77} for row in ROWS]
    later = dispatch("find_product", {"q": "x", "page": 2}, other)
    text = "The first row costs 150 and the second row costs 180.5. The first row is cheaper."
    assert quality(SEARCH, later, think(text + PADDING)) == 0.9


def test_the_speed_stays_at_thousands_a_second() -> None:
    runs: list[Trajectory] = [
        trajectory(SEARCH, VIEW, think("6093 blue beige no. 4821 blue blue yes. pick 4821."))
        for _ in range(300)
    ]
    start = time.process_time()
    for run in runs:
        JUDGE.verdict(run)
    assert len(runs) / (time.process_time() - start) > 1500


def test_the_judge_says_which_version_it_is() -> None:
    assert (JUDGE.judge_id.name, JUDGE.judge_id.version) == ("evidence-v2", "2")
