"""Stages of a lab's arms that ask a model's server are held to it, and the arms to one teacher."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

from palio.cli.main import app
from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.lab import Lab
from palio.evaluate.experiment.plan import Arm
from palio.evaluate.experiment.student import School, Student
from palio.evaluate.experiment.task import Task
from palio.records import ConfigError, MissingDependencyError, ResumeError, UpstreamError, digest
from palio.train.checkpoint import CHECKPOINT, checkpoint_folder
from palio.train.rollouts import read_rollouts
from palio.train.servers import ENDPOINT
from palio.train.stage import Keys
from tests.experiment.test_bad_labs import note
from tests.experiment.test_draw import FIREHOSE, plan
from tests.train.conftest import shop  # noqa: F401 - a fixture
from tests.train.test_same_server import KEY, NAME, Killed, Server
from tests.train.test_stages import SHORT, ground  # noqa: F401 - a fixture


def arm(name, url):
    sampling = {"samples": 2, "model": NAME, "base_url": url, "threads": 1}
    return Arm(name=name, sft=False, stages=({"kind": "teacher", "sampling": sampling, **SHORT},))


@pytest.fixture
def school(ground, tmp_path):  # noqa: F811
    """Seeds whose base is the checkpoint that ships."""
    for seed in ("0", "1"):
        base = tmp_path / "seeds" / seed / "base"
        shutil.copytree(checkpoint_folder(Path("bundled")), base / CHECKPOINT)
        (base / "stage.json").write_text(json.dumps({"checkpoint": CHECKPOINT}))
    config = LabConfig(catalogues=1)
    return School(config, tmp_path / "seeds", FIREHOSE, ground, lambda: 0.0, Keys(KEY))


def teach(school, url, name="a", seed=0, tell=note):
    made = plan(*(arm(each, url) for each in ("a", "b")), support="own")
    task = Task(made, made.arm(name), seed)
    return Student(school, task, task.folder(school.seeds.parent), tell).teach()


def killed(text):
    if "100 %" not in text and " 0 %" not in text:
        raise Killed


def test_a_stage_goes_on_with_its_server_and_no_arm_learns_of_another_one(school, tmp_path):
    one, two = {"root": "one"}, {"root": "two"}
    server = Server(one)
    stage = tmp_path / "arms" / "p" / "a" / "0" / "1-teacher"
    with server.running() as place:
        with pytest.raises(Killed):
            teach(school, place.url, tell=killed)
        assert read_rollouts(stage), "it had answers"
        asked, server.entry = server.asked, two
        with pytest.raises(
            ResumeError, match='began with another.*says.root: "one" -> "two"'
        ) as no:
            teach(school, place.url)
        assert (no.value.where, server.asked) == (str(stage), asked)
        assert "put that one back, name another --out, or remove the folder" in no.value.remedy
        with pytest.raises(ResumeError, match=r"is another than that of stage 'p/a/0/1-teacher'"):
            teach(school, place.url, "b")
        server.entry = one
        made = teach(school, place.url)
        told = {"base_url": place.url, "name": NAME, "says": {"id": NAME, **one}}
        assert json.loads((stage / "run.json").read_bytes())["config"][ENDPOINT] == told
        assert json.loads((stage / "stage.json").read_bytes())[ENDPOINT] == told
        manifest = json.loads((made.checkpoint / "manifest.json").read_bytes())
        assert manifest["inputs"][ENDPOINT] == digest(told)
        server.entry = two
        for other in ({"name": "b"}, {"seed": 1}):
            with pytest.raises(ResumeError, match=r"is another than that of.*'p/a/0/1-teacher'"):
                teach(school, place.url, **other)
        assert not list(tmp_path.glob("arms/*/b/*/*/rollouts.jsonl"))
    assert teach(school, place.url).checkpoint == made.checkpoint, "what is finished asks nobody"
    with pytest.raises(UpstreamError, match="nobody to ask"):
        teach(school, place.url, "b")
    assert not any(KEY.encode() in path.read_bytes() for path in stage.rglob("*") if path.is_file())


def stopped(*_):
    raise Killed


def test_a_server_that_gave_no_arm_anything_may_become_another(school, tmp_path):
    server = Server({"root": "one"})
    with server.running() as place:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("palio.train.stages.teacher.lessons", stopped)
            with pytest.raises(Killed):
                teach(school, place.url)
        server.entry = {"root": "two"}
        teach(school, place.url, "b")
        assert teach(school, place.url).measures
    files = tmp_path.glob("arms/p/*/0/1-teacher/run.json")
    said = [json.loads(file.read_bytes())["config"][ENDPOINT]["says"]["root"] for file in files]
    assert said == ["two", "two"]


def test_what_no_stage_can_do_is_told_before_an_arm_is_trained(school, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="stage 'teacher': .*is no URL of a model") as found:
        teach(school, "localhost:8000")
    assert found.value.where == "plan p, arm a"
    assert not (tmp_path / "arms").exists()
    monkeypatch.setattr("palio.train.rl.pushed.find_spec", lambda _: None)
    pushes = Arm(name="a", stages=({"kind": "grpo", "base_url": "http://127.0.0.1:9"},))
    task = Task(plan(pushes), pushes, 0)
    with pytest.raises(MissingDependencyError, match="stage 'grpo': .*needs vLLM"):
        Student(school, task, task.folder(tmp_path), note).teach()
    done = task.folder(tmp_path) / "1-grpo"
    done.mkdir(parents=True)
    (done / "stage.json").write_text("{}")
    without = replace(school, config=msgspec.structs.replace(school.config, recipe="no such"))
    with pytest.raises(ConfigError, match="no such recipe"):  # finished: nothing is asked of it
        Student(without, task, task.folder(tmp_path), note).teach()


def test_the_key_comes_from_the_environment(tmp_path, monkeypatch):
    keys = []

    def tasks(lab, plans, seeds):
        lab.ground = SimpleNamespace(pool=lambda _: (), catalogue_ids=())
        lab.firehose = []
        keys.append(lab.school.keys)
        return []

    monkeypatch.setattr(Lab, "prepare", lambda _: None)
    monkeypatch.setattr(Lab, "open_tasks", tasks)
    words = ["experiment", "run", "--out", str(tmp_path)]
    told = {"PALIO_TEACHER_KEY": KEY, "PALIO_SAMPLER_KEY": "s"}
    result = CliRunner().invoke(app, words, env=told)
    assert (result.exit_code, keys) == (0, [Keys(KEY, "s")]), result.output
