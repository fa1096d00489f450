"""What stages saw is counted, and a problem from outside the training pool is found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from palio.cli.train import app
from palio.corpus.build import read_pools
from palio.corpus.rows import read_rows
from palio.judging.encoders import default_encoder
from palio.records import InputError, Message, Suite, to_json
from palio.suites.files import read_suite, write_suite
from palio.train.audit import AUDIT, audit_run, read_audit, write_audit
from palio.train.card import write_card
from palio.train.ground import open_ground
from palio.train.reading import read_recipe
from palio.train.rollouts import FILE, read_rollouts
from palio.train.rows import told_digests
from palio.train.run import Options, train
from palio.train.seen import SEEN, Seen, Witness, products_shown, read_seen
from tests.environments.conftest import Made, made  # noqa: F401 - a fixture
from tests.sandbox.conftest import driver_or_skip

SMALL = {
    "vocabulary": 600,
    "sample": 30,
    "hidden_size": 32,
    "intermediate_size": 48,
    "layers": 1,
    "head_dim": 16,
}
SHORT = {"tokens": 1500, "batch": 600}
LESSONS = {
    "samples": 1,
    "temperature": 0.0,
    "top_p": 1.0,
    "model": "scripted-careful",
    "problems": 9,
}


@pytest.fixture(scope="module")
def finished(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A run of two stages on the corpus."""
    out = tmp_path_factory.mktemp("run")
    corpus = made.folder / "corpus"
    catalogues = [made.folder / name for name in made.worlds]
    suite = made.folder / "suite.json"
    ground = open_ground(suite, catalogues, corpus, encoder=default_encoder())
    teacher = {"kind": "teacher", "mix": 0.5, "sampling": {**LESSONS, "threads": 2}, **SHORT}
    stages = [{"kind": "sft", **SHORT}, teacher]
    recipe = read_recipe({"name": "t", "model": SMALL, "stage": stages})
    train(recipe, corpus, out, ground=ground, options=Options(threads=1))
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def files(made: Made) -> tuple[Path, Path]:  # noqa: F811
    return made.folder / "corpus", made.folder / "suite.json"


def test_counts_are_those_of_a_slow_count(run: Path, made: Made) -> None:  # noqa: F811
    """Every target against the text of every result, one by one."""
    found = audit_run(run, *files(made))
    assert found.clean
    pools = read_pools(made.folder / "corpus")
    trained = {
        (p.catalogue, r.product_id)
        for p in made.problems
        for r in p.rewards
        if pools.get(p.problem_id) == "train"
    }
    held: dict[str, set[tuple[str, str]]] = {}
    for problem in made.problems:
        pool = pools.get(problem.problem_id, "unassigned")
        if pool != "train":
            ids = {(problem.catalogue, r.product_id) for r in problem.rewards}
            held.setdefault(pool, set()).update(ids - trained)
    assert found.targets == {pool: len(ids) for pool, ids in held.items()}
    catalogue = {p.problem_id: p.catalogue for p in made.problems}
    talks = [
        (catalogue[row.problem_id], [m["content"] for m in row.messages if m["role"] == "tool"])
        for row in read_rows(made.folder / "corpus" / "train.jsonl")
    ]
    for rollout in read_rollouts(run / "teacher"):
        texts = [m.content for m in rollout.trajectory.messages if m.role == "tool"]
        talks.append((catalogue[rollout.problem_id], texts))
    shown: Counter[str] = Counter()
    for pool, ids in held.items():
        for where, product in ids:
            mark = f'"product_id":"{product}"'
            shown[pool] += any(where == name and mark in "".join(t) for name, t in talks)
    last = found.stages[-1]
    assert dict(shown) == last.targets
    assert sum(shown.values()) > 0, "neighbours of a shared catalogue are seen"
    assert (last.rollouts, found.stages[0].rollouts) == (9, 0)
    assert last.showing >= found.stages[0].showing > 0
    assert write_audit(run, found) == ""
    assert read_audit(run) == found


def test_a_problem_from_outside_is_found(run: Path, made: Made) -> None:  # noqa: F811
    pools = read_pools(made.folder / "corpus")
    stranger = next(name for name, pool in sorted(pools.items()) if pool == "heldout")
    path = run / "teacher" / FILE
    line = json.loads(path.read_bytes().splitlines()[0])
    for name in (stranger, "nobody"):
        with path.open("ab") as file:
            file.write(json.dumps({**line, "problem_id": name}).encode() + b"\n")
    found = audit_run(run, *files(made))
    assert found.outside == tuple(sorted((stranger, "nobody")))
    assert found.stages[0].outside == ()
    options = ["--corpus", str(files(made)[0]), "--suite", str(files(made)[1])]
    result = CliRunner().invoke(app, ["audit", str(run), *options])
    assert result.exit_code == 1
    assert f"problem {stranger} is not in the training pool" in result.output
    assert "2 problems that are **not**" in write_card(run).read_text()


