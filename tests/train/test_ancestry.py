"""What weights were trained on before counts like a run's own, and is unknown where none tells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio.cli.train import app
from palio.corpus.build import read_pools
from palio.judging.encoders import default_encoder
from palio.records import to_json
from palio.train.audit import RunAudit, audit_run, read_audit, write_audit
from palio.train.card import write_card
from palio.train.ground import open_ground
from palio.train.reading import read_recipe
from palio.train.rollouts import FILE
from palio.train.run import Options, train
from palio.train.seen import SEEN, Seen
from palio.train.serving import weights_digest
from palio.world.artefacts import file_digest
from tests.environments.conftest import Made, made  # noqa: F401 - a fixture
from tests.train.test_audit import LESSONS, SHORT, SMALL

Edit = Callable[[dict[str, Any]], object]


class Runs:
    """Two runs, the second of which began with the last checkpoint of the first.

    Attributes:
        first, second: their folders.
    """

    def __init__(self, folder: Path, made: Made) -> None:  # noqa: F811
        self.first, self.second, self._made = folder / "first", folder / "second", made

    @property
    def corpus(self) -> Path:
        return self._made.folder / "corpus"

    @property
    def suite(self) -> Path:
        return self._made.folder / "suite.json"

    def audit(self, *also: Path) -> RunAudit:
        found = audit_run(self.second, self.corpus, self.suite, also)
        assert not write_audit(self.second, found)
        return found

    def told(self) -> tuple[int, str]:
        """Exit status and output of the command."""
        options = ["--corpus", str(self.corpus), "--suite", str(self.suite)]
        result = CliRunner().invoke(app, ["audit", str(self.second), *options])
        return result.exit_code, " ".join(result.output.split())

    def starts_from(self, folder: Path, checkpoint: Path | None = None) -> None:
        """As if the second had begun with another checkpoint, and had noted it."""
        edit(
            self.second / "chain.json",
            lambda told: told["config"]["model"].update(start=str(folder)),
        )
        if checkpoint is not None:
            noted = file_digest(checkpoint / "manifest.json")
            edit(
                self.second / "sft" / "stage.json",
                lambda told: told["inputs"].update(checkpoint=noted),
            )

    def taught_by(self, place: Path, **noted: str) -> None:
        """As if the second's only stage had been a distillation from random weights."""

        def change(told: dict[str, Any]) -> None:
            told["config"]["model"]["start"] = ""
            told["config"]["stages"] = [{"kind": "distill", "name": "sft", "teacher": str(place)}]

        edit(self.second / "chain.json", change)
        edit(self.second / "sft" / "stage.json", lambda told: told["inputs"].update(noted))
        pools = read_pools(self.corpus)
        trained = next(name for name, pool in sorted(pools.items()) if pool == "train")
        (self.second / "sft" / SEEN).write_bytes(to_json(Seen(problem_id=trained)) + b"\n")


def edit(path: Path, change: Edit) -> None:
    told = json.loads(path.read_bytes())
    change(told)
    path.write_text(json.dumps(told))


@pytest.fixture(scope="module")
def trained(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("runs")
    corpus = made.folder / "corpus"
    catalogues = [made.folder / name for name in made.worlds]
    ground = open_ground(made.folder / "suite.json", catalogues, corpus, encoder=default_encoder())
    teacher = {"kind": "teacher", "mix": 0.5, "sampling": {**LESSONS, "threads": 2}, **SHORT}
    first = read_recipe({"name": "a", "model": SMALL, "stage": [{"kind": "sft", **SHORT}, teacher]})
    train(first, corpus, folder / "first", ground=ground, options=Options(threads=1))
    start = {"start": str(folder / "first")}
    second = read_recipe({"name": "b", "model": start, "stage": [{"kind": "sft", **SHORT}]})
    train(second, corpus, folder / "second", options=Options(threads=1))
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, made: Made) -> Runs:  # noqa: F811
    found = Runs(tmp_path, made)
    for folder in (found.first, found.second):
        shutil.copytree(trained / folder.name, folder)
    found.starts_from(found.first)
    return found


