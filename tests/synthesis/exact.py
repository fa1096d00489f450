"""Which constraints of a reward a product misses: written here again, apart from the generator."""

from __future__ import annotations

from palio.records import Problem, Product, Reward


def misses(product: Product, reward: Reward) -> list[str]:
    """Names in the generator's form: "trait:<name>", "service:<tag>", "price"."""
    wanted = {name: value for sku in reward.sku_options for name, value in sku.items()}
    attributes = {name: values for held in reward.attributes for name, values in held.items()}
    skus = list(product.sku_options.values()) or [{}]
    fitting = max(skus, key=lambda sku: sum(sku.get(n) == v for n, v in wanted.items()))
    found = [f"trait:{name}" for name, value in wanted.items() if fitting.get(name) != value]
    found += [
        f"trait:{name}"
        for name, values in attributes.items()
        if not set(values) <= set(product.attributes.get(name, ()))
    ]
    found += [f"service:{tag}" for tag in reward.service if tag not in product.service]
    for price in reward.price:
        low = price.low if price.low is not None else 0
        high = price.high if price.high is not None else float("inf")
        found += [] if low <= product.price <= high else ["price"]
    return found


def mentioned(problem: Problem, item: int) -> list[str]:
    """The constraints that one item's reward and the voucher hold."""
    reward = problem.rewards[item]
    names = [f"trait:{name}" for sku in reward.sku_options for name in sku]
    names += [f"trait:{name}" for held in reward.attributes for name in held]
    names += [f"service:{tag}" for tag in reward.service]
    names += ["price"] if reward.price else []
    names += ["budget"] if problem.voucher else []
    return [*names, "shop"] if len(problem.rewards) > 1 else names
