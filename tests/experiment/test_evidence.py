"""What a reader of the evidence is told."""

from pathlib import Path

import msgspec
import pytest

from palio.evaluate.experiment.analysis import analyse
from palio.evaluate.experiment.config import LabConfig, read_lab
from palio.evaluate.experiment.evidence import points, verdict, write_evidence
from palio.evaluate.experiment.given import LabRuns, chosen
from palio.evaluate.experiment.pictures import effects_chart
from palio.evaluate.experiment.plan import Arm, Contrast, load_plan, plan_names
from palio.evaluate.experiment.runs import read_runs
from palio.records import from_json
from tests.experiment.test_analysis import PLAN, first, run

LAB = LabConfig()


def told(runs, tmp_path):
    lab = LAB.digest()
    runs = [msgspec.structs.replace(each, lab=lab) for each in runs]
    results = write_evidence([PLAN], [LabRuns(LAB, runs)], tmp_path, "Why and how.")
    return results[0], (tmp_path / "evidence.md").read_text("utf-8")


def three_seeds():
    return [
        run(arm, seed, first(good[seed]))
        for arm, good in {"a": (15, 16, 14), "b": (8, 10, 9), "c": (9, 8, 10)}.items()
        for seed in range(3)
    ]


def test_the_page_shows_every_seed_and_says_what_may_be_said(tmp_path):
    result, page = told(three_seeds(), tmp_path)
    assert "Why and how." in page
    assert "| a | 75.0, 80.0, 70.0 | **75.0** |" in page
    assert "+35.0, +30.0, +25.0" in page
    assert "| higher |" in page
    assert "| McNemar within a run |" in page
    assert "| higher | 0.0156, 0.0312, 0.0625 |" in page
    assert "n = 20 problems a run." in page
    assert "examined on\n20 problems of the heldout pool" in page, "not the 2,000 asked for"
    assert "open: more seeds are needed" in page
    assert "yes" in page
    assert (tmp_path / "evidence" / "two.svg").read_text().startswith("<svg")
    assert result.complete


def test_the_page_begins_with_the_first_contrast_of_every_plan(tmp_path):
    _, page = told(three_seeds(), tmp_path)
    minus = "\N{MINUS SIGN}"
    row = f"| [two](#two) | ? | a {minus} b | **+30.0** (+17.6 to +42.4) | higher | 3 of 3 | yes |"
    assert row in page
    assert page.index("evidence/overview.svg") < page.index(row) < page.index("## two")
    drawn = (tmp_path / "evidence" / "overview.svg").read_text()
    assert "two: a - b" in drawn
    assert "a - c" not in drawn


def test_what_is_written_about_a_plan_stands_with_it(tmp_path):
    lab = [LabRuns(LAB, [msgspec.structs.replace(run, lab=LAB.digest()) for run in three_seeds()])]
    text = "Why.\n\n## two\n\nIt is so.\n\n### More\n\n## How\n\n    run it\n\nThus."
    write_evidence([PLAN], lab, tmp_path, text)
    page = (tmp_path / "evidence.md").read_text("utf-8")
    places = [
        "Why.",
        "overview.svg",
        "## How\n\n    run it\n\nThus.",
        "The lab: ",
        "## two\n",
        "*Hypothesis.*",
    ]
    places += ["\n\nIt is so.\n\n### More\n\n", "evidence/two.svg"]
    assert [page.index(each) for each in places] == sorted(map(page.index, places))
    assert all(page.count(each) == 1 for each in places)


def test_a_partial_set_is_told_as_partial(tmp_path):
    result, page = told(three_seeds()[:1], tmp_path)
    assert not result.complete
    assert "0 of 3" in page
    assert "not run" in page


def test_nothing_run_is_said(tmp_path):
    _, page = told([], tmp_path)
    assert "Not run yet." in page
    assert not list((tmp_path / "evidence").glob("*.svg"))
    assert ".svg" not in page


def test_runs_of_another_lab_or_plan_are_left_out(tmp_path):
    others = [msgspec.structs.replace(each, plan_digest="other") for each in three_seeds()]
    result, _ = told(others, tmp_path)
    assert result.n == 0


def test_a_run_with_unscored_problems_is_none(tmp_path):
    """Code from before examinations had to be whole has made such runs."""
    *others, last = three_seeds()
    broken = msgspec.structs.replace(last, n={"overall": 18, "shop": 18}, unscored=2)
    result, page = told([*others, broken], tmp_path)
    assert not result.complete
    assert "2 of 3" in page
    again, _ = told([*others, broken, last], tmp_path)
    assert again.complete, "it was made again"


def test_a_null_result_is_a_result():
    narrow = [run(arm, seed, first(10, 200)) for arm in "abc" for seed in range(3)]
    effect = analyse(PLAN, narrow).effects[0]
    assert verdict(effect, 0.03) == "no effect as large as 3 points"


