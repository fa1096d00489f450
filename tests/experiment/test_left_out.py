"""Runs that were made and are in no table of the page are told there and on the terminal."""

import msgspec
import pytest

from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.evidence import write_evidence
from palio.evaluate.experiment.given import LabRuns, check_given, left_out
from tests.experiment.test_analysis import PLAN, first, run

CPU, GPU = LabConfig(), LabConfig(device="cuda")
OTHER = LabConfig(suite_seed=2)
MINUS, NONE = "\N{MINUS SIGN}", "\N{EN DASH}"


def lab(config, *runs):
    return LabRuns(config, [msgspec.structs.replace(each, lab=config.digest()) for each in runs])


def runs(arms, seeds):
    return [run(arm, seed, first(9 + seed)) for arm in arms for seed in seeds]


def page(folder, *labs, plan=PLAN):
    write_evidence([plan], labs, folder, "")
    return (folder / "evidence.md").read_text("utf-8")


def on_the_terminal(*labs):
    return check_given(labs, ["runs"] * len(labs), [PLAN], every=False)


def test_a_seed_that_another_lab_has_more_of_is_told_as_left_out(tmp_path):
    labs = lab(CPU, *runs("abc", [0, 1])), lab(GPU, *runs("ab", [1, 2]))
    line = (
        "2 runs of lab 2 left out (seed 1): a seed is told from one lab, the first of those with "
        "most of its arms"
    )
    assert f"\n- {line}\n" in page(tmp_path, *labs)
    assert on_the_terminal(*labs) == [f"two: {line}"]
    whole = lab(CPU, *runs("abc", [0, 1])), lab(GPU, *runs("abc", [2]))
    assert "left out" not in page(tmp_path, *whole)
    assert on_the_terminal(*whole) == []


def test_a_lab_of_another_design_is_told_as_left_out(tmp_path):
    labs = lab(OTHER, *runs("ab", [0, 3])), lab(CPU, *runs("abc", [0, 1]))
    line = (
        "4 runs of lab 1 left out (seeds 0, 3): the lab differs in more than the device from those "
        "that the plan is told from, which have most of its runs"
    )
    assert f"\n- {line}\n" in page(tmp_path, *labs)
    assert on_the_terminal(*labs) == [f"two: {line}"]


def test_a_run_that_infrastructure_broke_is_told_until_it_is_made_again(tmp_path):
    good = run("a", 0, first(9))
    broken = msgspec.structs.replace(good, n={"overall": 18, "shop": 18}, unscored=2)
    told = page(tmp_path, lab(CPU, broken, *runs("b", [0])))
    line = "a, seed 0: infrastructure kept 2 of its 20 problems from being scored, so it is in no"
    assert f"- {line} table" in told
    assert "| runs left out, see below |" in told
    assert f"c {MINUS} b |  |  |  | {NONE} |  | not run |" in told
    alone = page(tmp_path, lab(CPU, broken))
    assert "Not run yet." not in alone
    assert f"nothing can be told from them:\n\n- {line}" in alone
    for order in ([broken, good], [good, broken]):
        assert left_out(PLAN, [lab(CPU, *order)]) == []


def test_a_run_without_the_plan_s_measure_is_told(tmp_path):
    sampled = msgspec.structs.replace(PLAN, measure="pass@1", samples=8, sampled=20)
    made = [msgspec.structs.replace(each, plan_digest=sampled.digest()) for each in runs("a", [0])]
    told = page(tmp_path, lab(CPU, *made), plan=sampled)
    assert "nothing can be told from them:\n\n- seed 0, a: no pass@1 is recorded of it" in told
    leak = msgspec.structs.replace(PLAN, measure="exposed")
    made = [msgspec.structs.replace(each, plan_digest=leak.digest()) for each in made]
    assert "- seed 0, a: it is not recorded which problems" in page(
        tmp_path, lab(CPU, *made), plan=leak
    )


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (runs("a", [0]), "not run"),
        ([*runs("a", [0]), *runs("b", [1])], "no pair: no seed of both"),
        (
            [msgspec.structs.replace(each, base=each.arm) for each in runs("ab", [0])],
            "no pair: different bases",
        ),
    ],
)
def test_a_contrast_without_a_difference_says_why(tmp_path, made, verdict):
    told = page(tmp_path, lab(CPU, *made))
    assert f"| a {MINUS} b |  |  |  | {NONE} |  | {verdict} |" in told
