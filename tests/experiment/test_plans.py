"""What a plan's file must say, and which labs can carry it out, is told before all work."""

import msgspec
import pytest
from typer.testing import CliRunner

from palio.cli.experiment import app
from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.lab import Lab
from palio.evaluate.experiment.plan import Arm, load_plan, load_plans, plan_names
from palio.evaluate.experiment.runs import append_run
from palio.records import ConfigError
from tests.experiment.test_analysis import PLAN, first, run
from tests.mainjob.silent import SilentReporter

TEXT = """
name = "p"
question = "?"
hypothesis = "h"
primary = "p"
analysis = "a"
[[arm]]
name = "a"
[[arm]]
name = "b"
"""
CONTRAST = '[[contrast]]\narm = "a"\nagainst = "b"\n'


def written(path, text):
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("more", "told", "remedy"),
    [
        (CONTRAST.replace("contrast", "contrasts"), "`contrasts` is no key", "[[contrast]]"),
        (CONTRAST + '[[contrasts]]\narm = "b"\n', "`contrasts` is no key", "[[contrast]]"),
        (CONTRAST + '[[arms]]\nname = "c"\n', "`arms` is no key", "[[arm]]"),
        (CONTRAST + "[extra]\nseeds = 3\n", "unknown field `extra`", ""),
        ("", "compares nothing", "[[contrast]]"),
    ],
)
def test_what_a_plan_s_file_says_in_vain_is_refused_with_its_name(tmp_path, more, told, remedy):
    path = written(tmp_path / "p.toml", TEXT + more)
    with pytest.raises(ConfigError, match=told) as found:
        load_plan(path)
    assert found.value.where == path
    assert remedy in found.value.remedy
    assert load_plan(written(tmp_path / "p.toml", TEXT + CONTRAST)).contrasts


def test_two_plans_of_one_name_are_refused_with_both_files(tmp_path):
    one = written(tmp_path / "one.toml", TEXT + CONTRAST)
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other" / "one.toml", TEXT.replace('"h"', '"i"') + CONTRAST)
    line = ["report", "--plan", one, "--plan", other, "--runs", str(tmp_path / "lab")]
    with pytest.raises(ConfigError, match="two plans are called 'p'") as found:
        CliRunner().invoke(app, line, catch_exceptions=False)
    assert found.value.where == f"{one}, {other}"
    assert "--plan" in found.value.remedy
    assert [plan.name for plan in load_plans([one, "leak"])] == ["p", "leak"]
    assert [plan.name for plan in load_plans([])] == list(plan_names())


def test_runs_that_are_left_are_those_of_each_plan_itself(tmp_path):
    lab = Lab(LabConfig(), tmp_path, SilentReporter())
    other = msgspec.structs.replace(PLAN, arms=PLAN.arms[:2], contrasts=PLAN.contrasts[:1])
    append_run(tmp_path, msgspec.structs.replace(run("a", 0, first(9)), lab=lab.lab))
    tasks = lab.open_tasks([PLAN, other], 1)
    assert [(task.plan, task.arm.name) for task in tasks] == [
        *((PLAN, name) for name in "bc"),
        *((other, name) for name in "ab"),
    ]


def checks(tmp_path, plan, **settings):
    Lab(LabConfig(**settings), tmp_path / "lab", SilentReporter()).check([plan])


@pytest.mark.parametrize(
    ("stage", "told"),
    [({"kind": "teachr"}, "teachr"), ({"kind": "teacher", "tokenz": 1}, "tokenz")],
)
def test_a_stage_that_there_is_not_is_told_before_anything_is_made(tmp_path, stage, told):
    wrong = msgspec.structs.replace(PLAN, arms=(*PLAN.arms, Arm(name="last", stages=(stage,))))
    with pytest.raises(ConfigError, match=told) as found:
        checks(tmp_path, wrong)
    assert "plan two, arm last" in found.value.where


@pytest.mark.parametrize(
    ("settings", "told", "remedy"),
    [
        ({"witnesses": ()}, "the lab has no witness", "`witnesses`"),
        ({"pool": "development"}, "examines on the development pool", 'pool = "heldout"'),
    ],
)
def test_exposure_needs_witnesses_and_the_held_out_pool(tmp_path, settings, told, remedy):
    with pytest.raises(ConfigError, match=told) as found:
        checks(tmp_path, load_plan("leak"), **settings)
    assert found.value.where == "plan leak, arm exposed"
    assert remedy in found.value.remedy
    checks(tmp_path, load_plan("leak"))
    checks(tmp_path, load_plan("log"), **settings)


def test_an_arm_that_exposes_beside_others_needs_witnesses_only(tmp_path):
    leaky = msgspec.structs.replace(PLAN, arms=(*PLAN.arms, Arm(name="leaky", exposed=0.5)))
    with pytest.raises(ConfigError, match="no witness"):
        checks(tmp_path, leaky, witnesses=())
    checks(tmp_path, leaky, pool="development")
