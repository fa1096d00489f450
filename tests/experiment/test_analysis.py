"""What a plan's runs are turned into."""

import json
import math

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from palio.evaluate.experiment.analysis import analyse, detectable, t_interval
from palio.evaluate.experiment.plan import Arm, Contrast, Plan
from palio.evaluate.experiment.runs import ArmRun, append_run, packed, read_runs, unpacked
from palio.records import InputError

PLAN = Plan(
    name="two",
    question="?",
    hypothesis="a is better",
    primary="asr",
    analysis="t",
    arms=(Arm(name="a"), Arm(name="b"), Arm(name="c")),
    contrasts=(Contrast(arm="a", against="b"), Contrast(arm="c", against="b")),
    seeds=3,
)


def run(arm: str, seed: int, outcomes: list[bool], problems: str = "same") -> ArmRun:
    return ArmRun(
        plan="two",
        plan_digest=PLAN.digest(),
        arm=arm,
        seed=seed,
        lab="lab",
        suite_seed=1,
        problems=problems,
        n={"overall": len(outcomes), "shop": len(outcomes)},
        unscored=0,
        successes={"overall": sum(outcomes), "shop": sum(outcomes)},
        strict={"overall": sum(outcomes), "shop": sum(outcomes)},
        solved=packed(outcomes),
        car=0.5,
    )


def first(good: int, of: int = 20) -> list[bool]:
    return [place < good for place in range(of)]


@given(st.lists(st.booleans(), max_size=70))
def test_outcomes_survive_packing(outcomes):
    assert unpacked(packed(outcomes), len(outcomes)) == outcomes


def test_digits_that_cannot_hold_the_outcomes_are_refused():
    with pytest.raises(InputError, match="cannot hold 9"):
        unpacked("ff", 9)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12).filter(lambda v: max(v) - min(v) > 1e-3))
def test_interval_and_p_are_those_of_scipy(values):
    mean, low, high, p_value = t_interval(values)
    peer = stats.ttest_1samp(values, 0.0)
    interval = peer.confidence_interval(0.95)
    assert low == pytest.approx(interval.low, abs=1e-9)
    assert high == pytest.approx(interval.high, abs=1e-9)
    assert p_value == pytest.approx(peer.pvalue, abs=1e-9)
    assert mean == pytest.approx(sum(values) / len(values), abs=1e-9)


def test_one_seed_has_no_interval():
    assert t_interval([0.2]) == (0.2, None, None, None)
    assert t_interval([0.02, 0.02]) == (0.02, None, None, None), "chance, and no certainty"
    assert t_interval([0.7 - 0.6, 0.8 - 0.7])[1:] == (None, None, None), "the same but for rounding"
    assert t_interval([1e-17, 0.0, -2e-17])[3] == 1.0
    assert t_interval([0.0, 0.0]) == (0.0, 0.0, 0.0, 1.0), "one run under two names"
    assert t_interval([]) == (None, None, None, None)
    assert detectable([0.2]) is None
    assert detectable([0.02, 0.02]) is detectable([0.7 - 0.6, 0.8 - 0.7]) is None


def test_a_detectable_effect_is_found_four_times_in_five():
    spread = [-0.02, 0.0, 0.02, 0.01, -0.01]
    effect = detectable(spread)
    shift = effect / stats.tstd(spread) * math.sqrt(5)
    critical = stats.t.ppf(0.975, 4)
    found = stats.nct.sf(critical, 4, shift) + stats.nct.cdf(-critical, 4, shift)
    assert found == pytest.approx(0.8, abs=1e-4)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_a_detectable_effect_is_found_four_times_in_five_samples(seeds):
    spread = [0.0, 0.03, 0.01, 0.02, -0.01][:seeds]
    effect = detectable(spread)
    drawn = numpy.random.default_rng(7).normal(effect, stats.tstd(spread), (200_000, seeds))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(seeds))
    found = (abs(t) > stats.t.ppf(0.975, seeds - 1)).mean()
    assert found == pytest.approx(0.8, abs=0.006)


def test_means_of_arms_are_over_the_seeds_that_all_have():
    runs = [run("a", 0, first(4)), run("a", 1, first(6)), run("a", 2, first(20))]
    runs += [run(arm, seed, first(2)) for arm in "bc" for seed in range(2)]
    found = {arm.arm: arm for arm in analyse(PLAN, runs).arms}
    assert found["a"].values == (0.2, 0.3, 1.0)
    assert found["a"].seeds == (0, 1, 2)
    assert found["a"].mean == pytest.approx(0.25)
    alone = {arm.arm: arm for arm in analyse(PLAN, runs[:3]).arms}
    assert alone["a"].mean == pytest.approx(0.5), "its own where the others have none"


