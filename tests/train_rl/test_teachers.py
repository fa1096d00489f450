"""A teacher behind HTTP is asked with its key; what it leaves open is told and earns no zero."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.broker.upstream import RejectedError
from palio.cli.main import app
from palio.corpus.rows import CorpusRow
from palio.records import Suite, UpstreamError, to_json
from palio.suites.files import write_suite
from palio.train.engine import Sampled
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.rl.credit import Told, check_teacher, credit_measures
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.sampler import Decoding
from palio.train.rollouts import read_rollouts
from palio.train.run import Options, train
from palio.train.stage import Keys, read_metrics
from palio.train.text import END, REPLY, assistant_text
from palio.world.catalogue import write_catalogue
from tests.train_rl.conftest import Scene

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

KEY = "sk-teacher-7"
SAMPLING = {"samples": 1, "temperature": 0.0, "top_p": 1.0, "problems": 3, "threads": 2}
TRL = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "save_steps": 1,
}
GRPO = {"kind": "grpo", "group": 2, "groups": 2, "problems": 2, "probe": 0, "threads": 2}


class Replayed:
    """A student that says, turn by turn, what the careful shopper said to the same request."""

    def __init__(self, scene: Scene) -> None:
        self.tokenizer = scene.tokenizer
        self.talks = {
            talk.messages[0].content: [m for m in talk.messages if m.role == "assistant"]
            for talk in scene.talks
        }

    def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
        text = self.tokenizer.decode(ids)
        asked = text.removeprefix("<|im_start|>user\n").split(END)[0]
        turn = self.talks[asked][text.count(REPLY) - 1]
        said = self.tokenizer.encode(assistant_text(turn) + END)[: decoding.max_tokens]
        return Sampled(said, [-0.5] * len(said))


@pytest.fixture
def student(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy's rollouts are the careful shopper's: random weights would make no call."""

    @contextmanager
    def sampler(self: OwnPolicy, trainer: Any) -> Iterator[Replayed]:
        yield Replayed(scene)

    monkeypatch.setattr(OwnPolicy, "sampler", sampler)


class Teacher:
    """The scripted shopper behind a server; refuses every `gaps`-th request, 0: none."""

    def __init__(self, gaps: int = 0) -> None:
        self.gaps, self.asked = gaps, 0
        self._lock = threading.Lock()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.asked += 1
            refused = self.gaps and self.asked % self.gaps == 0
        if refused:
            raise RejectedError("the conversation is too long")
        assert body["model"] == "scripted-careful"
        return ScriptedUpstream(0).complete(body)


@pytest.fixture
def corpus(scene: Scene, tmp_path: Path) -> Path:
    rows = [
        CorpusRow(
            messages=tuple(m.to_openai() for m in talk.messages),
            tools="[]",
            trajectory_id=talk.problem_id,
            problem_id=talk.problem_id,
            cluster_id=talk.problem_id,
            agent="careful",
            kind="product",
        )
        for talk in scene.talks[:6]
    ]
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"".join(to_json(row) + b"\n" for row in rows))
    return path


def grpo(checkpoint: Path, url: str, **more: Any) -> Recipe:
    teacher = {"base_url": url, "model": "scripted-careful"}
    stage = {**GRPO, "trl": TRL, "teacher": teacher, **more}
    return read_recipe({"name": "t", "model": {"start": str(checkpoint)}, "stage": [stage]})


def options(key: str = KEY) -> Options:
    return Options(uncertified=True, threads=1, keys=Keys(key))


def toml(checkpoint: Path, url: str) -> str:
    """Both stages that ask a teacher, by the same address."""
    teacher = {**SAMPLING, "base_url": url, "model": "scripted-careful"}
    told: dict[str, dict[str, Any]] = {
        "teacher": {"tokens": 1500, "batch": 600},
        "teacher.sampling": teacher,
        "grpo": {name: value for name, value in GRPO.items() if name != "kind"},
        "grpo.teacher": {"base_url": url, "model": "scripted-careful"},
        "grpo.trl": TRL,
    }
    lines = ['name = "t"', "[model]", f"start = {json.dumps(str(checkpoint))}"]
    for part, values in told.items():
        kind, _, inside = part.partition(".")
        lines += [f"[stage.{inside}]"] if inside else ["[[stage]]", f'kind = "{kind}"']
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(lines)