def test_on_the_command_line_and_in_the_card(run: Path, made: Made) -> None:  # noqa: F811
    assert "What the stages saw" not in write_card(run).read_text()
    options = ["--corpus", str(files(made)[0]), "--suite", str(files(made)[1])]
    result = CliRunner().invoke(app, ["audit", str(run), *options, "--json"])
    assert result.exit_code == 0, result.output
    plain = json.loads(result.stdout)
    assert [stage["kind"] for stage in plain["stages"]] == ["sft", "teacher"]
    shown = CliRunner().invoke(app, ["audit", str(run), *options]).output
    assert "teacher" in shown
    for stage in plain["stages"]:
        digests = told_digests(run / stage["name"])
        assert stage["digests"] == digests
        assert digests.keys() == {"template", "rows"}
        line = f"{stage['name']}: template {digests['template']}, rows {digests['rows']}"
        assert line in shown
        assert f"`{digests['rows']}`" in write_card(run).read_text()
    card = write_card(run).read_text()
    assert "no problem outside the training pool" in card
    assert "| teacher |" in card


def test_a_read_only_run_is_audited_and_what_is_not_written_is_told(
    run: Path,
    made: Made,  # noqa: F811
) -> None:
    driver_or_skip("bwrap")
    corpus, suite = files(made)
    palio = [sys.executable, "-c", "from palio.cli.main import run; run()"]
    command = [*palio, "train", "audit", str(run), "--corpus", str(corpus), "--suite", str(suite)]
    bare = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(run), str(run)]

    def audit() -> subprocess.CompletedProcess[str]:
        return subprocess.run([*bare, *command], capture_output=True, text=True, check=False)

    found = audit()
    assert (found.returncode, "verdict: clean" in found.stdout) == (0, True), found.stderr
    assert f"{run / AUDIT}: not written: Read-only file system" in found.stderr
    assert "audit a copy" in found.stderr
    assert not (run / AUDIT).exists()
    (run / AUDIT).write_text("{}")
    (run / "teacher" / FILE).unlink()
    found = audit()
    assert (found.returncode, "stage teacher left no record" in found.stderr) == (1, True)
    assert "what lies there is another audit" in found.stderr
    assert (run / AUDIT).read_text() == "{}"


def test_stages_with_different_chat_templates_are_told(run: Path, made: Made) -> None:  # noqa: F811
    path = run / "sft" / "checkpoint" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["inputs"]["template"] = "sha256:other"
    path.write_text(json.dumps(manifest))
    found = audit_run(run, *files(made))
    assert len(found.templates) == 2
    options = ["--corpus", str(files(made)[0]), "--suite", str(files(made)[1])]
    shown = CliRunner().invoke(app, ["audit", str(run), *options]).output
    assert "different chat templates: sha256:other" in shown


def test_rollouts_without_a_record_are_told_and_not_taken_for_none(run: Path, made: Made) -> None:  # noqa: F811
    (run / "teacher" / FILE).unlink()
    found = audit_run(run, *files(made))
    assert found.unknown == ("teacher",)
    assert not found.clean
    write_audit(run, found)
    assert "not recorded by teacher" in write_card(run).read_text()


def test_another_corpus_or_no_run_is_refused(run: Path, made: Made, tmp_path: Path) -> None:  # noqa: F811
    corpus, suite = files(made)
    with pytest.raises(InputError, match="no run here"):
        audit_run(tmp_path, corpus, suite)
    other = tmp_path / "corpus"
    shutil.copytree(corpus, other)
    (other / "manifest.json").unlink()
    rows = (corpus / "train.jsonl").read_bytes().splitlines(keepends=True)
    (other / "train.jsonl").write_bytes(b"".join(rows[1:]))
    with pytest.raises(InputError, match="another corpus"):
        audit_run(run, other, suite)
    first, *rest = read_suite(suite).problems
    reworded = Suite(suite_id="s", version="1", problems=(replace(first, query="a lamp"), *rest))
    write_suite(reworded, tmp_path / "suite.json")
    with pytest.raises(InputError, match="another problem than that of the corpus"):
        audit_run(run, corpus, tmp_path / "suite.json")


def test_ids_are_read_from_results_and_from_nothing_else() -> None:
    rows = '[{"product_id":"7","price":9,"more":[{"product_id":8}]}]\nWarning: "product_id":"1"'
    talk = [
        Message(role="user", content='{"product_id":"2"}'),
        Message(role="tool", content=rows, tool_call_id="a"),
        Message(role="tool", content="no JSON 3", tool_call_id="b"),
        Message(role="tool", content='"product_id"', tool_call_id="c"),
    ]
    assert products_shown(talk) == ("7", "8")


def test_a_witness_changes_nothing_and_leaves_a_line_each(tmp_path: Path) -> None:
    from palio.train.rl.rollouts import Rollout

    class Steps:
        keys = ("p/1/0#1", "p/1/0#3")

        def roll(self, keys: Any, seeds: Any, sampler: Any) -> list[Rollout]:
            del seeds, sampler
            return [Rollout(key, [1], [2], [True], [0.0], (), 1.0, None, True) for key in keys]

    witness = Witness(Steps(), tmp_path)
    assert read_seen(tmp_path) is None
    assert [each.key for each in witness.roll(witness.keys, [1, 2], None)] == [*Steps.keys]  # type: ignore[arg-type]
    with (tmp_path / SEEN).open("ab") as file:
        file.write(to_json(Seen(problem_id="torn"))[:9])
    told = read_seen(tmp_path)
    assert told is not None
    assert [(each.problem_id, each.seed, each.products) for each in told] == [
        ("p/1", 1, ()),
        ("p/1", 2, ()),
    ]
    assert told[0].row == told[1].row != ""
