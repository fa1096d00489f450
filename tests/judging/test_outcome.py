from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from palio.judging import OutcomeScorer, PrecomputedEncoder, StubEncoder, answer_ids
from palio.records import ConfigError, Ending, FaultCode, Product, Profile
from tests.judging.runs import (
    answered,
    dispatch,
    fault,
    problem,
    product,
    ranged,
    reward,
    trajectory,
    voucher,
)

A = product("a", price=80.0)
B = product("b", price=70.0)
C = product("c", shop_id="s2", price=70.0)
SHOP = {one.product_id: one for one in (A, B, C)}
BOTH: tuple[Profile, ...] = ("upstream", "oro")
ZEROS = dict.fromkeys(("product", "gt", "rule", "title", "price", "service", "sku & attrs"), 0.0)


def scorer(similarity: float = 1.0) -> OutcomeScorer:
    return OutcomeScorer(SHOP, StubEncoder(similarity))


@pytest.mark.parametrize(
    ("answer", "upstream", "oro", "strict"),
    [
        ("a", ["a"], ["a"], ["a"]),
        (" a, b", [" a", " b"], ["a", "b"], ["a", "b"]),
        ("a,,a,b,", ["a", "", "a", "b", ""], ["a", "b"], ["a", "b"]),
        ("", [""], [], []),
        (["a", " b"], [], [], ["a", "b"]),
        ([12, "b"], [], [], ["12", "b"]),
        (["a,b"], [], [], ["a", "b"]),
        (12, [], [], ["12"]),
        (True, [], [], []),
        (None, [], [], []),
        ({"ids": "a"}, [], [], []),
        ([["a"], {"x": 1}], [], [], []),
        (1.5, [], [], []),
    ],
)
def test_answers_are_read_as_each_profile_reads_them(
    answer: Any, upstream: list[str], oro: list[str], strict: list[str]
) -> None:
    assert answer_ids(answer, "upstream") == upstream
    assert answer_ids(answer, "oro") == oro
    assert answer_ids(answer, "strict") == strict


def test_a_product_task_looks_at_the_first_id_alone() -> None:
    task = problem("product", reward("a"))
    for profile in BOTH:
        assert scorer().score_answer(task, "a,zzz", profile)[1]
        assert scorer().score_answer(task, "zzz,a", profile) == ({}, False)
        assert scorer().score_answer(task, ["a"], profile) == ({}, False)
    assert scorer().score_answer(task, ",a", "upstream") == ({}, False)
    assert scorer().score_answer(task, ",a", "oro")[1]


@pytest.mark.parametrize("kind", ["shop", "voucher"])
def test_other_kinds_without_an_answer_have_every_key_at_zero(kind: str) -> None:
    task = problem(kind, reward("a"), reward("b"), voucher=voucher())
    key = {"shop": "shop", "voucher": "budget"}[kind]
    for profile in BOTH:
        for answer in (None, "", "zzz", ["a", "b"]):
            assert scorer().score_answer(task, answer, profile) == ({**ZEROS, key: 0}, False)


def test_a_field_without_a_unit_scores_one_upstream_and_zero_in_oro() -> None:
    task = problem("shop", reward("a"), reward("x", title=("t",)))
    upstream, _ = scorer(0.6).score_answer(task, "a,b", "upstream")
    assert upstream == {
        "product": 1, "gt": 0.5, "rule": 1, "title": 1, "price": 1, "service": 1,
        "sku & attrs": 1, "shop": 1,
    }  # fmt: skip
    oro, success = scorer(0.6).score_answer(task, "a,b", "oro")
    assert oro == {
        "product": 1, "gt": 0.5, "rule": 0.5, "title": 0.5, "price": 0, "service": 0,
        "sku & attrs": 0, "shop": 0,
    }  # fmt: skip
    assert not success


def test_a_hit_is_any_existing_product_upstream_and_a_positive_rule_in_oro() -> None:
    task = problem("shop", reward("a"), reward("x", title=("t",)))
    assert scorer(0.1).score_answer(task, "a,b", "upstream")[0]["shop"] == 1
    assert scorer(0.1).score_answer(task, "a,b", "oro")[0]["shop"] == 0
    assert scorer(0.1).score_answer(task, "a,c", "upstream")[0]["shop"] == 0, "two shops"


def test_an_unresolved_first_id_leaves_the_second_position() -> None:
    task = problem("shop", reward("a"), reward("b"))
    for profile in BOTH:
        scores, _ = scorer().score_answer(task, "zzz,b", profile)
        assert (scores["product"], scores["gt"], scores["rule"], scores["shop"]) == (
            0.5,
            0.5,
            0.5,
            0,
        )


