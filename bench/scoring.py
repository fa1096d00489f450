"""Trajectories a second on one core: outcome scoring beside a plain reference, and the judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.judging import EvidenceJudge, OutcomeScorer, StubEncoder, default_encoder
from palio.records import Problem, Trajectory
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.world import FULL, World
from palio.world.synthesis import full_config, synthesise

AGENTS = ("careful", "terse", "hasty", "narrator")
SIMILARITY = 0.9
Run = tuple[Problem, Trajectory]


def run(quick: bool) -> list[dict[str, Any]]:
    problems = 24 if quick else 90
    made = synthesise(full_config(11, products=8 * problems, problems=problems))
    world = World.build(made.catalogue, FULL)
    runs = [
        (problem, rollout(name, problem, world)) for name in AGENTS for problem in made.problems
    ]
    products = made.catalogue.products
    stub = OutcomeScorer(products, StubEncoder(SIMILARITY))
    lexical = OutcomeScorer(products, default_encoder())
    plain_products = {key: msgspec.to_builtins(one) for key, one in products.items()}
    plain = [(msgspec.to_builtins(problem), one.answer) for problem, one in runs]
    for (problem, one), (task, answer) in zip(runs, plain, strict=True):
        ours = stub.score_answer(problem, one.answer, "oro")[0]
        theirs = reference(task, answer, plain_products)
        assert all(abs(ours[key] - value) < 1e-9 for key, value in theirs.items())
    seconds = 0.3 if quick else 2.0
    judge = EvidenceJudge()

    def row(name: str, work: Callable[[], Any], target: str, **peer: Any) -> dict[str, Any]:
        speed = per_second(work, len(runs), seconds)
        return {"name": name, "palio": speed, "unit": "trajectories/s", "target": target,
                "peer": None, "peer_name": "", **peer}  # fmt: skip

    slow = per_second(
        lambda: [reference(task, answer, plain_products) for task, answer in plain],
        len(runs),
        seconds,
    )
    return [
        row("outcome, oro, stub titles", lambda: score(stub, runs, "oro"), ">= 20000",
            peer=slow, peer_name="plain reference, scores only"),
        row("outcome, strict with grounding, stub titles",
            lambda: score(stub, runs, "strict"), ">= 20000"),
        row("outcome, oro, lexical titles", lambda: score(lexical, runs, "oro"), ""),
        row("evidence judge", lambda: [judge.verdict(one) for _, one in runs], ">= 3000"),
    ]  # fmt: skip


def rollout(name: str, problem: Problem, world: World) -> Trajectory:
    """One bundled agent on one problem of the full world, in this process."""
    driver, upstream = InlineDriver(), ScriptedUpstream()
    return run_problem(find_agent(name), problem, world, driver=driver, upstream=upstream)


def score(scorer: OutcomeScorer, runs: Sequence[Run], profile: Any) -> None:
    for problem, one in runs:
        scorer.verdict(problem, one, profile)


def per_second(work: Callable[[], Any], size: int, seconds: float) -> float:
    """Best rate of `work`, which handles `size` items, over about `seconds` of one core's time.

    Processor time, since the work is one thread and other processes may hold the core.
    """
    best, end = 0.0, time.process_time() + seconds
    while time.process_time() < end:
        start = time.process_time()
        work()
        best = max(best, size / (time.process_time() - start))
    return best


def reference(task: dict[str, Any], answer: Any, products: dict[str, Any]) -> dict[str, float]:
    """The oro score dictionary written down plainly, without any preparation."""
    ids = []
    for part in answer.split(",") if isinstance(answer, str) else []:
        if part.strip() and part.strip() not in ids:
            ids.append(part.strip())
    wanted = task["rewards"]
    fields = ("product", "gt", "rule", "title", "price", "service", "sku & attrs")
    scores = dict.fromkeys(fields, 0.0)
    hits, prices, shops = 0, [], set()
    for at, reward in enumerate(wanted):
        product = products.get(ids[at]) if at < len(ids) else None
        if product is None:
            continue
        parts = rule(product, reward)
        scores["product"] += 1
        scores["gt"] += product["product_id"] == reward["product_id"]
        units = sum(total for total, _ in parts.values())
        value = sum(hit for _, hit in parts.values()) / units if units else 0.0
        if product["product_id"] == reward["product_id"]:
            value = 1.0
        scores["rule"] += value
        for field, (total, hit) in parts.items():
            scores[field] += hit / total if total else 0.0
        if value > 0:
            hits += 1
            prices.append(product["price"])
            shops.add(product["shop_id"])
    if task["kind"] == "product" and not scores["product"]:
        return {}
    scores = {field: value / len(wanted) for field, value in scores.items()}
    if task["kind"] == "shop":
        scores["shop"] = int(hits == len(wanted) and len(shops) == 1)
    if task["kind"] == "voucher":
        scores["budget"] = int(hits == len(wanted) and affordable(prices, shops, task["voucher"]))
    return scores


def rule(product: dict[str, Any], reward: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Units and hits by field."""
    truth = product["product_id"] == reward["product_id"]
    titles = reward.get("title", ())
    ranges = reward.get("price", ())
    within = [in_range(product["price"], entry) for entry in ranges]
    services = reward.get("service", ())
    attributes = {(k, v) for k, vs in product.get("attributes", {}).items() for v in vs}
    best = pairs = 0
    for sku in [{}, *product.get("sku_options", {}).values()]:
        have = attributes | set(sku.items())
        asked = [pair for option in reward.get("sku_options", ()) for pair in option.items()]
        asked += [
            (k, v) for one in reward.get("attributes", ()) for k, vs in one.items() for v in vs
        ]
        pairs = len(asked)
        best = max(best, sum(pair in have for pair in asked))
    return {
        "title": (len(titles), len(titles) if truth or SIMILARITY >= 0.7 else 0),
        "price": (len(ranges), sum(within)),
        "service": (len(services), sum(tag in product.get("service", ()) for tag in services)),
        "sku & attrs": (pairs, best),
    }


def in_range(price: float, entry: dict[str, Any]) -> bool:
    """Inclusive; only the sides that the mode names."""
    above = entry["mode"] == "less than" or price >= entry["low"]
    return above and (entry["mode"] == "greater than" or price <= entry["high"])


def affordable(prices: list[float], shops: set[str], voucher: dict[str, Any]) -> bool:
    """Whether the basket fits, before or after the voucher."""
    total = sum(prices)
    if total <= voucher["budget"]:
        return True
    if voucher["voucher_type"] == "shop" and len(shops) > 1:
        return False
    if total < voucher["threshold"]:
        return False
    if voucher["discount_type"] == "fixed":
        after = total - voucher["face_value"]
    else:
        after = total * (1 - voucher["discount"])
        if voucher.get("cap") is not None:
            after = max(after, total - voucher["cap"])
    return bool(after <= voucher["budget"])
