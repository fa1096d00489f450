"""Which rows an arm is trained on."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.corpus.rows import CorpusRow
from palio.evaluate.experiment.draw import draw, eligible, exposed_clusters, salt_of
from palio.evaluate.experiment.firehose import FirehoseRow
from palio.evaluate.experiment.plan import Arm, Contrast, Plan, load_plan, plan_names
from palio.records import ConfigError, InputError, to_json

ALL = ("outcome", "structural", "coefficient", "grounding")


def row(problem, agent, passed=ALL, *, pool="train", salvaged=False, bank="one"):
    name = f"{problem}-{agent}"
    body = CorpusRow(
        messages=(),
        tools="[]",
        trajectory_id=name,
        problem_id=problem,
        cluster_id=f"c-{problem}",
        agent=agent,
        kind="shop",
    )
    return FirehoseRow(
        trajectory_id=name,
        problem_id=problem,
        cluster_id=f"c-{problem}",
        agent=agent,
        kind="shop",
        pool=pool,
        bank=bank,
        passed=tuple(passed),
        salvaged=salvaged,
        row=msgspec.Raw(to_json(body)),
    )


def plan(*arms, support="shared"):
    return Plan(
        name="p",
        question="",
        hypothesis="",
        primary="",
        analysis="",
        arms=arms,
        contrasts=(),
        support=support,
    )


FIREHOSE = [
    *(row(f"p{n:03}", "careful") for n in range(60)),
    *(row(f"p{n:03}", "hasty", () if n % 2 else ("outcome",)) for n in range(80)),
    *(row(f"p{n:03}", "narrator", ("outcome", "grounding")) for n in range(40)),
    *(row(f"p{n:03}", "narrator+salvaged", ALL, salvaged=True) for n in range(40)),
    *(row(f"h{n:03}", "careful", pool="heldout") for n in range(50)),
]


@given(st.integers(0, 50))
def test_arms_of_shared_support_have_the_same_problems_in_the_same_order(seed):
    both = plan(Arm(name="raw"), Arm(name="gated", gates=ALL))
    raw, gated = (draw(both, arm, FIREHOSE, salt_of(seed)) for arm in both.arms)
    assert [each.problem_id for each in raw] == [each.problem_id for each in gated]
    assert len(raw) == 60
    assert {each.agent for each in gated} == {"careful"}
    assert {each.agent for each in raw} == {"careful", "hasty", "narrator"}
    same = {each.trajectory_id for each in raw} & {each.trajectory_id for each in gated}
    assert same, "where the raw arm drew a row that passes, both train on it"


@given(st.integers(0, 50), st.sampled_from([0.1, 0.3, 0.6]))
def test_salvaged_rows_of_a_scarce_arm_stand_beyond_its_agentic_ones(seed, share):
    """Agentic rows on other problems would be the very thing that the arm is to do without."""
    scarce = Arm(name="scarce", gates=ALL, share=share)
    both = Arm(name="both", gates=ALL, share=share, salvaged=1.0)
    alone, mixed = (
        {row.trajectory_id for row in draw(plan(arm, support="own"), arm, FIREHOSE, salt_of(seed))}
        for arm in (scarce, both)
    )
    salvaged = {name for name in mixed if name.endswith("+salvaged")}
    assert mixed - salvaged == alone
    theirs = {name.split("-")[0] for name in salvaged}
    assert theirs == {f"p{n:03}" for n in range(40)} - {name.split("-")[0] for name in alone}


@pytest.mark.parametrize("support", ["own", "shared"])
def test_stages_that_go_on_mix_rows_of_the_same_problems_in(support):
    first, further = Arm(name="sft", gates=ALL), Arm(name="kto", start="sft", sft=False, gates=ALL)
    other = Arm(name="narrated", agents=("narrator",))
    chain = plan(first, other, further, support=support)
    rows = draw(chain, further, FIREHOSE, salt_of(3))
    assert rows == draw(chain, first, FIREHOSE, salt_of(3))
    assert len(rows) == (60 if support == "own" else 40)


def test_a_plan_in_which_no_arm_is_fine_tuned_draws_for_its_stages():
    kto = ({"kind": "kto"},)
    base, every, gated = (
        Arm(name="base", sft=False),
        Arm(name="every", sft=False, stages=kto),
        Arm(name="gated", sft=False, stages=kto, gates=ALL),
    )
    rows = draw(plan(base, every, gated), gated, FIREHOSE, salt_of(0))
    assert len(rows) == len(draw(plan(base, every, gated), every, FIREHOSE, salt_of(0))) == 60
    assert len(draw(plan(base, every), every, FIREHOSE, salt_of(0))) == 80
    assert draw(plan(base), base, FIREHOSE, salt_of(0)) == []


def everyones_rows():
    """Every bundled agent on 100 problems of both pools, and a salvaged row of each."""
    agents = ("careful", "terse", "sloppy", "hasty", "narrator", "classifier")
    for pool, letter in (("train", "p"), ("heldout", "h")):
        for n in range(100):
            for agent in agents:
                yield row(f"{letter}{n:03}", agent, pool=pool)
            yield row(f"{letter}{n:03}", "narrator+salvaged", pool=pool, salvaged=True)


def test_no_arm_ever_sees_the_held_out_pool_unless_it_is_exposed():
    firehose = list(everyones_rows())
    exposing = set()
    for one in map(load_plan, plan_names()):
        for arm in one.arms:
            if not (arm.sft or arm.stages):
                continue
            pools = {each.problem_id[0] for each in draw(one, arm, firehose, salt_of(1))}
            assert ("h" in pools) == bool(arm.exposed), (one.name, arm.name)
            assert "p" in pools or arm.share < 0.05, "a hundredth may be none"
            exposing |= {one.name} if arm.exposed else set()
    assert exposing == {"leak"}


def test_shares_are_nested():
    small, large = (Arm(name=str(s), share=s) for s in (0.2, 0.6))
    few, many = (set(eligible(arm, FIREHOSE, "s")) for arm in (small, large))
    assert few < many < set(eligible(Arm(name="all"), FIREHOSE, "s"))


def test_exposed_clusters_are_trained_on_as_often_as_the_plan_says():
    arm = Arm(name="leak", gates=("outcome",), exposed=0.5, copies=33)
    rows = draw(plan(arm, support="own"), arm, FIREHOSE, salt_of(3))
    exposed = exposed_clusters(arm, FIREHOSE, salt_of(3))
    leaked = [each for each in rows if each.problem_id.startswith("h")]
    assert 10 < len(exposed) < 40
    assert len(leaked) == 33 * len(exposed)
    assert {each.cluster_id for each in leaked} == exposed


def test_salvaged_rows_stand_for_their_share_of_the_problems():
    alone, mixed = Arm(name="a", gates=ALL), Arm(name="b", gates=ALL, salvaged=0.5)
    both = plan(alone, mixed)
    rows = draw(both, mixed, FIREHOSE, salt_of(2))
    salvaged = sum(each.agent.endswith("+salvaged") for each in rows)
    assert 10 <= salvaged <= 30
    assert not any("salvaged" in each.agent for each in draw(both, alone, FIREHOSE, salt_of(2)))


def test_a_bank_that_is_left_out_is_left_out():
    rows = [*FIREHOSE[:20], row("p900", "careful", bank="two")]
    kept = eligible(Arm(name="a", banks_out=("two",)), rows, "s")
    assert "p900" not in kept
    assert len(kept) == 20


def test_arms_without_a_common_problem_are_refused():
    apart = plan(Arm(name="a", agents=("careful",)), Arm(name="b", agents=("nobody",)))
    with pytest.raises(InputError, match=r"no problem has a row in every arm.*support = \"own\""):
        draw(apart, apart.arms[0], FIREHOSE, "s")


def test_every_bundled_plan_says_what_it_asks_before_it_is_run():
    assert {"judging", "leak", "salvage", "diversity", "firehose"} <= set(plan_names())
    for name in plan_names():
        one = load_plan(name)
        assert one.name == name
        assert one.hypothesis.strip()
        assert one.analysis.strip()
        assert one.contrasts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": ()}, "arms need names"),
        ({"contrasts": (Contrast(arm="a", against="z"),)}, "has no arm 'z'"),
        ({"contrasts": (Contrast(arm="a", against="a"),)}, "compared with itself"),
        ({"contrasts": (Contrast(arm="a", against="b"),) * 2}, "stands there twice"),
        ({"measure": "pass@1"}, "needs samples"),
        ({"samples": -1, "sampled": 5}, "samples and sampled from 0"),
        ({"contrasts": ()}, "plan p compares nothing: it has no contrast"),
        (
            {"measure": "exposed", "contrasts": (Contrast(arm="a", against="a"),)},
            r"needs `exposed` in \(0, 1\) in every arm",
        ),
        (
            {"measure": "exposed", "contrasts": (Contrast(arm="a", against="b"),)},
            "a is compared with b, and exposed is a difference within each run",
        ),
        ({"arms": (Arm(name="a", start="b"), Arm(name="b"))}, "must come before"),
        ({"arms": (Arm(name="a", share=0.0),)}, "share"),
        ({"arms": (Arm(name="a"), Arm(name="b", start="a", sft=False))}, "it trains nothing"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(change, message):
    from palio.evaluate.experiment.plan import checked

    plain = plan(Arm(name="a"), Arm(name="b"))
    good = msgspec.structs.replace(plain, contrasts=(Contrast(arm="a", against="b"),))
    assert checked(good) == good
    with pytest.raises(ConfigError, match=message):
        checked(msgspec.structs.replace(good, **change))


def test_processes_share_the_runs_out_and_keep_chains_together(tmp_path):
    from palio.evaluate.experiment.config import LabConfig
    from palio.evaluate.experiment.lab import Lab
    from tests.mainjob.silent import SilentReporter

    lab = Lab(LabConfig(), tmp_path, SilentReporter())
    tasks = lab.open_tasks([load_plan(name) for name in plan_names()], 3)
    shares = [lab.shared_out(tasks, part, 4) for part in range(4)]
    assert sorted(task.name for share in shares for task in share) == sorted(t.name for t in tasks)
    assert all(shares)
    for share in shares:
        mine = {task.name for task in share}
        for task in share:
            if task.arm.start:
                assert f"{task.plan.name}/{task.arm.start}/{task.seed}" in mine
