"""Every run knows the weights that its arm's fine-tuning began with."""

import itertools
import json
import shutil
from types import SimpleNamespace

import pytest

from palio.evaluate.experiment import lab as laboratory
from palio.evaluate.experiment import student as module
from palio.evaluate.experiment.plan import Arm
from palio.evaluate.experiment.student import DONE, WEIGHTS, base_digest
from palio.evaluate.experiment.task import Task
from palio.train.batches import Example
from palio.train.loop import LOSS_TOKENS
from palio.train.stage import StageResult
from palio.world.artefacts import file_digest
from tests.experiment.test_bad_labs import CONFIG, STAGES, Quiet, plan, student

ARMS = plan(
    Arm(name="a"),
    Arm(name="untrained", sft=False),
    Arm(name="b", start="a", sft=False, stages=STAGES[:1]),
    Arm(name="c", start="b", sft=False, stages=STAGES[1:]),
)


@pytest.fixture
def teach(tmp_path, monkeypatch):
    """Teaches an arm by stages that write other weights each time; gives the facts of its run."""
    written = itertools.count()

    def run(settings, context, previous, out, report):
        checkpoint = out / "checkpoint"
        checkpoint.mkdir()
        (checkpoint / WEIGHTS).write_text(f"weights {next(written)}")
        return StageResult(checkpoint, {"tokens": 9, "steps": 3, LOSS_TOKENS: 7})

    kind = SimpleNamespace(ground=False, run=run, asks=lambda *_: None)
    monkeypatch.setattr(module, "kind_named", lambda _: kind)
    monkeypatch.setattr(module, "base_rows", lambda *_: [])
    monkeypatch.setattr(module, "draw", lambda *_: ["a row"])
    monkeypatch.setattr(module, "examples_of", lambda *_: [Example((1, 2), (0,))])
    return lambda arm: student(tmp_path, arm, ARMS).teach().facts()


def test_the_base_of_a_run_is_that_of_the_arm_whose_fine_tuning_it_goes_on_from(teach, tmp_path):
    assert base_digest(tmp_path / "seeds", 0) == "", "not made yet"
    first = teach("a")["base"]
    folder = tmp_path / "seeds" / "0" / "base"
    assert (
        first == file_digest(folder / "checkpoint" / WEIGHTS) == base_digest(folder.parents[1], 0)
    )
    shutil.rmtree(folder)
    again = teach("untrained")
    assert again["base"] == again["checkpoint"] == base_digest(tmp_path / "seeds", 0) != first
    assert [teach(arm)["base"] for arm in ("b", "c", "a")] == [first] * 3, "not today's"


def test_a_twin_is_looked_for_with_the_base_that_is_at_hand(teach, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(laboratory, "twin_of", lambda *_, base, **__: given.append(base))
    lab = laboratory.Lab(CONFIG, tmp_path, Quiet())
    lab.firehose = []
    lab._twin(Task(ARMS, ARMS.arm("a"), 0))
    assert given == [""]
    wanted = teach("a")["base"]
    lab._twin(Task(ARMS, ARMS.arm("a"), 0))
    assert given == ["", wanted]


def test_a_stage_of_an_older_version_tells_no_base_and_no_count(teach, tmp_path):
    facts = teach("a")
    assert (facts["loss_tokens"], facts["loss_counted"]) == (CONFIG.loss_tokens, 7)
    (mark,) = (tmp_path / "arms").glob(f"*/a/0/0-sft/{DONE}")
    plain = json.loads(mark.read_bytes())
    del plain["start"], plain["counts"][LOSS_TOKENS]
    mark.write_text(json.dumps(plain))
    facts = teach("a")
    assert (facts["base"], facts["loss_counted"]) == ("", 0)
    assert facts["loss_tokens"] == CONFIG.loss_tokens
