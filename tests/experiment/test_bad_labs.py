"""A lab that two processes work in, or whose runs broke off, makes no run of another start."""

import dataclasses
import fcntl
import threading
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

from palio.cli.experiment import app
from palio.evaluate.experiment.config import LabConfig, checked, read_lab
from palio.evaluate.experiment.lab import Lab
from palio.evaluate.experiment.plan import Arm, load_plan, plan_names
from palio.evaluate.experiment.runs import append_run, read_runs
from palio.evaluate.experiment.student import School, Student, further
from palio.evaluate.experiment.task import Task
from palio.records import ConfigError, InputError, ResumeError
from palio.rollout.journal import lock_folder
from tests.experiment.test_analysis import first, run
from tests.experiment.test_draw import plan

SAMPLING = {"problems": 6, "samples": 1, "temperature": 0.0, "model": "scripted-careful"}
STAGES = tuple(
    {"kind": "teacher", "name": name, "tokens": 3000, "sampling": SAMPLING}
    for name in ("once", "again")
)
PLAN = plan(Arm(name="a", stages=STAGES), Arm(name="b", start="a", sft=False, stages=STAGES[:1]))
CONFIG = LabConfig(catalogues=1)


class Quiet:
    def begin(self, stage, total):
        pass

    def advance(self, done, note=""):
        pass

    def end(self, stage, seconds, *, skipped):
        pass


def note(_):
    pass


def student(folder, arm, of=PLAN):
    school = School(CONFIG, folder / "seeds", [], None, lambda: 0.0)
    task = Task(of, of.arm(arm), 0)
    return Student(school, task, task.folder(folder), note)


def test_an_arm_does_not_start_from_one_that_broke_off(tmp_path):
    before = Task(PLAN, PLAN.arm("a"), 0).folder(tmp_path)
    for name in ("0-sft", "1-once"):
        (before / name).mkdir(parents=True)
        (before / name / "stage.json").write_text('{"checkpoint": "checkpoint"}')
    with pytest.raises(InputError, match=r"'a' was not run to its end.*'2-again' is missing"):
        student(tmp_path, "b")._start()
    (before / "2-again").mkdir()
    (before / "2-again" / "stage.json").write_text('{"checkpoint": "checkpoint"}')
    assert student(tmp_path, "b")._start() == before / "2-again" / "checkpoint"


def test_a_stage_that_cannot_be_read_is_told_before_anything_is_trained(tmp_path):
    wrong = plan(Arm(name="a", stages=({"kind": "teacher", "tokenz": 1},)))
    with pytest.raises(ConfigError, match="tokenz"):
        student(tmp_path, "a", wrong).teach()
    assert not list(tmp_path.iterdir())


def test_what_a_plan_made_before_it_was_changed_is_not_taken_for_what_it_makes_now(
    tmp_path, monkeypatch
):
    lab, task = Lab(CONFIG, tmp_path, Quiet()), Task(PLAN, PLAN.arm("b"), 0)
    begun = []
    monkeypatch.setattr(Lab, "_run_one", lambda _lab, of, *_: begun.append(of.plan))
    lab.run_one(task, note)
    changed = msgspec.structs.replace(PLAN, arms=PLAN.arms[::-1])
    with pytest.raises(ResumeError, match="plan 'p' as it was before it was changed") as found:
        lab.run_one(dataclasses.replace(task, plan=changed), note)
    assert found.value.where == str(task.folder(tmp_path))
    assert "another name" in found.value.remedy
    lab.run_one(task, note)
    assert begun == [PLAN, PLAN], "who did not change anything goes on"
    lab.run_one(Task(PLAN, PLAN.arm("a"), 0), note)
    with pytest.raises(ResumeError, match="before it was changed"):
        student(tmp_path, "b", changed)._start()


def test_one_run_is_made_by_one_process(tmp_path):
    lab, task = Lab(CONFIG, tmp_path, Quiet()), Task(PLAN, PLAN.arm("a"), 0)
    folder = task.folder(tmp_path)
    folder.mkdir(parents=True)
    with lock_folder(folder):
        ((failed, why),) = lab.run([task], lambda *_: None)
    assert failed == task
    assert "another process is running" in str(why)
    assert read_runs(tmp_path) == []


def test_a_run_that_another_process_has_made_meanwhile_is_not_made_again(tmp_path):
    lab, task = Lab(CONFIG, tmp_path, Quiet()), Task(PLAN, PLAN.arm("a"), 0)
    made = msgspec.structs.replace(
        run("a", 0, first(9)), plan="p", plan_digest=PLAN.digest(), lab=lab.lab
    )
    append_run(tmp_path, made)
    assert lab.run([task], lambda *_: None) == []
    assert read_runs(tmp_path) == [made]