@pytest.mark.usefixtures("student")
def test_both_stages_ask_a_teacher_behind_http_with_the_key_of_the_environment(
    scene: Scene, checkpoint: Path, corpus: Path, tmp_path: Path
) -> None:
    [world] = scene.ground.worlds.values()
    write_catalogue(world.catalogue, tmp_path / "world")
    suite = Suite(suite_id="s", version="1", problems=tuple(scene.ground.problems))
    write_suite(suite, tmp_path / "suite.json")
    pools = {each.problem_id: "train" for each in scene.ground.problems}
    (tmp_path / "pools.json").write_text(json.dumps(pools))
    command = ["train", str(tmp_path / "recipe.toml"), "--corpus", str(corpus), "--uncertified"]
    command += ["--suite", str(tmp_path / "suite.json"), "--catalogue", str(tmp_path / "world")]
    command += ["--pools", str(tmp_path / "pools.json"), "--threads", "1"]
    with ModelServer(Teacher(), api_key=KEY) as server:
        (tmp_path / "recipe.toml").write_text(toml(checkpoint, server.url))
        told = {"PALIO_TEACHER_KEY": KEY}
        out = ["--out", str(tmp_path / "run")]
        done = CliRunner().invoke(app, [*command, *out], env=told, catch_exceptions=False)
        assert done.exit_code == 0
        wrong = ["--out", str(tmp_path / "wrong")]
        refused = CliRunner().invoke(app, [*command, *wrong], env={"PALIO_TEACHER_KEY": "no"})
    lessons = read_rollouts(tmp_path / "run" / "teacher")
    assert len(lessons) == 3
    assert any(each.success for each in lessons)
    rows = read_metrics(tmp_path / "run" / "grpo")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["step_reward"] == pytest.approx(1.0), "the student does what the teacher would"
        assert row["step_reward/uncredited"] == 0.0
    assert isinstance(refused.exception, UpstreamError)
    assert "401" in str(refused.exception)
    assert "check the key" in str(refused.exception)
    assert not (tmp_path / "wrong" / "teacher" / "checkpoint").exists()


@pytest.mark.usefixtures("student")
def test_a_teacher_that_never_answers_stops_the_stage_and_is_named(
    scene: Scene, checkpoint: Path, corpus: Path, tmp_path: Path
) -> None:
    teacher = Teacher()
    with ModelServer(teacher, api_key=KEY) as server:
        recipe = grpo(checkpoint, server.url)
        run = tmp_path / "run"
        with pytest.raises(UpstreamError, match="answered for none of the") as caught:
            train(recipe, corpus, run, ground=scene.ground, options=options("wrong"))
        assert caught.value.where.startswith(server.url)
        assert "PALIO_TEACHER_KEY" in caught.value.remedy
        assert not (run / "grpo" / "stage.json").exists()
        assert teacher.asked == 0
        made = train(recipe, corpus, run, ground=scene.ground, options=options())
    assert made.stages[0].counts["steps"] == 2, "with the right key the same run goes on"
    assert made.stages[0].measures["step_reward"] == pytest.approx(1.0)


@pytest.mark.usefixtures("student")
def test_turns_without_an_answer_are_counted_told_and_worth_no_zero(
    scene: Scene,
    checkpoint: Path,
    corpus: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes: list[str] = []
    with ModelServer(Teacher(gaps=3), api_key=KEY) as server:
        told = Options(
            uncertified=True,
            threads=1,
            keys=Keys(KEY),
            report=lambda step: notes.append(step.note),
        )
        recipe = grpo(checkpoint, server.url)
        with caplog.at_level(logging.WARNING, "palio.train.rl.credit"):
            made = train(recipe, corpus, tmp_path / "run", ground=scene.ground, options=told)
    rows = read_metrics(tmp_path / "run" / "grpo")
    assert len(rows) == 2
    for row in rows:
        assert 0 < row["step_reward/uncredited"] < 1
        assert row["step_reward"] == pytest.approx(1.0), "a missing answer is no wrong step"
    assert sum("did not answer for" in record.message for record in caplog.records) == 2
    assert server.url in caplog.text
    assert any("teacher silent for" in note for note in notes)
    assert 0 < made.stages[0].measures["step_reward/uncredited"] < 1


def test_an_outcome_only_stage_has_no_teacher_to_miss() -> None:
    plain = [Told(1.0, None, True, 0, None), Told(None, None, False, 0, None)]
    check_teacher(plain, 1)
    assert credit_measures(plain) == {}


def test_a_rollout_without_calls_does_not_hide_a_teacher_that_is_down() -> None:
    fault = {"what": "down", "where": "http://t/v1", "remedy": "", "code": 3001}
    idle = Told(0.0, (0.0,), False, 0, None)
    lost = Told(0.0, (None, None), False, 2, fault)
    with pytest.raises(UpstreamError, match="none of the 2 turns of step 4: down") as caught:
        check_teacher([idle, lost], 4)
    assert caught.value.where == "http://t/v1"
    half = Told(0.0, (1.0, None), False, 2, fault)
    check_teacher([idle, lost, half], 4)
    found = credit_measures([idle, lost, half])
    assert found == {
        "step_reward/uncredited": 3 / 4,
        "step_reward": 0.5,
        "step_reward/sum": 0.0,
    }