def test_seeds_without_any_spread_are_no_certainty():
    """One problem more of 20 in each seed: as floats these differences are not the same."""
    alike = [
        run(arm, seed, first(good + (arm == "a")))
        for arm in "abc"
        for seed, good in enumerate((3, 7, 12))
    ]
    better, same = analyse(PLAN, alike).effects
    assert len({each.difference for each in better.seeds}) > 1
    assert verdict(better, 0.03) == "all seeds alike: no interval"
    assert (better.p_value, better.detectable) == (None, None)
    assert (same.mean, same.p_value, same.detectable) == (0.0, 1.0, None)


def test_what_seeds_without_any_spread_could_find_is_not_told_as_nothing(tmp_path):
    _, page = told([run(arm, seed, first(9)) for arm in "abc" for seed in range(3)], tmp_path)
    assert "| 1.0000 | no spread | no effect as large as 3 points |" in page
    _, page = told([run(arm, 0, first(9)) for arm in "abc"], tmp_path)
    assert "no spread" not in page, "of one seed there is none to speak of"


def test_the_smallest_effect_is_told_as_the_plan_has_it(tmp_path):
    narrow = [run(arm, seed, first(10, 200)) for arm in "abc" for seed in range(3)]
    effect = analyse(PLAN, narrow).effects[0]
    told_as = {0.005: "0.5", 0.025: "2.5", 0.07: "7", 0.3: "30"}
    for smallest, text in told_as.items():
        assert verdict(effect, smallest) == f"no effect as large as {text} points"
    fine = msgspec.structs.replace(PLAN, smallest=0.025)
    assert "band: below 2.5 points" in effects_chart(fine, analyse(fine, narrow))


def test_points_carry_their_sign():
    assert points(0.034) == "+3.4"
    assert points(-0.034) == "\N{MINUS SIGN}3.4"


def test_results_are_machine_readable(tmp_path):
    result, _ = told(three_seeds(), tmp_path)
    from palio.evaluate.experiment.analysis import PlanResult

    read = from_json((tmp_path / "evidence" / "results.json").read_bytes(), tuple[PlanResult, ...])
    assert read == (result,)


DOCS = Path(__file__).parents[2] / "docs" / "evidence"


@pytest.mark.parametrize("runs", sorted(DOCS.glob("runs*.jsonl")), ids=lambda path: path.stem)
def test_the_published_runs_are_of_the_published_labs_and_plans(runs):
    """A new setting or a changed plan must not orphan what was measured."""
    lab = read_lab(runs.with_name(runs.name.replace("runs", "lab").replace("jsonl", "toml")))
    plans = {load_plan(name).digest() for name in plan_names()}
    found = read_runs(runs)
    assert found
    assert {run.lab for run in found} == {lab.digest()}
    assert {run.plan_digest for run in found} <= plans
    assert not [run.name for run in found if run.unscored]


def test_several_labs_stand_on_one_page_and_each_seed_is_told_from_the_one_with_most_of_it(
    tmp_path,
):
    cpu, gpu = LabConfig(device="cpu"), LabConfig(device="cuda")
    few = [msgspec.structs.replace(each, lab=gpu.digest()) for each in three_seeds()[:4]]
    many = [msgspec.structs.replace(each, lab=cpu.digest()) for each in three_seeds()]
    labs = [LabRuns(gpu, few), LabRuns(cpu, many)]
    (result,) = write_evidence([PLAN], labs, tmp_path, "")
    page = (tmp_path / "evidence.md").read_text("utf-8")
    assert result.complete
    assert "Lab 1" in page
    assert "trained on cuda" in page
    assert "trained on CPU cores" in page
    assert "| 3 of 3 | yes | 2 |" in page


def labs_of(runs, *, others, other):
    """Seeds below 2 of the default lab, the others of another one."""
    here = [msgspec.structs.replace(each, lab=LAB.digest()) for each in runs if each.seed < 2]
    there = [msgspec.structs.replace(each, lab=other.digest()) for each in others]
    return [LabRuns(LAB, here), LabRuns(other, there)]


def test_labs_that_differ_in_the_device_are_one_experiment_seed_by_seed(tmp_path):
    further = [each for each in three_seeds() if each.seed == 2]
    partial = [run("a", 0, first(1)), run("b", 1, first(1))]  # seeds that the first lab has whole
    labs = labs_of(three_seeds(), others=[*further, *partial], other=LabConfig(device="cuda"))
    (result,) = write_evidence([PLAN], labs, tmp_path, "")
    page = (tmp_path / "evidence.md").read_text("utf-8")
    assert result.complete
    assert "| 3 of 3 | yes | 1 (seeds 0, 1); 2 (seed 2) |" in page
    assert "| a | 75.0, 80.0, 70.0 | **75.0** |" in page
    assert chosen(PLAN, labs) == {0: 0, 1: 0, 2: 1}