def test_extra_ids_change_nothing_but_under_strict() -> None:
    task = problem("voucher", reward("a"), voucher=voucher(budget=80.0))
    for profile in BOTH:
        assert scorer().score_answer(task, "a,b,c", profile)[1]
    assert not scorer().score_answer(task, "a,b,c", "strict")[1]
    assert scorer().score_answer(task, ["a"], "strict")[1]


HALF = {"discount_type": "percentage", "face_value": None, "discount": 0.5}


@pytest.mark.parametrize(
    ("fields", "answer", "fits"),
    [
        ({"budget": 150.0, "threshold": 1e9}, "a,b", 1),  # fits without the voucher
        ({"budget": 149.99, "threshold": 150.0}, "a,b", 1),  # the threshold is inclusive
        ({"budget": 149.99, "threshold": 150.01}, "a,b", 0),
        ({"budget": 100.0}, "a,b", 1),  # 150 - 50 = 100, inclusive
        ({"budget": 99.99}, "a,b", 0),
        ({"budget": 100.0, "voucher_type": "shop"}, "a,b", 1),
        ({"budget": 100.0, "voucher_type": "shop"}, "a,c", 0),  # across two shops
        ({"budget": 100.0}, "a,c", 1),  # a platform voucher does not mind
        ({**HALF, "budget": 75.0}, "a,b", 1),
        ({**HALF, "budget": 75.0, "cap": 75.0}, "a,b", 1),
        ({**HALF, "budget": 75.0, "cap": 74.0}, "a,b", 0),
        ({"budget": 1000.0}, "a", 0),  # an item is missing
    ],
)  # fmt: skip
def test_the_voucher_rule(fields: dict[str, Any], answer: str, fits: int) -> None:
    second = "c" if "c" in answer else "b"
    task = problem("voucher", reward("a"), reward(second), voucher=voucher(**fields))
    for profile in BOTH:
        assert scorer().score_answer(task, answer, profile)[0]["budget"] == fits


def test_web_is_half_fact_half_title() -> None:
    shop = {"v": product("v", title="Violin Bow", description="horsetail"), "w": product("w")}
    task = problem("web", reward("truth", title=("Some Violin Bow",)), knowledge="VIOLIN")
    near = OutcomeScorer(shop, StubEncoder(0.8))
    far = OutcomeScorer(shop, StubEncoder(0.79))
    assert near.score_answer(task, "v", "upstream")[0]["rule"] == 1
    assert near.score_answer(task, "v", "upstream")[1]
    assert far.score_answer(task, "v", "oro")[0]["web"] == 0.5
    assert far.score_answer(task, "w", "oro") == (
        {"product": 1, "gt": 0, "rule": 0, "title": 0, "keyword": 0, "web": 0}, False,
    )  # fmt: skip
    truth = problem("web", reward("w", title=("Other",)), knowledge="nowhere")
    assert far.score_answer(truth, "w", "upstream")[1]
    assert far.score_answer(truth, "gone", "upstream")[0]["web"] == 0


ROWS = [{"product_id": "a", "title": "t"}, {"product_id": "b", "title": "t"}]
FOUND = dispatch("find_product", {"q": "t"}, ROWS)


def test_strict_accepts_a_grounded_terminated_answer() -> None:
    task = problem("shop", reward("a"), reward("b"))
    for answer in ("a, b", ["a", "b"]):
        verdict = scorer().verdict(task, answered(answer, FOUND), "strict")
        assert verdict.success
        assert verdict.notes == ()
        assert verdict.encoder == "stub-1"


def strict(task: Any, *events: Any, answer: Any = "a", **fields: Any) -> tuple[bool, str]:
    verdict = scorer().verdict(task, answered(answer, *events, **fields), "strict")
    assert verdict.status == "scored"
    return verdict.success, " ".join(verdict.notes)


def test_strict_says_why_it_refuses() -> None:
    task = problem("product", reward("a"))
    assert strict(task, FOUND) == (True, "")
    assert "extra ids: 2" in strict(task, FOUND, answer="a,b")[1]
    assert "not terminated" in strict(task, FOUND, ending=Ending.returned)[1]
    assert "no such product: zzz" in strict(task, FOUND, answer="zzz")[1]
    assert "no answer" in strict(task, FOUND, answer=None)[1]
    assert "ungrounded id" in strict(task)[1]
    for profile in BOTH:
        assert scorer().verdict(task, answered("a"), profile).success


@pytest.mark.parametrize(
    ("tool", "result"),
    [
        ("recommend_product", {"product_id": "a"}),
        ("calculate_voucher", {"product_id": "a"}),
        ("find_product", [{"product_id": "ab"}, {"product_id": "xa"}]),
        ("find_product", [{"title": "a"}, {"shop_id": "a"}]),
        ("find_product", [{"title": '"product_id":"a"'}]),
        ("find_product", "not json but a"),
    ],
)
def test_an_id_is_grounded_only_as_a_product_id(tool: str, result: Any) -> None:
    assert not strict(problem("product", reward("a")), dispatch(tool, {}, result))[0]