def test_what_the_run_before_saw_is_taken_over(runs: Runs) -> None:
    found = runs.audit()
    own = audit_run(runs.first, runs.corpus, runs.suite)
    assert own.origins == ()
    assert found.origins is not None
    [origin] = found.origins
    assert (origin.role, origin.known, origin.made_by, origin.run) == (
        "start",
        "run",
        "first",
        "second",
    )
    assert origin.stages == own.stages
    assert [stage.name for stage in found.every] == ["sft", "teacher", "sft"]
    assert found.clean
    assert read_audit(runs.second) == found
    status, output = runs.told()
    assert status == 0
    assert "which first made" in output
    assert output.endswith("verdict: clean")
    card = write_card(runs.second).read_text()
    assert "| first: teacher |" in card
    assert "**Verdict: clean**" in card
    assert f"It does not reach to what `{runs.first}` was trained on" in card


def test_a_held_out_problem_that_the_run_before_saw_is_no_less_seen(runs: Runs) -> None:
    pools = read_pools(runs.corpus)
    stranger = next(name for name, pool in sorted(pools.items()) if pool == "heldout")
    path = runs.first / "teacher" / FILE
    line = json.loads(path.read_bytes().splitlines()[0])
    with path.open("ab") as file:
        file.write(json.dumps({**line, "problem_id": stranger}).encode() + b"\n")
    found = runs.audit()
    assert found.stages[0].outside == ()
    assert (found.outside, found.verdict, found.clean) == ((stranger,), "outside", False)
    status, output = runs.told()
    assert status == 1
    assert f"problem {stranger} is not in the training pool" in output
    assert "1 problems that are **not**" in write_card(runs.second).read_text()
    path.unlink()
    assert runs.audit().unknown == ("teacher",)


def test_stages_after_the_checkpoint_do_not_count(runs: Runs) -> None:
    runs.starts_from(runs.first / "sft", runs.first / "sft" / "checkpoint")
    found = runs.audit()
    assert found.origins is not None
    assert [stage.name for stage in found.origins[0].stages] == ["sft"]
    assert found.clean


def test_the_run_before_the_run_before_counts_too(runs: Runs, tmp_path: Path) -> None:
    third = Runs(tmp_path, runs._made)
    third.second = tmp_path / "third"
    shutil.copytree(runs.second, third.second)
    third.starts_from(runs.second, runs.second / "sft" / "checkpoint")
    found = third.audit()
    assert [(each.run, each.made_by) for each in found.origins or ()] == [
        ("third", "second"),
        ("second", "first"),
    ]
    assert found.clean
    shutil.rmtree(runs.first)
    assert third.audit().verdict == "unknown"


def lost(runs: Runs) -> None:
    shutil.rmtree(runs.first)


def changed(runs: Runs) -> None:
    edit(runs.first / "teacher" / "checkpoint" / "manifest.json", lambda told: told.update(seed=9))


def moved(runs: Runs) -> None:
    away = runs.first.with_name("away") / "checkpoint"
    shutil.copytree(runs.first / "teacher" / "checkpoint", away)
    runs.starts_from(away)


def rehearsed(runs: Runs) -> None:
    edit(runs.first / "chain.json", lambda told: told["config"].update(dry=True))


def bundled(runs: Runs) -> None:
    runs.starts_from(Path("bundled"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lost, "does not lie there any more"),
        (changed, "what lies there now is not what the stage read"),
        (moved, "the run that made it does not lie around it"),
        (rehearsed, "a dry run made it"),
        (bundled, "what lies there now is not what the stage read"),
    ],
)
def test_weights_that_no_run_tells_of_are_unknown(
    runs: Runs, change: Callable[[Runs], None], why: str
) -> None:
    change(runs)
    found = runs.audit()
    assert (found.verdict, found.clean, found.outside) == ("unknown", False, ())
    [origin] = found.lost
    assert why in origin.why
    status, output = runs.told()
    assert status == 1
    assert why in output
    assert "verdict: unknown" in output
    card = write_card(runs.second).read_text()
    assert "**Verdict: unknown**" in card
    assert why in card


