"""A lab from nothing to runs: killed in the middle, it goes on and makes the same."""

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from palio.evaluate.experiment.runs import RUNS, read_runs

LAB = """
suite_seed = 5
catalogues = 2
products = 600
problems = 90
race_problems = 6
loss_tokens = 4000
evaluated = 30
recipe = "{recipe}"
"""

PLAN = """
name = "small"
question = "?"
hypothesis = "h"
primary = "p"
analysis = "a"
seeds = 1
support = "own"
[[arm]]
name = "raw"
[[arm]]
name = "gated"
gates = ["outcome", "structural", "coefficient", "grounding"]
[[arm]]
name = "leak"
gates = ["outcome"]
exposed = 0.5
copies = 3
[[arm]]
name = "base"
sft = false
[[arm]]
name = "teacher"
start = "gated"
sft = false
[[arm.stages]]
kind = "teacher"
tokens = 3000
sampling = { problems = 6, samples = 1, temperature = 0.0, top_p = 1.0, model = "scripted-careful" }
[[contrast]]
arm = "gated"
against = "raw"
"""


def command(folder, out="lab"):
    base = [sys.executable, "-c", "from palio.cli.main import run; run()", "experiment", "run"]
    base += ["--seeds", "1", "--plan", str(folder / "plan.toml"), "--lab", str(folder / "lab.toml")]
    return [*base, "--out", str(folder / out)]


@pytest.fixture
def lab(tmp_path):
    from importlib import resources

    text = resources.files("palio.evaluate.experiment").joinpath("lab.toml").read_text("utf-8")
    small = text.replace("tokens = 600_000", "tokens = 6_000")
    assert small != text
    (tmp_path / "recipe.toml").write_text(small)
    (tmp_path / "lab.toml").write_text(LAB.format(recipe=tmp_path / "recipe.toml"))
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


def started_runs(folder):
    arms = folder / "lab" / "arms" / "small"
    return len(list(arms.glob("*/*/exam/greedy/rollouts.jsonl"))) if arms.exists() else 0


def facts(folder):
    """All that runs say, but how long they took."""
    runs = [msgspec.to_builtins(run) for run in read_runs(folder)]
    return [
        {name: value for name, value in run.items() if name not in ("train_s", "exam_s")}
        for run in runs
    ]


@pytest.mark.slow
def test_a_lab_that_is_killed_goes_on_where_it_stood(lab):
    first = subprocess.Popen(
        command(lab), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 300
    while started_runs(lab) < 2 and time.monotonic() < deadline and first.poll() is None:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = read_runs(lab / "lab")
    assert 1 <= len(before) < 5
    subprocess.run(command(lab), check=True, capture_output=True, timeout=400)
    runs = read_runs(lab / "lab")
    assert runs[: len(before)] == before
    by_arm = {run.arm: run for run in runs}
    assert sorted(by_arm) == ["base", "gated", "leak", "raw", "teacher"]
    for arm, run in by_arm.items():
        assert run.n["overall"] == 30
        assert run.loss_tokens == (0 if arm in ("base", "teacher") else 4000)
        assert run.tokens >= run.loss_tokens
        assert (run.loss_counted > 0) == (run.loss_tokens > 0)
        assert run.base == by_arm["base"].checkpoint, "of one seed"
    assert len({run.checkpoint for run in runs}) == 5
    assert by_arm["teacher"].measures["teacher.rolled out"] == 6
    leak = by_arm["leak"]
    assert sum(n for name, (_, n) in leak.groups.items() if "exposed" in name) == 30
    size = (lab / "lab" / RUNS).stat().st_size
    subprocess.run(command(lab), check=True, capture_output=True, timeout=400)
    assert (lab / "lab" / RUNS).stat().st_size == size
    subprocess.run(command(lab, "whole"), check=True, capture_output=True, timeout=400)
    assert facts(lab / "lab") == facts(lab / "whole"), "the one that was cut short, too"
