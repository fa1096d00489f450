"""One line a finished run, append-only: what was trained on, and the outcome of every problem."""

from __future__ import annotations

import fcntl
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from palio.records import InputError, Record, from_json, to_json
from palio.world.appended import mend_end, whole_lines
from palio.world.artefacts import naming

RUNS = "runs.jsonl"
_DIGITS = re.compile(r"[0-9a-f]*")


class ArmRun(Record, frozen=True, omit_defaults=False):
    """One arm under one seed.

    Attributes:
        plan, plan_digest, arm, seed: what was run.
        lab, suite_seed: digest of the lab's configuration, and its seed.
        problems: digest of the examination's problem ids in order.
        n: problems that were scored, by kind, "overall" among them.
        unscored: problems that infrastructure failed.
        timed_out: rollouts of the examination, greedy and sampled, that the wall clock stopped;
            they are failures in every rate. 0 in runs from before it was recorded.
        successes: greedy successes under `oro`, by kind.
        strict: the same under `strict`.
        solved: one bit a problem in order, most significant first, as hexadecimal digits.
        car: mean rule score.
        pass_at: k -> unbiased pass@k on the sampled problems; {} without samples.
        sampled: those problems.
        groups: name -> (successes, n) of further subsets: exposed, unexposed, bank:NAME.
        invented_ids: product ids that no result had shown, in all greedy rollouts.
        inventing: share of rollouts with one.
        rows, trajectories: rows drawn; rows trained on, after the length limit.
        tokens, steps: input tokens and updates of fine-tuning.
        loss_tokens: its budget in trained tokens, from which its length follows.
        loss_counted: the trained tokens that it counted; 0 in runs from before it did.
        measures: further numbers, by stage and name.
        train_s, exam_s: wall-clock seconds; decide nothing.
        checkpoint: digest of the weights.
        base: digest of the seed's weights that its fine-tuning, or that of the arm it goes on from,
            started from; "" in runs from before it was recorded.
        tool: version.
        twin: the run that this one is, under another name: its rows and all else were the same.
    """

    plan: str
    plan_digest: str
    arm: str
    seed: int
    lab: str
    suite_seed: int
    problems: str
    n: dict[str, int]
    unscored: int
    successes: dict[str, int]
    strict: dict[str, int]
    solved: str
    car: float
    pass_at: dict[str, float] = {}
    sampled: int = 0
    groups: dict[str, tuple[int, int]] = {}
    invented_ids: int = 0
    inventing: float = 0.0
    rows: int = 0
    trajectories: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    loss_counted: int = 0
    steps: int = 0
    measures: dict[str, float] = {}
    train_s: float = 0.0
    exam_s: float = 0.0
    checkpoint: str = ""
    base: str = ""
    tool: str = ""
    twin: str = ""
    timed_out: int = 0

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.plan}/{self.arm}/{self.seed}"

    def rate(self, group: str = "overall") -> float:
        """Greedy success rate of a kind or a named group, in [0, 1].

        Raises:
            InputError: the run has no such group.
        """
        if group in self.groups:
            good, n = self.groups[group]
        elif self.n.get(group):
            good, n = self.successes[group], self.n[group]
        else:
            raise InputError(f"run {self.name} has no group {group!r}")
        return good / n

    def outcomes(self) -> list[bool]:
        """Success of every problem, in the order of `problems`."""
        return unpacked(self.solved, self.n["overall"] + self.unscored)


def packed(outcomes: Sequence[bool]) -> str:
    """Booleans as hexadecimal digits, the first in the most significant bit."""
    digits = math.ceil(len(outcomes) / 4)
    number = 0
    for outcome in outcomes:
        number = number << 1 | outcome
    number <<= 4 * digits - len(outcomes)
    return f"{number:0{digits}x}" if digits else ""


def unpacked(digits: str, count: int) -> list[bool]:
    """Inverse of `packed`.

    Raises:
        InputError: the digits are too few or too many, or not hexadecimal.
    """
    if not _DIGITS.fullmatch(digits):
        raise InputError(f"{digits[:20]!r} are no hexadecimal digits")
    if len(digits) != math.ceil(count / 4):
        raise InputError(f"{len(digits)} digits cannot hold {count} outcomes")
    number = int(digits or "0", 16)
    top = 4 * len(digits) - 1
    return [bool(number >> (top - place) & 1) for place in range(count)]


def append_run(folder: Path, run: ArmRun) -> None:
    """Append one run; it is on the operating system's side when this returns.

    Processes of one lab take turns; what a kill tore at the end goes first.
    """
    path = folder / RUNS
    with naming(path), path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        mend_end(path)
        file.write(to_json(run) + b"\n")


def read_runs(path: Path) -> list[ArmRun]:
    """The runs of a folder or a file; a last line torn by a kill is left out, none is no error.

    Raises:
        InputError: a line is no run, or its numbers cannot be; names file and row.
    """
    found = []
    for line in whole_lines(path / RUNS if path.is_dir() else path):
        try:
            run = from_json(line.data, ArmRun)
            _check(run)
        except InputError as error:
            remedy = "bring the line back as it was written, or remove it and make the run again"
            raise InputError(error.what, where=line.where, remedy=remedy) from error
        found.append(run)
    return found


def _check(run: ArmRun) -> None:
    """Refuse a run that nothing can be told from: each of its rates must be one."""
    if "overall" not in run.n or run.unscored < 0 or run.n["overall"] + run.unscored < 1:
        raise InputError(f"run {run.name} has no examination: `n` has no problems overall")
    for name, counts in (("successes", run.successes), ("strict", run.strict)):
        for kind, n in run.n.items():
            if not 0 <= counts.get(kind, -1) <= n:
                raise InputError(f"run {run.name}: {name} of {kind!r} are not from 0 to {n}")
    for group, (good, n) in run.groups.items():
        if not 0 <= good <= n or not n:
            raise InputError(f"run {run.name}: group {group!r} has {good} successes of {n}")
    for k, rate in run.pass_at.items():
        if not 0 <= rate <= 1:
            raise InputError(f"run {run.name}: pass@{k} is {rate}, which is no rate")
    run.outcomes()


def of_plan(runs: Iterable[ArmRun], plan_digest: str, lab: str) -> list[ArmRun]:
    """The runs of one plan in one lab that count (`counted`), by arm and seed."""
    mine = (r for r in runs if (r.plan_digest, r.lab) == (plan_digest, lab))
    return sorted(counted(mine), key=lambda r: (r.arm, r.seed))


def counted(runs: Iterable[ArmRun]) -> list[ArmRun]:
    """The runs that count: whole ones, and of a run that was made twice, the last.

    One with unscored problems is none: its rate is of other problems than those of its pair, and a
    test of pairs would count what infrastructure broke as failures.
    """
    found = {(r.lab, r.plan_digest, r.arm, r.seed): r for r in runs if not r.unscored}
    return list(found.values())
