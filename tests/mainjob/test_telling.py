"""Equal runs tell the same, in whatever order their rollouts ended."""

from __future__ import annotations

import random
from pathlib import Path

from palio.agents.scripted import ScriptedUpstream
from palio.agents.spec import policy_agent
from palio.evaluate.mainjob.measure import Exam
from palio.evaluate.mainjob.telling import _examples
from palio.evaluate.policy import EvalSettings, Policy, evaluate_policy
from palio.judging.encoders import default_encoder
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World


def test_examples_are_of_the_same_problems_in_whatever_order_rollouts_ended(
    tmp_path: Path,
) -> None:
    made = synthesise(compact_config(3, products=700, problems=120))
    worlds = {made.catalogue.catalogue_id: World.build(made.catalogue, COMPACT)}
    evaluate_policy(
        Policy("c", policy_agent("c", "scripted-sloppy"), ScriptedUpstream()),
        made.problems,
        worlds,
        default_encoder(),
        out=tmp_path,
        settings=EvalSettings(threads=1),
    )
    exam = Exam(made.problems, (), worlds, {})
    assert len(exam.problems) > 100
    rows = tmp_path / "rollouts.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    shown = set()
    for seed in range(4):
        random.Random(seed).shuffle(lines)
        rows.write_bytes(b"".join(lines))
        shown.add(tuple(each.problem.problem_id for each in _examples(tmp_path, exam)))
    ((success, failure),) = shown
    assert {success, failure} <= {each.problem_id for each in exam.problems[:100]}