def test_labs_that_differ_in_more_are_never_mixed(tmp_path):
    further = [each for each in three_seeds() if each.seed == 2]
    labs = labs_of(three_seeds(), others=further, other=LabConfig(suite_seed=2, device="cuda"))
    assert chosen(PLAN, labs) == {0: 0, 1: 0}
    (result,) = write_evidence([PLAN], labs, tmp_path, "")
    assert (result.seeds, result.complete) == (2, False)


def test_seeds_whose_arms_start_from_several_bases_are_told(tmp_path):
    runs = three_seeds()
    _, unknown = told(runs, tmp_path)
    _, alike = told([msgspec.structs.replace(each, base="w") for each in runs], tmp_path)
    assert unknown == alike
    assert "bases" not in alike
    of = {("a", 1): "x", ("a", 2): "", ("b", 2): "y"}
    runs = [msgspec.structs.replace(run, base=of.get((run.arm, run.seed), "w")) for run in runs]
    _, page = told(runs, tmp_path)
    assert (
        "- Arms of seed 1 start from two bases: a; b, c. A contrast needs a shared one; these "
        "leave the seed out: a \N{MINUS SIGN} b." in page
    )
    assert "- Arms of seed 2 start from two bases: b; c. " in page, "of a it is not known"
    assert "seed 0 start" not in page
    assert "| a \N{MINUS SIGN} b | +35.0, +25.0 |" in page
    assert "| 1 of 3 | no |" in page
    assert "first table are over seeds 0, which every arm and every contrast has." in page


def test_the_page_shows_the_budget_and_what_was_counted_where_every_run_counted(tmp_path):
    some = [msgspec.structs.replace(each, loss_tokens=600_000) for each in three_seeds()]
    counted = [
        msgspec.structs.replace(each, loss_counted=598_001 + each.seed)
        if (each.arm, each.seed) != ("b", 0)
        else each
        for each in some
    ]
    _, page = told(counted, tmp_path)
    assert "| SFT loss tokens (budget) |" in page
    assert page.count("| 600,000, 598,002 counted |") == 2
    assert page.count("| 600,000 |") == 1


def sampled_page(folder, lab=LAB, **pass_at):
    """The page of a plan with sampled rollouts; some of its runs have one student."""
    samples = max(int(k) for k in pass_at)
    sampled = msgspec.structs.replace(PLAN, measure="pass@1", samples=samples, sampled=20)
    runs = [
        msgspec.structs.replace(
            run(arm, seed, first(9)),
            lab=lab.digest(),
            plan_digest=sampled.digest(),
            pass_at=pass_at,
            sampled=20,
            checkpoint="same" if (arm, seed) in {("a", 1), ("b", 1), ("b", 2)} else f"{arm}{seed}",
        )
        for arm in "abc"
        for seed in range(3)
    ]
    write_evidence([sampled], [LabRuns(lab, runs)], folder, "")
    return (folder / "evidence.md").read_text("utf-8")


def test_sampled_plans_show_headroom_and_twins_are_named(tmp_path):
    page = sampled_page(tmp_path, **{"1": 0.5, "8": 0.75})
    assert "| pass@8 | gap | greedy | CAR | greedy: product |" in page
    assert "pass@1, pass@8 and their gap: 20 problems, 8 rollouts of each" in page
    assert "Greedy ASR, its kinds, CAR and invented ids: 20 problems." in page
    assert "McNemar" not in page
    assert "| a | 50.0, 50.0, 50.0 | **50.0** | 75.0 | 25.0 | 45.0 | 0.500 |" in page
    assert "- a has the student of two/b (seed 1)." in page
    assert "- b has the student of two/a (seed 1)." in page
    assert page.count("has the student of") == 2, "weights of another seed are another run's"
    assert "two-headroom.svg" in page
    assert (tmp_path / "evidence" / "two-headroom.svg").read_text().startswith("<svg")


def test_the_temperature_is_that_of_the_lab(tmp_path):
    page = sampled_page(tmp_path, LabConfig(temperature=0.7), **{"1": 0.5, "8": 0.75})
    assert "8 rollouts of each at temperature 0.7. Greedy" in page
    drawn = (tmp_path / "evidence" / "two-headroom.svg").read_text()
    assert "20 problems, T = 0.7" in drawn


def test_one_rollout_of_each_problem_has_no_headroom_to_show(tmp_path):
    page = sampled_page(tmp_path, **{"1": 0.5})
    assert "| arm | pass@1 by seed | mean | greedy | CAR | greedy: product |" in page
    assert "| a | 50.0, 50.0, 50.0 | **50.0** | 45.0 | 0.500 |" in page
    assert "pass@1: 20 problems, one rollout of each at temperature 1. Greedy ASR" in page
    assert "headroom" not in page
    assert not list(tmp_path.glob("**/*-headroom.svg"))


