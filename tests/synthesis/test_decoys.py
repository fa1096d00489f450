"""Targets fit, every decoy misses exactly the one mentioned thing that it says it misses."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.records import Problem
from palio.world.synthesis import Synthesis, compact_config, full_config, synthesise
from palio.world.voucher import within_budget
from tests.synthesis.exact import mentioned, misses

WORLDS = {
    "compact": synthesise(compact_config(41)),
    "full": synthesise(full_config(42, products=4_000, problems=390)),
}


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest) -> Synthesis:
    return WORLDS[request.param]


def prices(world: Synthesis, ids: list[str]) -> list[float]:
    return [world.catalogue.products[product_id].price for product_id in ids]


def targets(problem: Problem) -> list[str]:
    return [reward.product_id for reward in problem.rewards]


def test_targets_satisfy_their_rewards_and_the_budget(world: Synthesis) -> None:
    for problem in world.problems:
        products = [world.catalogue.products[product_id] for product_id in targets(problem)]
        for product, reward in zip(products, problem.rewards, strict=True):
            assert misses(product, reward) == []
            assert reward.title == (product.title,)
            assert world.families[product.product_id] in problem.families
        shops = {product.shop_id for product in products}
        of_shop = problem.voucher is not None and problem.voucher.voucher_type == "shop"
        assert len(shops) == 1 or not (problem.kind == "shop" or of_shop)
        if problem.voucher:
            assert within_budget([p.price for p in products], problem.voucher, shops)


def test_a_decoy_misses_exactly_what_it_says(world: Synthesis) -> None:
    problems = {problem.problem_id: problem for problem in world.problems}
    for decoy in world.decoys:
        problem = problems[decoy.problem_id]
        product = world.catalogue.products[decoy.product_id]
        basket = targets(problem)
        basket[decoy.item] = decoy.product_id
        affordable = problem.voucher is None or within_budget(
            prices(world, basket), problem.voucher
        )
        found = misses(product, problem.rewards[decoy.item]) + ([] if affordable else ["budget"])
        assert world.families[decoy.product_id] == problem.families[decoy.item]
        assert decoy.violates in mentioned(problem, decoy.item)
        if decoy.violates == "shop":
            assert found == []
            home = world.catalogue.products[targets(problem)[decoy.item]].shop_id
            assert product.shop_id != home
        else:
            assert found == [decoy.violates]


def test_every_target_with_a_constraint_has_a_decoy(world: Synthesis) -> None:
    decoyed = {(decoy.problem_id, decoy.item) for decoy in world.decoys}
    for problem in world.problems:
        for item in range(len(problem.rewards)):
            if set(mentioned(problem, item)) - {"shop"}:
                assert (problem.problem_id, item) in decoyed, problem.query


def test_only_one_shop_serves_a_shop_problem_and_another_nearly_does(world: Synthesis) -> None:
    by_family = defaultdict(list)
    for product_id, family in world.families.items():
        by_family[family].append(world.catalogue.products[product_id])
    for problem in [p for p in world.problems if p.kind == "shop"]:
        serving = [
            {p.shop_id for p in by_family[family] if not misses(p, reward)}
            for family, reward in zip(problem.families, problem.rewards, strict=True)
        ]
        home = world.catalogue.products[targets(problem)[0]].shop_id
        assert set.intersection(*serving) == {home}
        assert len(serving[0]) > 1, "no shop has the first item and lacks another"


def test_ids_tell_nothing_of_the_role(world: Synthesis) -> None:
    """Targets are spread over the id order as all products are: ranks average near the middle."""
    ids = list(world.catalogue.products)
    rank = {product_id: place / len(ids) for place, product_id in enumerate(ids)}
    for chosen in (
        [t for problem in world.problems for t in targets(problem)],
        [decoy.product_id for decoy in world.decoys],
    ):
        mean = sum(rank[product_id] for product_id in chosen) / len(chosen)
        assert abs(mean - 0.5) < 4 * 0.289 / len(chosen) ** 0.5


def test_vouchers_follow_shoppingbench(world: Synthesis) -> None:
    drawn = [problem for problem in world.problems if problem.voucher]
    assert {p.voucher.discount_type for p in drawn if p.voucher} == {"fixed", "percentage"}
    for problem in drawn:
        voucher, total = problem.voucher, sum(prices(world, targets(problem)))
        assert voucher is not None
        assert total >= 100
        assert 0.1 * total - 1 <= voucher.threshold <= 0.9 * total
        if voucher.face_value is not None:
            assert 0.1 * voucher.threshold - 1 <= voucher.face_value <= 0.5 * voucher.threshold
        if voucher.discount is not None:
            assert 0.1 <= voucher.discount <= 0.5
            assert voucher.cap is not None
            assert voucher.threshold * voucher.discount < voucher.cap <= voucher.threshold
        after = voucher.price_after_voucher
        assert after is not None
        assert after <= voucher.budget <= after * 1.1 + 1


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["compact", "full"]),
    counts=st.tuples(*[st.integers(0, 6)] * 3),
)
def test_any_seed_and_composition_gives_a_sound_world(
    seed: int, kind: str, counts: tuple[int, int, int]
) -> None:
    make = compact_config if kind == "compact" else full_config
    world = synthesise(make(seed, products=450, counts=counts))
    assert len(world.catalogue) == len(world.families) == 450
    kinds = [problem.kind for problem in world.problems]
    assert [kinds.count(name) for name in ("product", "shop", "voucher")] == list(counts)
    for problem in world.problems:
        for reward in problem.rewards:
            assert misses(world.catalogue.products[reward.product_id], reward) == []
