"""The script that carries the recipe smollm2 out: its order, its resumption, and what docs say."""

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
import typer
from scripts.smollm2 import Run, Step, plan, summary

from palio.cli.main import app

DOCS = Path(__file__).parents[2] / "docs" / "smollm2.md"

FAKE = """
import os, sys, time
from pathlib import Path
name = sys.argv[1]
def note(what):
    with open("order.txt", "a") as file:
        file.write(f"{what} {name}\\n")
note("begin")
time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0.05)
print("told", name)
print("logged", name, file=sys.stderr)
if Path(f"fail-{name}").exists():
    sys.exit(3)
note("end")
"""


@pytest.fixture
def palio(tmp_path):
    path = tmp_path / "palio.py"
    path.write_text(textwrap.dedent(FAKE))
    return [sys.executable, str(path)]


def order(out):
    return [tuple(line.split()) for line in (out / "order.txt").read_text().splitlines()]


STEPS = [
    Step("a", "a"),
    Step("long", "long 0.6", ("a",)),
    Step("b", "b", ("a",)),
    Step("c", "c", ("b",)),
    Step("last", "last", ("long", "c")),
]


def test_steps_wait_for_what_they_need_and_share_the_cores(tmp_path, palio):
    out = tmp_path / "run"
    Run(out, palio, 2).go(STEPS)
    seen = order(out)
    assert seen.index(("end", "a")) < seen.index(("begin", "long"))
    assert seen.index(("end", "c")) < seen.index(("end", "long"))  # beside it
    assert seen.index(("end", "long")) < seen.index(("begin", "last"))
    at_once = most = 0
    for what, _ in seen:
        at_once += 1 if what == "begin" else -1
        most = max(most, at_once)
    assert most == 2
    told = json.loads((out / "timings.json").read_text())
    assert told["attempts"] == 1
    assert set(told["steps"]) == {"a", "long", "b", "c", "last"}
    assert told["steps"]["long"]["seconds"] >= 0.6 > told["steps"]["long"]["cpu_s"]
    assert told["minutes"] * 60 < sum(step["seconds"] for step in told["steps"].values()) + 6
    assert (out / "results" / "b.txt").read_text() == "told b\n"
    assert (out / "logs" / "b.log").read_text() == "logged b\n"


def test_a_failed_step_is_named_and_a_second_attempt_does_what_is_left(tmp_path, palio):
    out = tmp_path / "run"
    out.mkdir()
    (out / "fail-c").touch()
    with pytest.raises(SystemExit, match=r"c ended with 3; its log is .*c\.log"):
        Run(out, palio, 1).go(STEPS)
    (out / "fail-c").unlink()
    before = order(out)
    Run(out, palio, 1).go(STEPS)
    again = order(out)[len(before) :]
    assert ("begin", "c") in again
    assert ("begin", "a") not in again
    told = json.loads((out / "timings.json").read_text())
    assert told["attempts"] == 2
    assert set(told["steps"]) == {"a", "long", "b", "c", "last"}


def test_a_finished_run_is_left_as_it_is(tmp_path, palio):
    out = tmp_path / "run"
    Run(out, palio, 2).go(STEPS)
    kept = (out / "timings.json").read_bytes()
    Run(out, palio, 2).go(STEPS)
    assert (out / "timings.json").read_bytes() == kept


def test_nothing_outlives_a_failure(tmp_path, palio):
    out = tmp_path / "run"
    out.mkdir()
    (out / "fail-b").touch()
    steps = [Step("a", "a"), Step("endless", "endless 500", ("a",)), Step("b", "b", ("a",))]
    with pytest.raises(SystemExit, match="b ended with 3"):
        Run(out, palio, 2).go(steps)  # returns once the endless one has gone, not after 500 s
    assert ("end", "endless") not in order(out)


def test_the_summary_holds_what_both_models_were_measured_by(tmp_path):
    (tmp_path / "results").mkdir()
    for name in ("untrained", "trained"):
        steps = {"score": {"policy": name}, "paired": name == "trained"}
        rows = {
            "stages": [{"name": name, "intents": {"overall": name}}],
            "floors": [{"name": "first-hit", "intent": {"overall": 0.1}}],
            "comparisons": [{"a": name, "intent": "overall"}, {"a": name, "intent": "shop"}],
        }
        (tmp_path / "results" / f"steps-{name}.txt").write_text(json.dumps(steps))
        (tmp_path / "results" / f"eval-{name}.txt").write_text(json.dumps(rows))
    times = {"minutes": 9.0, "steps": {"train": {"command": "train", "seconds": 2.0}}}
    (tmp_path / "timings.json").write_text(json.dumps(times))
    told = summary(tmp_path)
    assert told["times"] == {"minutes": 9.0, "steps": {"train": {"seconds": 2.0}}}
    assert told["steps"]["trained"] == {"policy": "trained"}
    assert told["paired"] is True
    assert told["rollouts"] == {
        "untrained": {"overall": "untrained"},
        "trained": {"overall": "trained"},
    }
    assert told["first_hit"]["trained"] == {"a": "trained", "intent": "overall"}
    assert told["floors"] == {"first-hit": {"overall": 0.1}}


def words(command):
    return re.sub(r"\s+", " ", command.strip())


def test_the_page_shows_the_commands_that_the_script_runs():
    text = re.sub(r"\\\n\s*", "", DOCS.read_text("utf-8"))
    of = words(re.search(r'of="(.*)"', text).group(1))
    shown = {
        words(line.split("#")[0].strip().removeprefix("palio ").replace("$of", of))
        for line in text.splitlines()
        if line.strip().startswith("palio ")
    }
    run = {
        words(step.command.replace(" --json", "").replace(" --threads 1", "")) for step in plan()
    }
    assert run <= shown


@pytest.mark.parametrize("step", plan(), ids=lambda step: step.name)
def test_every_command_is_one_that_palio_knows(step):
    command, left = typer.main.get_command(app), step.command.split()
    context = command.make_context("palio", list(left))
    while left := [*context._protected_args, *context.args]:
        name, command, left = command.resolve_command(context, left)
        context = command.make_context(name, left, parent=context)
    assert context.command_path.split()[1] == step.command.split()[0]


def test_an_option_that_palio_does_not_know_would_be_noticed():
    with pytest.raises(Exception, match="--no-such-option"):
        test_every_command_is_one_that_palio_knows(
            Step("x", "train start smollm2 --no-such-option")
        )