def test_what_all_runs_share_is_made_by_one_process_and_the_others_wait(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Lab, "_make", lambda self: made.append(self.out))
    with (tmp_path / ".lock").open("ab") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        other = threading.Thread(target=Lab(CONFIG, tmp_path, Quiet()).prepare)
        other.start()
        other.join(0.3)
        assert other.is_alive()
        assert made == []
    other.join(10)
    assert made == [tmp_path]


@pytest.mark.parametrize(
    "settings",
    ["catalogues = 0", "products = -1", "problems = 0", "train_share = nan", "temperature = nan"],
)
def test_a_lab_that_can_have_no_world_is_refused_with_its_file(tmp_path, settings):
    path = tmp_path / "lab.toml"
    path.write_text(settings + "\n")
    with pytest.raises(ConfigError) as error:
        read_lab(path)
    assert error.value.where == str(path)
    assert error.value.remedy


def test_an_agent_that_there_is_not_is_told_before_the_worlds_are_made(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text('agents = ["carefull"]\n')
    with pytest.raises(InputError, match="did you mean careful") as error:
        read_lab(path)
    assert error.value.where == str(path)
    assert checked(LabConfig()) == LabConfig()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"agents": ("careful", "hastie")}, "the lab has no agent 'hastie'"),
        ({"banks_out": ("compact-lst",)}, "the lab has no wording 'compact-lst'"),
        ({"banks_out": ("compact-letter",)}, "the lab has no wording 'compact-letter'"),
    ],
)
def test_an_arm_of_what_the_lab_has_not_is_told_before_anything_is_made(tmp_path, wrong, told):
    lab = Lab(CONFIG, tmp_path / "lab", Quiet())
    lab.check([load_plan(name) for name in plan_names()])
    with pytest.raises(ConfigError, match=told) as found:
        lab.check([plan(Arm(name="good")), plan(Arm(name="a", **wrong))])
    assert found.value.where == "plan p, arm a"
    assert "hasty" in found.value.remedy or "compact-list" in found.value.remedy
    text = 'name = "p"\nquestion = "?"\nhypothesis = "h"\nprimary = "p"\nanalysis = "a"\n'
    text += '[[arm]]\nname = "a"\n'
    text += "".join(f"{key} = {list(value)}\n" for key, value in wrong.items())
    text += '[[arm]]\nname = "b"\n[[contrast]]\narm = "a"\nagainst = "b"\n'
    (tmp_path / "p.toml").write_text(text)
    line = ["run", "--plan", str(tmp_path / "p.toml"), "--out", str(tmp_path / "lab")]
    with pytest.raises(ConfigError, match=told):
        CliRunner().invoke(app, line, catch_exceptions=False)
    assert not (tmp_path / "lab").exists()


def test_an_arm_without_a_row_is_told_before_its_base_is_made(tmp_path):
    alone = plan(Arm(name="a"), support="own")
    with pytest.raises(InputError, match="no row of the firehose passes this arm") as found:
        student(tmp_path, "a", alone).teach()
    assert (found.value.where, bool(found.value.remedy)) == ("plan p, arm a", True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden"])
def test_a_name_that_leads_out_of_the_lab_is_refused(tmp_path, name):
    text = (
        'question = "?"\nhypothesis = "h"\nprimary = "p"\nanalysis = "a"\nname = "p"\n'
        '[[contrast]]\narm = "other"\nagainst = "other-one"\n'
        '[[arm]]\nname = "other"\n[[arm]]\nname = "other-one"\n[[arm]]\nname = "{}"\n'
    )
    (tmp_path / "p.toml").write_text(text.format("plain"))
    assert load_plan(str(tmp_path / "p.toml")).arms[2].name == "plain"
    (tmp_path / "p.toml").write_text(text.format(name))
    with pytest.raises(ConfigError, match="plan p, arm .*: names of plans.* are folders") as found:
        load_plan(str(tmp_path / "p.toml"))
    assert (found.value.where, bool(found.value.remedy)) == (str(tmp_path / "p.toml"), True)


def test_a_lab_without_training_problems_names_what_to_raise(tmp_path):
    arm = student(tmp_path, "b")
    arm.school = dataclasses.replace(arm.school, ground=SimpleNamespace(problems=()))
    with pytest.raises(ConfigError, match="stage 'once' needs training problems") as found:
        arm._stage(further(PLAN, PLAN.arm("b"))[0], [], None, "1-once")
    assert found.value.where == str(arm.folder / "1-once")
    assert "`problems`" in found.value.remedy
