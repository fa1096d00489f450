"""Replies are read tolerantly; what they cite is looked up; what the record refutes has failed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from palio.judging import EvidenceJudge
from palio.judging.llm.answer import UnusableError, read_answer
from palio.judging.llm.injection import packaged_bases
from palio.judging.llm.refutation import checked
from palio.judging.llm.spans import Trace
from palio.records import Message, Trajectory
from tests.judging.llm.modelserver import GATES, GOOD
from tests.judging.runs import SEARCH, VIEW, dispatch, think, trajectory

TEXT = json.dumps(GOOD)
BASES = {run.trajectory_id: run for run in packaged_bases()}
WEIGHED = "6093 is beige and cotton. I prefer 4821 over 6093, because 4821 is blue wool."


def test_the_bases_are_what_the_suite_says_they_are() -> None:
    bins = {name: EvidenceJudge().verdict(run).quality for name, run in BASES.items()}
    assert bins == {"silent": 0.1, "rhetoric": 0.3, "shape": 0.5, "one_candidate": 0.7}


@pytest.mark.parametrize(
    "reply",
    [
        TEXT,
        f"\ufeff  {TEXT}\n",
        f"```json\n{TEXT}\n```",
        f"Here you are:\n```\n{TEXT}\n```\nAnything else?",
        f'<think>perhaps {{"gates": [], "value": 0.1}}</think>\n{TEXT}',
        f"the template opened it</think>{TEXT}",
        TEXT.replace("}]", "},]").replace("}", ",}"),
        TEXT.replace("true", "True").replace("null", "None").replace("false", "False"),
        TEXT.replace("0.7", '"0.7"'),
        TEXT.replace('"step": 3', '"step": "3"'),
        f"{TEXT}\n{TEXT}",
        TEXT.replace("sold by shop 772", "</think> sold by shop 772"),
    ],
)
def test_forms_that_are_read(reply: str) -> None:
    answer = read_answer(reply)
    assert answer.value == 0.7
    assert [gate.passed for gate in answer.gates] == [True, True, True, False]
    assert answer.gates[2].data == ("772",)
    assert answer.gates[1].step == 3


def altered(**fields: Any) -> str:
    return json.dumps({**GOOD, **fields})


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (None, "null_reply"),
        ("", "empty_reply"),
        ("0.9", "unreadable_reply"),
        ("[]", "unreadable_reply"),
        ("<think>" + TEXT, "unreadable_reply"),
        (TEXT[:-30], "unreadable_reply"),
        (TEXT + altered(value=0.9), "unreadable_reply"),
        (altered(value=True), "unreadable_reply"),
        (altered(value=float("nan")), "out_of_bin"),
        (altered(value=0.71), "out_of_bin"),
        (altered(value=-0.1), "out_of_bin"),
        (altered(gates=[]), "unreadable_reply"),
        (altered(gates=["yes"]), "unreadable_reply"),
        (altered(gates=[*GATES[:3]]), "inconsistent"),
        (altered(gates=[GATES[1], GATES[0]]), "inconsistent"),
        ("{" * 5000, "unreadable_reply"),
    ],
)
def test_forms_that_are_no_verdict(reply: str | None, reason: str) -> None:
    with pytest.raises(UnusableError) as caught:
        read_answer(reply)
    assert caught.value.reason == (reason if reply != "<think>" + TEXT else caught.value.reason)


def run_of(*thoughts: str, **fields: Any) -> Trajectory:
    return trajectory(SEARCH, VIEW, *(think(text) for text in thoughts), **fields)


def ask(run: Trajectory, *gates: dict[str, Any], value: float | None = None) -> Any:
    """The checked answer in which the given gates are passed and the next one failed."""
    answered = [
        {"gate": at, "passed": True, "step": 2, "quote": "", "data": [], **gate}
        for at, gate in enumerate(gates, start=1)
    ]
    if len(answered) < 4:
        answered.append({"gate": len(answered) + 1, "passed": False})
    bins = (0.1, 0.3, 0.5, 0.7, 0.9)
    body = {"gates": answered, "value": value or bins[len(gates)], "explanation": ""}
    return checked(read_answer(json.dumps(body)), Trace(run))


FINE = {"quote": WEIGHED, "data": ["6093", "4821", "wool"]}


def test_a_full_answer_holds() -> None:
    found = ask(run_of(WEIGHED), {}, FINE, FINE, FINE)
    assert found.quality == 0.9
    assert not found.overruled


@pytest.mark.parametrize(
    "quote",
    [
        "I PREFER 4821   over\n6093",
        "i prefer 4821 over 6093, because 4821 is blue",
        "I prefer\u200b 4821 over 6093",
        "\uff29 prefer 4821 over 6093",
        "I prefer ... because 4821 is blue wool",
        "\u201cI prefer 4821 over 6093\u201d",
        "I prefer \\u{34}821 over 6093",
    ],
)
def test_quotes_match_over_space_case_punctuation_and_unicode_forms(quote: str) -> None:
    found = ask(run_of(WEIGHED), {}, FINE, {**FINE, "quote": quote})
    assert found.quality == 0.7, found.overruled


@pytest.mark.parametrize(
    "quote", ["I prefer 482", "prefer 6093 over 4821", "4821", "", "because ... I prefer"]
)
def test_other_words_other_order_or_almost_none_do_not_match(quote: str) -> None:
    found = ask(run_of(WEIGHED), {}, FINE, {**FINE, "quote": quote})
    assert found.quality == 0.5
    assert [one.reason for one in found.overruled] == ["span_absent"]


def test_a_quote_in_another_step_is_found_there_and_said() -> None:
    found = ask(run_of("nothing here", WEIGHED), {}, FINE)
    assert found.quality == 0.5
    assert found.gates[1].event_seq == 3
    assert found.notes == ("gate 2: the quote stands in step 3",)


REFUTED: dict[str, tuple[Trajectory, list[dict[str, Any]], str, float]] = {
    "no inference of 30 tokens": (
        trajectory(SEARCH, think("4821.", tool_calls=())), [{}, FINE], "no_inference", 0.1,
    ),
    "thinking before any result": (
        trajectory(think(WEIGHED), SEARCH), [{}, {**FINE, "step": 0}], "no_result", 0.3,
    ),
    "rhetoric": (
        run_of("I analysed everything with the greatest care."),
        [{}, {"quote": "I analysed everything with the greatest care", "data": ["care"]}],
        "no_reference", 0.3,
    ),
    "a datum that no result holds": (
        run_of("Shop 999 sells it for 77.25, which is cheap."),
        [{}, {"quote": "4821", "data": []}, {}], "span_absent", 0.3,
    ),
    "an invented price": (
        run_of("The search gave two results. One costs 77.25, which is cheap."),
        [{}, {"quote": "The search gave two results"},
         {"quote": "One costs 77.25, which is cheap", "data": ["77.25"]}],
        "datum_absent", 0.5,
    ),
    "a datum of the request": (
        run_of("The search gave two results. Blue wool it is."),
        [{}, {"quote": "The search gave two results"},
         {"quote": "Blue wool it is", "data": ["blue", "wool"]}],
        "datum_unnamed", 0.5,
    ),
    "a datum that the thinking does not name": (
        run_of("The search gave two results. The first one looks right."),
        [{}, {"quote": "The search gave two results"},
         {"quote": "The first one looks right", "data": ["Vilo Nord Scarf", "150"]}],
        "datum_unnamed", 0.5,
    ),
    "one candidate": (
        run_of("4821 costs 180.5 and is sold by shop 772."),
        [{}, *[{"quote": "4821 costs 180.5", "data": ["4821", "180.5"]}] * 3],
        "candidates_absent", 0.7,
    ),
    "candidates that were never shown": (
        run_of("4821 costs 180.5, so it is better than 7777."),
        [{}, *[{"quote": "4821 costs 180.5", "data": ["4821", "7777"]}] * 3],
        "candidates_absent", 0.7,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUTED)
def test_the_record_overrules_and_says_which_gate_and_why(name: str) -> None:
    run, gates, reason, quality = REFUTED[name]
    found = ask(run, *gates)
    assert found.quality == quality
    (overruling,) = found.overruled
    assert overruling.reason == reason
    assert len(overruling.why) > 20
    assert found.gates[-1].gate == overruling.gate
    assert not found.gates[-1].passed


def test_words_copied_from_a_prompt_are_not_the_models_own() -> None:
    run = trajectory(SEARCH, VIEW, think(WEIGHED, prompt=f"Repeat this: {WEIGHED}"))
    found = ask(run, {}, FINE, FINE, FINE)
    assert found.quality == 0.3
    assert found.overruled[0].reason == "span_absent"


def test_rationalised_thinking_is_not_there() -> None:
    found = ask(trajectory(SEARCH, VIEW, think(WEIGHED, rationalised=True)), {}, FINE)
    assert found.overruled[0].reason == "span_absent"


def test_of_a_value_and_gates_that_differ_the_lower_counts() -> None:
    high = ask(run_of(WEIGHED), {}, FINE, value=0.9)
    assert high.quality == 0.5
    low = ask(run_of(WEIGHED), {}, FINE, FINE, FINE, value=0.3)
    assert low.quality == 0.3
    assert "is not what its gates give" in high.notes[0]


def test_a_datum_may_be_cited_with_the_name_of_its_field() -> None:
    run = run_of("The blue one of shop 772 costs 180.5.")
    quote = {"quote": "shop 772 costs 180.5"}
    for datum in ('"price": 180.5', "price 180.50", "180.5", "shop_id: 772"):
        found = ask(run, {}, {**quote, "data": [datum]}, {**quote, "data": [datum]})
        assert found.quality == 0.7, (datum, found.overruled)


def test_a_result_that_came_later_shows_nothing() -> None:
    later = dispatch("find_product", {"q": "x"}, [{"product_id": "9", "price": 512.25}])
    run = trajectory(SEARCH, think("One costs 512.25 here."), later)
    gates = [{}, *[{"step": 1, "quote": "One costs 512.25", "data": ["512.25"]}] * 2]
    assert ask(run, *gates).quality == 0.3
    sooner = trajectory(SEARCH, later, think("One costs 512.25 here."))
    assert ask(sooner, *gates).quality == 0.7


def test_gate_one_is_counted_from_what_was_written() -> None:
    run = BASES["silent"]
    assert Trace(run).long is None
    grown = msgspec.structs.replace(
        run.events[-2], completion=Message(role="assistant", reasoning_content="word " * 24)
    )
    events = (*run.events[:-2], grown, run.events[-1])
    assert Trace(msgspec.structs.replace(run, events=events)).long == 3
