"""Two arms that are given the same are one run."""

import msgspec
import pytest

from palio.evaluate.experiment.plan import Arm
from palio.evaluate.experiment.student import DONE
from palio.evaluate.experiment.twins import adopted, twin_of
from tests.experiment.test_analysis import first, run
from tests.experiment.test_draw import ALL, FIREHOSE, plan

# of the firehose's rows "structural" and "coefficient" keep the same ones, "outcome" keeps more
ONE = plan(Arm(name="structural", gates=("outcome", "structural")), Arm(name="raw"))
SAME = Arm(name="all", gates=ALL)
OTHER = msgspec.structs.replace(plan(SAME), name="q")
ROWS = 60


def made(arm="structural", seed=0, rows=ROWS):
    digest = ONE.digest()
    return msgspec.structs.replace(
        run(arm, seed, first(9)), plan="p", plan_digest=digest, rows=rows, train_s=9.0, exam_s=9.0
    )


def found(arm, runs, *, other=OTHER, seed=0, base=""):
    other = msgspec.structs.replace(other, arms=(arm,))
    plans = {each.digest(): each for each in (ONE, other)}
    return twin_of(other, arm, seed, runs=runs, plans=plans, firehose=FIREHOSE, base=base)


def test_the_same_rows_under_another_name_are_found():
    assert found(SAME, [made("raw", rows=80), made()]) == made()


def test_as_many_rows_of_another_agent_are_another_run():
    """Problems p000 to p039 have a row of careful and one of narrator."""
    few = [row for row in FIREHOSE if row.problem_id < "p040"]
    here, there = (Arm(name=name, agents=(name,)) for name in ("careful", "narrator"))
    one, other = plan(there), msgspec.structs.replace(OTHER, arms=(here,))
    plans = {each.digest(): each for each in (one, other)}
    run_of = msgspec.structs.replace(made("narrator", rows=40), plan_digest=one.digest())
    of_careful = msgspec.structs.replace(
        one, arms=(msgspec.structs.replace(there, agents=("careful",)),)
    )
    assert twin_of(other, here, 0, runs=[run_of], plans=plans, firehose=few) is None
    plans[of_careful.digest()] = of_careful
    run_of = msgspec.structs.replace(run_of, plan_digest=of_careful.digest())
    assert twin_of(other, here, 0, runs=[run_of], plans=plans, firehose=few) == run_of


def test_a_run_with_holes_is_nobody_s_twin_and_of_two_the_last_is():
    broken = msgspec.structs.replace(made(), unscored=3, n={"overall": 17, "shop": 17})
    assert found(SAME, [broken]) is None
    later = msgspec.structs.replace(made(), checkpoint="later")
    assert found(SAME, [broken, made(), later]) == later


@pytest.mark.parametrize(
    "change",
    [
        {"gates": ("outcome",)},
        {"tokens": 0.5},
        {"share": 0.5},
        {"exposed": 0.1},
        {"stages": ({"kind": "kto"},)},
        {"start": "x"},
    ],
)
def test_whatever_decides_a_run_makes_it_another(change):
    assert found(msgspec.structs.replace(SAME, **change), [made()]) is None


LATER = Arm(name="later", gates=ALL, sft=False, start="all", stages=({"kind": "kto"},))
NEXT = msgspec.structs.replace(
    ONE, name="n", arms=(*ONE.arms, msgspec.structs.replace(LATER, name="x", start="structural"))
)


def found_later(runs):
    other = msgspec.structs.replace(OTHER, arms=(SAME, LATER))
    plans = {each.digest(): each for each in (NEXT, other)}
    return twin_of(other, LATER, 0, runs=runs(other), plans=plans, firehose=FIREHOSE)


def of(plan, arm, weights):
    return msgspec.structs.replace(
        made(arm), plan=plan.name, plan_digest=plan.digest(), checkpoint=weights
    )