def test_differences_are_paired_by_seed_and_corrected_together():
    runs = [run("a", seed, first(15 + seed)) for seed in range(3)]
    runs += [run("b", seed, first((10, 11, 13)[seed])) for seed in range(3)]
    runs += [run("c", seed, first((11, 10, 12)[seed])) for seed in range(2)]
    result = analyse(PLAN, runs)
    better, other = result.effects
    assert [s.difference for s in better.seeds] == pytest.approx([0.25, 0.25, 0.2])
    assert better.low < 0.2 < better.mean < 0.25 < better.high
    assert [s.seed for s in other.seeds] == [0, 1]
    assert not result.complete
    assert result.seeds == 2
    assert better.p_value < other.p_value
    assert better.p_holm == pytest.approx(2 * better.p_value), "the smaller of a family of two"
    assert other.p_holm == pytest.approx(max(2 * better.p_value, other.p_value))
    assert [(s.test.only_a, s.test.only_b) for s in better.seeds] == [(5, 0), (5, 0), (4, 0)]
    assert {effect.measure for effect in result.intents} == {"asr:shop"}


def test_a_contrast_that_is_not_run_yet_is_of_the_family_already():
    runs = [run(arm, seed, first(9 + seed * (arm == "a"))) for arm in "ab" for seed in range(3)]
    for more in ([], [run("c", 0, first(8))]):
        better, other = analyse(PLAN, [*runs, *more]).effects
        assert better.p_holm == pytest.approx(2 * better.p_value)
        assert (other.p_value, other.p_holm) == (None, None)


def based(run_of: ArmRun, base: str) -> ArmRun:
    return msgspec.structs.replace(run_of, base=base)


def test_two_runs_with_different_bases_are_no_pair():
    runs = [run(arm, seed, first(9 + seed)) for arm in "abc" for seed in range(3)]
    whole = analyse(PLAN, runs)
    assert analyse(PLAN, [based(each, f"w{each.seed}") for each in runs]) == whole
    one = [based(each, "x" if (each.arm, each.seed) == ("a", 0) else "") for each in runs]
    assert analyse(PLAN, one) == whole, "of the others it is not known"
    parted = [based(each, "x" if (each.arm, each.seed) == ("a", 0) else "w") for each in runs]
    result = analyse(PLAN, parted)
    assert [[each.seed for each in effect.seeds] for effect in result.effects] == [
        [1, 2],
        [0, 1, 2],
    ]
    assert [[each.seed for each in effect.seeds] for effect in result.intents] == [
        [1, 2],
        [0, 1, 2],
    ]
    assert (result.seeds, result.complete) == (2, False)
    means = {arm.arm: (arm.seeds, arm.mean) for arm in result.arms}
    assert means["c"] == ((0, 1, 2), pytest.approx(0.525)), "over the seeds of every contrast"


def test_mcnemar_needs_the_same_problems():
    runs = [run("a", 0, first(5)), run("b", 0, first(4), problems="others")]
    assert analyse(PLAN, [*runs, run("c", 0, first(1))]).effects[0].seeds[0].test is None


def test_exposure_is_a_difference_within_each_run():
    plan = Plan(
        name="leak",
        question="?",
        hypothesis="",
        primary="",
        analysis="",
        arms=(Arm(name="a", exposed=0.5),),
        contrasts=(Contrast(arm="a", against="a"),),
        measure="exposed",
        seeds=2,
    )
    base = run("a", 0, first(12))
    groups = {"exposed": (9, 10), "unexposed": (3, 10)}
    result = analyse(plan, [msgspec.structs.replace(base, groups=groups)])
    assert result.effects[0].mean == pytest.approx(0.6)
    assert result.intents == ()


def test_a_run_of_an_older_version_is_read(tmp_path):
    append_run(tmp_path, based(run("a", 0, first(3)), "w"))
    path = tmp_path / "runs.jsonl"
    (plain,) = map(json.loads, path.read_text().splitlines())
    assert (plain.pop("base"), plain.pop("loss_counted")) == ("w", 0)
    path.write_text(json.dumps(plain) + "\n")
    assert read_runs(tmp_path) == [run("a", 0, first(3))]


def test_a_torn_last_line_is_no_run(tmp_path):
    append_run(tmp_path, run("a", 0, first(3)))
    with (tmp_path / "runs.jsonl").open("ab") as file:
        file.write(b'{"plan":"two","pl')
    assert [each.arm for each in read_runs(tmp_path)] == ["a"]


def test_a_run_that_follows_a_torn_line_is_a_line_of_its_own(tmp_path):
    append_run(tmp_path, run("a", 0, first(3)))
    with (tmp_path / "runs.jsonl").open("ab") as file:
        file.write(b'{"plan":"two","pl')
    append_run(tmp_path, run("b", 0, first(3)))
    assert [each.arm for each in read_runs(tmp_path)] == ["a", "b"]


def test_a_torn_line_in_the_middle_names_file_and_row(tmp_path):
    append_run(tmp_path, run("a", 0, first(3)))
    with (tmp_path / "runs.jsonl").open("ab") as file:
        file.write(b'{"plan":"two","pl\n')
    append_run(tmp_path, run("b", 0, first(3)))
    with pytest.raises(InputError, match=r"runs\.jsonl:2"):
        read_runs(tmp_path)