def test_a_run_on_another_corpus_wants_that_corpus(runs: Runs, tmp_path: Path) -> None:
    """Its rows are held against the pools of the run that is looked at."""
    other = tmp_path / "other"
    other.mkdir()
    rows = (runs.corpus / "train.jsonl").read_bytes().splitlines(keepends=True)
    (other / "train.jsonl").write_bytes(b"".join(rows[1:]))
    noted = file_digest(other / "train.jsonl")
    edit(runs.first / "chain.json", lambda told: told["inputs"].update(corpus=noted))
    found = runs.audit()
    assert found.verdict == "unknown"
    assert "first made it of another corpus, which nobody named" in found.lost[0].why
    told = runs.audit(other)
    assert told.clean
    assert told.origins is not None
    assert told.origins[0].stages[0].rows == len(rows) - 1
    edited = json.loads(rows[1])
    edited["problem_id"] = "nobody"
    (other / "train.jsonl").write_bytes(json.dumps(edited).encode() + b"\n")
    noted = file_digest(other / "train.jsonl")
    edit(runs.first / "chain.json", lambda told: told["inputs"].update(corpus=noted))
    assert runs.audit(other).outside == ("nobody",)


@pytest.mark.parametrize("path", ["Qwen/Qwen3-4B", "package:no_such_package/weights"])
def test_of_a_public_model_nobody_can_tell_and_that_is_said(runs: Runs, path: str) -> None:
    """It is not clean; and no fault of the run, so that the command does not fail."""

    def change(told: dict[str, Any]) -> None:
        told["config"].update(model=None, pretrained={"path": path})

    edit(runs.second / "chain.json", change)
    found = runs.audit()
    assert (found.verdict, found.clean, found.lost) == ("unknown", False, ())
    status, output = runs.told()
    assert status == 0
    assert (
        f"began with {path}: of the hub or a package: what it was pre-trained on cannot" in output
    )
    assert "verdict: unknown" in output
    card = write_card(runs.second).read_text()
    assert "**Verdict: unknown**" in card
    assert "what it was pre-trained on cannot be known here" in card


def test_a_folder_of_weights_from_nowhere_is_unknown(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()

    def change(told: dict[str, Any]) -> None:
        told["config"].update(model=None, pretrained={"path": str(tmp_path / "weights")})

    edit(runs.second / "chain.json", change)
    assert "no run of palio tells how it was made" in runs.audit().lost[0].why
    assert runs.told()[0] == 1


def test_the_teacher_of_a_distillation_is_followed(runs: Runs) -> None:
    checkpoint = runs.first / "sft" / "checkpoint"
    runs.taught_by(runs.first / "sft", teacher=weights_digest(checkpoint))
    found = runs.audit()
    assert found.origins is not None
    [origin] = found.origins
    assert (origin.role, origin.known, origin.made_by) == ("teacher", "run", "first")
    assert [stage.name for stage in origin.stages] == ["sft"]
    assert found.clean
    assert "was taught by" in runs.told()[1]
    runs.taught_by(runs.first / "sft", teacher="sha256:other")
    assert runs.audit().verdict == "unknown"
    runs.taught_by(runs.first / "sft", teacher="")
    assert "noted no digest" in runs.audit().lost[0].why, "as runs did before it was held"


def test_an_audit_of_before_is_read_and_is_not_clean(runs: Runs) -> None:
    runs.audit()
    edit(runs.second / "audit.json", lambda told: told.pop("origins"))
    found = read_audit(runs.second)
    assert found is not None
    assert (found.origins, found.verdict) == (None, "unknown")
    assert "Nobody asked what the run began with" in write_card(runs.second).read_text()