def test_an_arm_that_goes_on_from_the_same_weights_in_the_same_way_is_one_run():
    runs = [of(NEXT, "structural", "w"), of(NEXT, "x", "v")]
    assert found_later(lambda other: [*runs, of(other, "all", "w")]) == runs[1]


@pytest.mark.parametrize("weights", ["another", ""])
def test_an_arm_that_goes_on_from_other_weights_is_another_run(weights):
    runs = [of(NEXT, "structural", weights), of(NEXT, "x", "v")]
    assert found_later(lambda other: [*runs, of(other, "all", "w")]) is None
    assert found_later(lambda other: [*runs, of(other, "all", "")]) is None


def test_an_arm_whose_start_was_not_run_has_no_twin():
    runs = [of(NEXT, "structural", "w"), of(NEXT, "x", "v")]
    assert found_later(lambda other: runs) is None


def test_another_seed_or_other_samples_or_an_unknown_plan_are_another_run():
    assert found(SAME, [made(seed=1)]) is None
    assert found(SAME, [made()], other=msgspec.structs.replace(OTHER, samples=8)) is None
    assert found(SAME, [msgspec.structs.replace(made(), plan_digest="gone")]) is None


@pytest.mark.parametrize(
    ("its", "here", "same"), [("w", "w", True), ("v", "w", False), ("", "w", True), ("v", "", True)]
)
def test_a_run_that_is_known_to_have_another_base_is_no_twin(its, here, same):
    run_of = msgspec.structs.replace(made(), base=its)
    assert found(SAME, [run_of], base=here) == (run_of if same else None)


def test_a_run_with_samples_is_also_one_of_greedy_answers_without_them(tmp_path):
    sampled = msgspec.structs.replace(ONE, samples=8, sampled=20)
    run_of = msgspec.structs.replace(
        made(), plan_digest=sampled.digest(), pass_at={"1": 0.5}, sampled=20
    )
    plans = {each.digest(): each for each in (sampled, OTHER)}
    assert twin_of(OTHER, SAME, 0, runs=[run_of], plans=plans, firehose=FIREHOSE) == run_of
    more = msgspec.structs.replace(OTHER, samples=16, sampled=20)
    assert twin_of(more, SAME, 0, runs=[run_of], plans=plans, firehose=FIREHOSE) is None
    taken = adopted(run_of, OTHER, SAME, tmp_path)
    assert taken is not None
    assert (taken.pass_at, taken.sampled) == ({}, 0)


def test_an_adopted_run_says_whose_it_is_and_brings_its_checkpoints(tmp_path):
    stage = tmp_path / "p" / "structural" / "0" / "0-sft"
    (stage / "checkpoint").mkdir(parents=True)
    (stage / "checkpoint" / "weights").write_text("w")
    (stage / DONE).write_text("{}")
    taken = adopted(msgspec.structs.replace(made(), base="w"), OTHER, SAME, tmp_path)
    assert taken is not None
    assert taken.base == "w"
    assert (taken.name, taken.twin, taken.train_s, taken.exam_s) == (
        "q/all/0",
        "p/structural/0",
        0,
        0,
    )
    assert taken.plan_digest == OTHER.digest()
    assert taken.outcomes() == made().outcomes()
    assert (tmp_path / "q" / "all" / "0" / "0-sft" / "checkpoint" / "weights").read_text() == "w"
    again = adopted(taken, msgspec.structs.replace(OTHER, name="r"), SAME, tmp_path)
    assert again is not None
    assert again.twin == "p/structural/0", "the first of all, not a chain of names"


def test_without_the_checkpoint_an_arm_that_others_start_from_is_made_anew(tmp_path):
    further = Arm(name="kto", start="all", sft=False, stages=({"kind": "kto"},))
    going_on = msgspec.structs.replace(OTHER, arms=(SAME, further))
    assert adopted(made(), going_on, SAME, tmp_path) is None
    assert adopted(made(), OTHER, SAME, tmp_path) is not None
