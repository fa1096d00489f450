"""Every opening of the sealed pool is in a log that cannot be changed without being seen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.cli.eval import app as evaluating
from palio.cli.experiment import app
from palio.cli.race import app as racing
from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.evidence import _opening, write_evidence
from palio.evaluate.experiment.given import LabRuns
from palio.evaluate.experiment.sealed import LOG, Entry, Rate, open_sealed, openings, read_log
from palio.evaluate.mainjob.stages import Stages
from palio.evaluate.mainjob.worlds import make_worlds, open_ground
from palio.evaluate.pin import checkpoint_pin, pin_of
from palio.evaluate.rollouts import read_identity, read_rollouts
from palio.records import ConfigError, InputError, IntegrityError, digest
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.train.checkpoint import save_checkpoint
from palio.train.model import ModelConfig, Qwen3
from palio.train.tokenizer import train_tokenizer
from tests.mainjob.silent import SilentReporter

CONFIG = LabConfig(suite_seed=5, catalogues=2, products=300, problems=60, evaluated=9)
REASON = "the claim of the first release"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab's worlds and two untrained checkpoints."""
    out = tmp_path_factory.mktemp("lab")
    Stages(out, CONFIG, SilentReporter())
    make_worlds(CONFIG, out / "world", lambda _: None)
    ground = open_ground(out / "world")
    agent, driver, upstream = find_agent("careful"), InlineDriver(), ScriptedUpstream()
    talks = [
        run_problem(
            agent, problem, ground.world(problem.catalogue), driver=driver, upstream=upstream
        ).messages
        for problem in ground.pool("train")[:5]
    ]
    tokenizer = train_tokenizer(talks, size=500)
    shape = ModelConfig(
        vocab_size=tokenizer.size, hidden_size=32, intermediate_size=48, layers=1, head_dim=16
    )
    for seed in (1, 2):
        model = Qwen3(shape)
        model.initialise(seed)
        folder = out / f"model-{seed}"
        save_checkpoint(folder, model, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return out


@pytest.fixture
def lab(made: Path) -> Path:
    """The lab, its sealed pool never opened."""

    (made / LOG).unlink(missing_ok=True)
    shutil.rmtree(made / "sealed", ignore_errors=True)
    return made


def opened(lab: Path, model: int = 1, why: str = REASON, at: float = 1e9) -> None:
    open_sealed(lab, lab / f"model-{model}", why, SilentReporter(), who="me", now=lambda: at)


def test_each_opening_is_logged_before_it_begins_and_when_it_ends(lab: Path) -> None:
    opened(lab)
    opened(lab, 2, at=1.1e9)
    found = openings(read_log(lab))
    assert [one.began.opening for one in found] == [1, 2]
    assert found[0].began.at == "2001-09-09T01:46:40+00:00"
    assert (found[0].began.who, found[0].began.why) == ("me", REASON)
    assert len({one.began.checkpoint for one in found}) == 2
    for number, one in enumerate(found, start=1):
        assert one.result is not None
        overall = one.result.rates["overall"]
        assert overall.n + one.result.unscored == 9
        assert overall.low <= overall.successes / overall.n <= overall.high
        held = {row.trajectory.problem_id for row in read_rollouts(lab / "sealed" / str(number))}
        pools = open_ground(lab / "world").pools
        assert {pools[problem] for problem in held} == {"sealed"}
        pin = pin_of(read_identity(lab / "sealed" / str(number)))
        assert pin == checkpoint_pin(lab / f"model-{number}"), "the weights that were examined"


def test_no_reason_no_opening(lab: Path) -> None:
    for reason in ("", "   "):
        with pytest.raises(ConfigError, match="with a reason"):
            opened(lab, why=reason)
    assert not (lab / LOG).exists()
    assert not (lab / "sealed").exists()


def test_one_that_was_broken_off_counts_and_goes_on(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palio.evaluate.experiment import sealed

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sealed, "evaluate_policy", stopped)
        with pytest.raises(KeyboardInterrupt):
            opened(lab)
    whole = (lab / LOG).read_bytes()
    (lab / LOG).write_bytes(whole[:-1])  # killed between an entry and its line end
    assert [one.result for one in openings(read_log(lab))] == [None], "no opening is forgotten"
    (lab / LOG).write_bytes(whole)
    with (lab / LOG).open("ab") as file:
        file.write(b'{"event":"opened","ope')  # a line torn by a kill
    opened(lab, 2)
    opened(lab, 1)
    entries = read_log(lab)
    told = [(entry.event, entry.opening) for entry in entries]
    assert told == [("opened", 1), ("opened", 2), ("result", 2), ("resumed", 1), ("result", 1)]
    assert [one.resumed for one in openings(entries)] == [1, 0]
    shown = CliRunner().invoke(app, ["sealed", "--out", str(lab)]).output.splitlines()
    assert ["resumed 1 times" in line for line in shown[:2]] == [True, False]
    opened(lab, 1)
    assert len(openings(read_log(lab))) == 3


@pytest.mark.parametrize("change", ["edit", "remove", "swap", "forge"])
def test_a_changed_log_is_refused(lab: Path, change: str) -> None:
    opened(lab)
    lines = (lab / LOG).read_bytes().splitlines(keepends=True)
    if change == "edit":
        lines[0] = lines[0].replace(b"first release", b"other release")
    elif change == "remove":
        del lines[0]
    elif change == "swap":
        lines.reverse()
    else:
        entry = msgspec.json.decode(lines[1], type=Entry)
        lines[1] = msgspec.json.encode(msgspec.structs.replace(entry, unscored=5)) + b"\n"
    (lab / LOG).write_bytes(b"".join(lines))
    with pytest.raises(IntegrityError, match="was changed"):
        read_log(lab)
    with pytest.raises(IntegrityError, match="was changed"):
        opened(lab)


def test_the_page_of_evidence_lists_the_openings(lab: Path, tmp_path: Path) -> None:
    write_evidence([], [LabRuns(CONFIG, [])], tmp_path, "")
    assert "No opening is logged" in (tmp_path / "evidence.md").read_text()
    opened(lab)
    entries = read_log(lab)
    write_evidence([], [LabRuns(CONFIG, [], entries)], tmp_path, "")
    page = (tmp_path / "evidence.md").read_text()
    assert f"| 1 | 2001-09-09T01:46:40+00:00 | me | {REASON} |" in page
    assert "n = 9 |" in page
    assert entries[-1].own in page


def test_on_the_command_line(lab: Path, tmp_path: Path) -> None:
    def run(*words: object) -> str:
        return CliRunner().invoke(app, ["sealed", *map(str, words)], catch_exceptions=False).output

    assert "never opened" in run("--out", lab)
    with pytest.raises(ConfigError, match="with a reason"):
        run("--out", lab, "--checkpoint", lab / "model-1")
    text = run("--out", lab, "--checkpoint", lab / "model-1", "--reason", REASON)
    assert "opened 0 times before" in text
    assert "of 9 (95 %: " in text
    assert "%); " + REASON in text
    found = json.loads(run("--out", lab, "--json"))
    assert found[0]["result"]["event"] == "result"
    for asked in ((), ("--checkpoint", lab / "model-1", "--reason", REASON)):
        with pytest.raises(InputError, match="no lab"):
            run("--out", tmp_path, *asked)
    nowhere = ["report", "--runs", str(tmp_path / "no"), "--out", str(tmp_path / "docs")]
    with pytest.raises(InputError, match="no runs here"):
        CliRunner().invoke(app, nowhere, catch_exceptions=False)
    assert not (tmp_path / "docs").exists()


def test_a_line_from_before_the_clock_was_counted_has_its_digest(tmp_path: Path) -> None:
    """As it was written by the version before."""
    old = Entry(
        event="result",
        opening=1,
        at="t",
        who="a | b\nc",
        why="x|y",
        checkpoint="sha256:aaaaaaaaaaaaaaaaaa",
        run="",
        lab="",
        suite="",
        rates={"overall": Rate(successes=1, n=2, low=0.1, high=0.9)},
    )
    plain = {name: value for name, value in msgspec.to_builtins(old).items() if name != "own"}
    assert "timed_out" not in plain
    whole = {**plain, "own": digest({**plain, "own": ""})}
    began = {**whole, "event": "opened", "rates": {}, "own": ""}
    began["own"] = digest(began)
    whole = {**whole, "previous": began["own"], "own": ""}
    whole["own"] = digest(whole)
    (tmp_path / LOG).write_text(f"{json.dumps(began)}\n{json.dumps(whole)}\n")
    (found,) = openings(read_log(tmp_path))
    shown = _opening(found)
    assert (shown["who"], shown["why"]) == ("a / b c", "x/y")
    assert shown["found"] == "50.0 (10.0 to 90.0), n = 2"
    assert found.result is not None
    late = msgspec.structs.replace(found.result, timed_out=3)
    later = msgspec.structs.replace(found, result=late)
    assert _opening(later)["found"] == "50.0 (10.0 to 90.0), n = 2, 3 stopped by the clock"


def test_an_opening_without_a_rate_is_not_told_as_broken_off(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palio.evaluate.experiment import sealed

    def run(*words: object) -> str:
        line = ["sealed", "--out", str(lab), *map(str, words)]
        return CliRunner().invoke(app, line, catch_exceptions=False).output

    honest = sealed._ended
    lost: list[dict[str, object]] = [{"unscored": 9, "rates": {}}, {"unscored": 4}, {}]

    def ended(*given: object) -> Entry:
        return msgspec.structs.replace(honest(*given), **lost.pop(0))  # type: ignore[arg-type]

    monkeypatch.setattr(sealed, "_ended", ended)
    for _ in range(3):
        text = run("--checkpoint", lab / "model-1", "--reason", REASON)
    first, second, third = (line for line in text.splitlines() if REASON in line)
    assert "nothing scored, 9 unscored" in first
    assert "of 9 (95 %: " in second
    assert "), 4 unscored" in second
    assert "unscored" not in third
    assert "broken off" not in text


def test_a_copy_of_the_runs_without_the_log_does_not_pass_for_never_opened(
    lab: Path, tmp_path: Path
) -> None:
    opened(lab)
    (tmp_path / "runs.jsonl").write_bytes(b"")

    def report(place: Path) -> str:
        line = ["report", "--runs", str(place), "--out", str(tmp_path / "docs")]
        done = CliRunner().invoke(app, line, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stderr

    assert f"no {LOG} beside it" in report(tmp_path / "runs.jsonl")
    (tmp_path / LOG).write_bytes((lab / LOG).read_bytes())
    assert LOG not in report(tmp_path / "runs.jsonl")
    assert REASON in (tmp_path / "docs" / "evidence.md").read_text()
    assert LOG not in report(lab)


def test_a_page_is_written_where_its_runs_are_unless_told_otherwise(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it replaced docs/evidence.md of the folder in which the command was given."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "evidence.md").write_text("another page")
    monkeypatch.chdir(tmp_path)

    def report(*words: object) -> str:
        line = ["report", "--plan", "leak", *map(str, words)]
        return CliRunner().invoke(app, line, catch_exceptions=False).stdout

    copy = tmp_path / "copied" / "runs.jsonl"
    copy.parent.mkdir()
    copy.write_bytes(b"")
    (tmp_path / "runs" / "experiment").mkdir(parents=True)
    for words, place in (
        (("--runs", lab), lab),
        (("--runs", copy), copy.parent),
        ((), Path("runs/experiment")),
    ):
        assert f"page {place / 'evidence.md'}" in report(*words)
        assert (place / "evidence.md").is_file()
        assert (place / "evidence" / "results.json").is_file()
        (place / "evidence.md").unlink()
        shutil.rmtree(place / "evidence")
    with pytest.raises(ConfigError, match="several labs") as error:
        report("--runs", lab, "--runs", copy)
    assert "--out" in error.value.remedy
    assert (tmp_path / "docs" / "evidence.md").read_text() == "another page"


def test_evaluations_do_not_open_the_pool_beside_the_log(lab: Path, tmp_path: Path) -> None:
    """A lab's suite holds its sealed problems too, and `palio eval` keeps no log."""
    world = lab / "world"
    names = sorted(path.name for path in world.iterdir() if path.is_dir())
    given = ["--suite", str(world / "suite.json")]
    for name in names:
        given += ["--catalogue", str(world / name)]
    for words in ([], ["--corpus", str(world), "--pool", "sealed"]):
        for command in (["floors"], ["run", "--model", "scripted-hasty", "--out", str(tmp_path)]):
            with pytest.raises(ConfigError, match="of these problems are sealed"):
                CliRunner().invoke(evaluating, [*command, *given, *words], catch_exceptions=False)
    racers = ["--agents", "careful", "--out", str(tmp_path / "race"), *given]
    with pytest.raises(ConfigError, match="of these problems are sealed"):
        CliRunner().invoke(racing, racers, catch_exceptions=False)
    assert not list(tmp_path.iterdir())
    done = CliRunner().invoke(
        evaluating, ["floors", *given, "--corpus", str(world), "--limit", "3"]
    )
    assert done.exit_code == 0, done.output
    copied = tmp_path / "suite.json"
    copied.write_bytes((world / "suite.json").read_bytes())  # away from its pools
    with pytest.raises(ConfigError, match="of these problems are sealed"):
        CliRunner().invoke(
            evaluating, ["floors", "--suite", str(copied), *given[2:]], catch_exceptions=False
        )
