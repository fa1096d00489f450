"""Pictures of plans name what they show."""

from __future__ import annotations

import msgspec

from palio.evaluate.experiment.analysis import analyse
from palio.evaluate.experiment.pictures import headroom_chart, overview_chart
from tests.experiment.test_analysis import PLAN, first, run


def test_the_legend_does_not_hang_on_the_first_arm() -> None:
    plan = msgspec.structs.replace(PLAN, samples=8, sampled=20)
    bare = run("a", 0, first(5))
    sampled = msgspec.structs.replace(
        run("b", 0, first(9)), pass_at={"1": 0.4, "8": 0.7}, sampled=20
    )
    text = headroom_chart(plan, [bare, sampled], 1.0)
    assert text.count(">pass@1<") == text.count(">pass@8<") == 1
    assert ">pass@1<" not in headroom_chart(plan, [bare], 1.0)


def test_the_interval_of_two_seeds_is_grey() -> None:
    def dark(seeds: int) -> int:
        arms = (("a", 15), ("b", 8), ("c", 8))
        runs = [run(arm, seed, first(n + seed)) for arm, n in arms for seed in range(seeds)]
        runs[0] = run("a", 0, first(14))
        return overview_chart([PLAN], [analyse(PLAN, runs)]).count("stroke: var(--ink")

    assert dark(3) == dark(2) + 1 > 1, "the interval; the mean is dark in both"
