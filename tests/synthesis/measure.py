"""Measure how hard a synthetic world is.

`python -m tests.synthesis.measure --config full --n 1000`
Prints, per kind: first hit, careful shopper (both scored with profile `oro`), and the share of
targets that the request verbatim finds among its first 50.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from palio.judging.encoders import default_encoder
from palio.judging.outcome import OutcomeScorer
from palio.world import COMPACT, FULL, Toolbox, World
from palio.world.synthesis import (
    Synthesis,
    SynthesisConfig,
    compact_config,
    full_config,
    synthesise,
)
from tests.synthesis.policies import careful, first_hit


def measured(synthesis: Synthesis, kind: str, sample: int | None = None) -> dict[str, float]:
    """Shares in [0, 1] over the problems of a kind, with their number."""
    problems = [p for p in synthesis.problems if p.kind == kind][:sample]
    config = COMPACT if synthesis.config.world == "compact" else FULL
    world = World.build(synthesis.catalogue, config)
    tools = Toolbox(world)
    scorer = OutcomeScorer(synthesis.catalogue.products, default_encoder())
    counts = {"first": 0, "careful": 0, "top50": 0, "own": 0, "reachable": 0}
    for problem in problems:
        first = ",".join(first_hit(tools, problem.query, len(problem.rewards)))
        answer = careful(tools, problem.query)
        targets = [reward.product_id for reward in problem.rewards]
        counts["first"] += scorer.score_answer(problem, first, "oro")[1]
        counts["careful"] += scorer.score_answer(problem, ",".join(answer), "oro")[1]
        counts["own"] += answer == targets
        counts["top50"] += set(targets) <= set(world.index.ranked(problem.query))
        counts["reachable"] += bool(problem.reachable)
    shares = {name: round(count / max(1, len(problems)), 4) for name, count in counts.items()}
    return {"n": len(problems), **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", choices=["compact", "full"], default="full")
    parser.add_argument("--n", type=int, default=1000, help="product problems")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make: Callable[..., SynthesisConfig] = (
        full_config if options.config == "full" else compact_config
    )
    products = 10_000 if options.config == "full" else 6_500
    plans = {"product": (options.n, 0, 0), "shop": (0, 300, 0), "voucher": (0, 0, 300)}
    for kind, counts in plans.items():
        start = time.perf_counter()
        synthesis = synthesise(make(options.seed, products=products, counts=counts))
        made = time.perf_counter() - start
        print(kind, json.dumps(measured(synthesis, kind)), f"made in {made:.1f} s", flush=True)


if __name__ == "__main__":
    main()
