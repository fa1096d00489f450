"""The reader inverts every paraphrase bank exactly, for thousands of generated requests."""

from __future__ import annotations

import pytest

from palio.agents.reading import read_request
from palio.records import Problem
from palio.world.synthesis import compact_config, full_config, synthesise
from palio.world.synthesis.wording import banks_for, load_banks
from tests.reading.expected import problem_voucher, read_constraints, reward_constraints

ASKED = ("named", "measuring")
"""Uses of banks that worlds draw from only where they are named."""

COMPACT = [
    problem for seed in range(20, 27) for problem in synthesise(compact_config(seed)).problems
]
FULL = [
    problem
    for seed in range(30, 33)
    for problem in synthesise(full_config(seed, products=6_000, problems=500)).problems
]
SPECIAL = [
    problem
    for config in (
        compact_config(27, products=5_000, problems=900, banks=banks_for("compact", *ASKED)),
        full_config(33, products=3_000, problems=300, banks=banks_for("full", *ASKED)),
    )
    for problem in synthesise(config).problems
]
EACH = pytest.mark.parametrize(
    "problems", [COMPACT, FULL, SPECIAL], ids=["compact", "full", "special"]
)


@pytest.mark.parametrize(
    ("problems", "count"),
    [(COMPACT, 2_000), (FULL, 1_500), (SPECIAL, 1_200)],
    ids=["compact", "full", "special"],
)
def test_constraints_read_equal_constraints_rewarded(problems: list[Problem], count: int) -> None:
    assert len(problems) >= count
    for problem in problems:
        wanted = read_request(problem.query)
        read = [read_constraints(item) for item in wanted.items]
        assert read == [reward_constraints(r) for r in problem.rewards], problem.query
        assert wanted.voucher == problem_voucher(problem), problem.query


@EACH
def test_words_are_title_words_and_name_the_type(problems: list[Problem]) -> None:
    for problem in problems:
        for item, reward, family in zip(
            read_request(problem.query).items, problem.rewards, problem.families, strict=True
        ):
            title = reward.title[0].lower().split()
            assert set(item.words) <= set(title), (problem.query, item.words, title)
            brand, line, *kind = family.split()
            assert set(kind) <= set(item.words)
            assert brand in item.words or line in item.words


@EACH
def test_one_shop_is_asked_for_by_shop_problems_and_shop_vouchers_only(
    problems: list[Problem],
) -> None:
    for problem in problems:
        of_shop = problem.voucher is not None and problem.voucher.voucher_type == "shop"
        assert read_request(problem.query).same_shop == (problem.kind == "shop" or of_shop), (
            problem.query
        )


def test_every_bank_was_read() -> None:
    read = {p.bank for p in (*COMPACT, *FULL, *SPECIAL)}
    assert read == {bank.id for world in ("compact", "full") for bank in load_banks(world)}


def test_a_price_before_the_word_in_is_no_length() -> None:
    item = read_request("a tiny grela clock cheaper than 204 in blue.").items[0]
    assert (item.high, item.words) == (204.0, ("grela", "clock"))
