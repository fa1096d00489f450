"""Pictures of plans name what they show."""

from __future__ import annotations

import msgspec

from palio.evaluate.experiment.pictures import headroom_chart
from tests.experiment.test_analysis import PLAN, first, run


def test_the_legend_does_not_hang_on_the_first_arm() -> None:
    plan = msgspec.structs.replace(PLAN, samples=8, sampled=20)
    bare = run("a", 0, first(5))
    sampled = msgspec.structs.replace(
        run("b", 0, first(9)), pass_at={"1": 0.4, "8": 0.7}, sampled=20
    )
    text = headroom_chart(plan, [bare, sampled])
    assert text.count(">pass@1<") == text.count(">pass@8<") == 1
    assert ">pass@1<" not in headroom_chart(plan, [bare])
