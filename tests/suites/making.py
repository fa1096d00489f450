"""Problems made by hand and by hypothesis for the tests of suites and corpora."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from palio.records import PriceRange, Problem, Reward, Voucher

PUBLIC_KINDS = ("product", "shop", "voucher", "web")


def made_problem(
    name: str,
    products: tuple[str, ...] = ("7",),
    *,
    query: str = "",
    title: str = "",
    families: tuple[str, ...] = (),
    catalogue: str = "compact-1",
    **fields: Any,
) -> Problem:
    """A problem that shares nothing with another one unless a field says so."""
    return Problem(
        problem_id=name,
        kind=fields.pop("kind", "product" if len(products) == 1 else "shop"),
        query=query or f"I want the thing called {name}.",
        rewards=tuple(
            Reward(product_id=product, title=(title or f"thing {name} {product}",))
            for product in products
        ),
        families=families,
        catalogue=catalogue,
        **fields,
    )


VOUCHER = Voucher(
    voucher_type="platform", threshold=50.0, discount_type="fixed", face_value=10.0, budget=90.0
)
BETWEEN = PriceRange(mode="between", low=10.0, high=20.0)


@st.composite
def problem_sets(draw: st.DrawFn, prefix: str = "p", most: int = 12) -> tuple[Problem, ...]:
    """Problems over few products, titles, queries and families, so that they collide often."""
    count = draw(st.integers(0, most))
    some = st.sampled_from
    return tuple(
        made_problem(
            f"{prefix}{index}",
            tuple(draw(st.sets(some([str(n) for n in range(9)]), min_size=1, max_size=2))),
            query=draw(some([f"query {n}" for n in range(40)])),
            title=draw(some(["", "", "", "same title"])),
            families=tuple(draw(st.sets(some([f"family {n}" for n in range(9)]), max_size=2))),
            catalogue=draw(some(["c1", "c2", "c3"])),
        )
        for index in range(count)
    )


def public_problems(folder: Path) -> tuple[Problem, ...]:
    """The 900 public tasks, read by a reader of the tests' own (ids and texts only)."""
    found = []
    for kind in PUBLIC_KINDS:
        name = "web_simpleqa" if kind == "web" else kind
        lines = (folder / f"tasks_shoppingbench_{name}.jsonl").read_bytes().splitlines()
        for row, line in enumerate(lines):
            task = json.loads(line)
            rewards = task["reward"] if isinstance(task["reward"], list) else [task["reward"]]
            found.append(
                made_problem(
                    f"{kind}-{row}",
                    tuple(str(reward["product_id"]) for reward in rewards),
                    query=task["query"],
                    catalogue="",
                    kind=kind,
                )
            )
    return tuple(found)
