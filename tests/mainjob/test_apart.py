"""Problems of one more catalogue are measured only where they share nothing with known ones."""

from __future__ import annotations

from pathlib import Path

import msgspec

from palio.evaluate.mainjob.apart import make_apart, open_apart
from palio.world.synthesis.config import compact_config


def test_problems_that_share_a_cluster_with_known_ones_are_left_out(tmp_path: Path) -> None:
    wanted = compact_config(5, products=300, problems=12)
    whole, rest = tmp_path / "whole", tmp_path / "rest"
    assert make_apart(wanted, (), whole, "s")["left out"] == 0
    problems = open_apart(whole).problems
    known = [
        msgspec.structs.replace(each, problem_id=f"known-{each.problem_id}")
        for each in problems[:5]
    ]
    made = make_apart(wanted, known, rest, "s")
    assert (made["problems"], made["left out"]) == (7, 5)
    assert open_apart(rest).problems == problems[5:]