def test_grounding_must_come_before_the_last_recommendation_and_without_error() -> None:
    task = problem("product", reward("a"))
    first = dispatch("recommend_product", {"product_ids": "a"}, {})
    assert not scorer().verdict(task, trajectory(first, FOUND, answer="a"), "strict").success
    assert not strict(task, dispatch("find_product", {}, ROWS, error="broke"))[0]
    assert strict(task, dispatch("find_product", {}, '[{"product_id" : "a"}]'))[0]
    numbers = OutcomeScorer({"17": product("17")}, StubEncoder())
    run = answered("17", dispatch("find_product", {}, '[{"product_id":17,"x":1}]'))
    assert numbers.verdict(problem("product", reward("17")), run, "strict").success


@pytest.mark.parametrize("code", [2001, 2003, 3001, 3005, 3006])
def test_infrastructure_is_unscored_not_zero(code: int) -> None:
    run = answered("a", FOUND, fault=fault(code), ending=Ending.infra)
    for profile in ("upstream", "oro", "strict"):
        verdict = scorer().verdict(problem("product", reward("a")), run, profile)  # type: ignore[arg-type]
        assert verdict.status == "unscored"
        assert verdict.fault == fault(code)
        assert verdict.scores == {}
        assert not verdict.success


def test_an_infra_ending_without_a_fault_is_unscored_too() -> None:
    verdict = scorer().verdict(problem(), trajectory(ending=Ending.infra), "oro")
    assert verdict.fault is not None
    assert verdict.fault.code == FaultCode.run_interrupted


@pytest.mark.parametrize(
    "fields",
    [
        {"fault": fault(1001), "ending": Ending.crashed},
        {"fault": fault(1006)},
        {"ending": Ending.crashed},
        {"ending": Ending.timed_out},
        {"ending": Ending.invalid},
    ],
)
def test_the_agents_own_failure_scores_zeros(fields: dict[str, Any]) -> None:
    verdict = scorer().verdict(
        problem("product", reward("a")), answered("a", FOUND, **fields), "oro"
    )
    assert verdict.status == "scored"
    assert verdict.scores == ZEROS
    assert not verdict.success
    assert verdict.notes


class Flaky(Mapping[str, Product]):
    """A catalogue store that is down, then up."""

    def __init__(self) -> None:
        self.down = True

    def __getitem__(self, key: str) -> Product:
        if self.down:
            raise OSError("connection refused")
        return SHOP[key]

    def __iter__(self) -> Iterator[str]:
        return iter(SHOP)

    def __len__(self) -> int:
        return len(SHOP)


def test_a_failed_lookup_is_unscored_and_never_remembered() -> None:
    store = Flaky()
    judge = OutcomeScorer(store, StubEncoder())
    task, run = problem("product", reward("a")), answered("a", FOUND)
    verdict = judge.verdict(task, run, "upstream")
    assert verdict.status == "unscored"
    assert verdict.fault is not None
    assert verdict.fault.code == FaultCode.catalogue_unavailable
    store.down = False
    assert judge.verdict(task, run, "upstream").success


def test_a_title_without_a_vector_is_unscored_never_dropped() -> None:
    encoder = PrecomputedEncoder({"Vilo Breeze Scarf": (1.0, 0.0)}, "pre")
    shop = {"a": product("a", title="unknown title", price=1.0), "b": product("b")}
    judge = OutcomeScorer(shop, encoder)
    task = problem("product", reward("x", price=(ranged("less than", None, 5.0),)))
    verdict = judge.verdict(task, answered("a", FOUND), "oro")
    assert verdict.status == "unscored"
    assert verdict.fault is not None
    assert verdict.fault.code == FaultCode.scorer_unavailable
    assert verdict.fault.remedy
    assert judge.verdict(task, answered("b", FOUND), "oro").status == "scored"
    truth = problem("product", reward("a"))
    assert judge.verdict(truth, answered("a", FOUND), "oro").success, "the truth needs no vector"


def test_no_encoder_no_scoring() -> None:
    with pytest.raises(ConfigError, match="never drops the title term"):
        OutcomeScorer(SHOP, None)


def test_the_judge_identity_changes_with_the_encoder() -> None:
    one = scorer(0.5).verdict(problem(), trajectory(), "oro").judge
    two = scorer(0.6).verdict(problem(), trajectory(), "oro").judge
    assert one.config_digest != two.config_digest