def test_a_plan_about_exposure_shows_both_rates_and_no_kinds(tmp_path):
    arm = Arm(name="a", note="what it is", exposed=0.5)
    leak = msgspec.structs.replace(
        PLAN, measure="exposed", arms=(arm,), contrasts=(Contrast(arm="a", against="a"),)
    )
    runs = [
        msgspec.structs.replace(
            run("a", seed, first(9)),
            lab=LAB.digest(),
            plan_digest=leak.digest(),
            groups={"exposed": (8, 10), "unexposed": (1, 10)},
            rows=1234,
        )
        for seed in range(2)
    ]
    write_evidence([leak], [LabRuns(LAB, runs)], tmp_path, "")
    page = (tmp_path / "evidence.md").read_text("utf-8")
    assert "- seed 1: exposed 80.0 % of 10, unexposed 10.0 % of 10; 1,234 training rows" in page
    assert "| shop |" not in page
    assert "- a: what it is" in page
    none = [msgspec.structs.replace(each, groups={"exposed": (8, 10)}) for each in runs[:1]]
    (result,) = write_evidence([leak], [LabRuns(LAB, [*none, *runs[1:]])], tmp_path, "")
    page = (tmp_path / "evidence.md").read_text("utf-8")
    assert [each.seed for each in result.effects[0].seeds] == [1]
    assert "- seed 0, a: all problems of its examination are exposed, so there is no" in page
    write_evidence([leak], [LabRuns(LAB, none)], tmp_path, "")
    page = (tmp_path / "evidence.md").read_text("utf-8")
    assert "Not run yet." not in page
    line = "- seed 0, a: all problems of its examination are exposed, so there is no difference"
    assert f"Runs were made, and nothing can be told from them:\n\n{line}\n" in page
    assert "| runs left out, see below | 0 of 3 |" in page


def test_a_wording_that_no_problem_of_the_examination_has_is_told(tmp_path):
    arms = (Arm(name="a", banks_out=("seen", "unseen")), *PLAN.arms[1:])
    one = msgspec.structs.replace(PLAN, arms=arms)
    runs = [
        msgspec.structs.replace(
            each, lab=LAB.digest(), plan_digest=one.digest(), groups={"bank:seen": (3, 4)}
        )
        for each in three_seeds()
    ]
    write_evidence([one], [LabRuns(LAB, runs)], tmp_path, "")
    page = (tmp_path / "evidence.md").read_text("utf-8")
    assert "- a on the unseen wording seen: 75.0, 75.0, 75.0" in page
    assert "- a: no problem of the examination is worded in unseen" in page


def test_rollouts_that_the_clock_stopped_are_told(tmp_path):
    runs = [
        msgspec.structs.replace(each, timed_out=12 if (each.arm, each.seed) == ("b", 1) else 0)
        for each in three_seeds()
    ]
    _, page = told(runs, tmp_path)
    assert page.count("the clock stopped") == 1
    assert "- b, seed 1: the clock stopped 12 rollouts of its examination" in page


def test_two_seeds_decide_nothing(tmp_path):
    runs = [
        msgspec.structs.replace(run(arm, seed, first(good + seed)), lab=LAB.digest())
        for arm, good in (("a", 15), ("b", 5), ("c", 5))
        for seed in range(3)
    ]
    runs[0] = msgspec.structs.replace(run("a", 0, first(14)), lab=LAB.digest())
    write_evidence([PLAN], [LabRuns(LAB, runs)], tmp_path, "")
    assert "| higher |" in (tmp_path / "evidence.md").read_text("utf-8")
    two = [each for each in runs if each.seed < 2]
    write_evidence([PLAN], [LabRuns(LAB, two)], tmp_path, "")
    page = (tmp_path / "evidence.md").read_text("utf-8")
    assert "| higher |" not in page
    assert "| open: fewer than 3 seeds |" in page


def test_an_arm_that_lacks_a_seed_is_shown_and_the_means_are_of_shared_seeds(tmp_path):
    runs = [
        msgspec.structs.replace(run(arm, seed, first(good + seed)), lab=LAB.digest())
        for arm, good in (("a", 10), ("b", 5), ("c", 5))
        for seed in range(3)
        if (arm, seed) != ("b", 1)
    ]
    write_evidence([PLAN], [LabRuns(LAB, runs)], tmp_path, "")
    page = (tmp_path / "evidence.md").read_text("utf-8")
    assert "| a | 50.0, 55.0, 60.0 | **55.0** |" in page
    assert "| b | 25.0, -, 35.0 | **30.0** |" in page
    assert "Means in the first table are over seeds 0, 2, which every arm has." in page
