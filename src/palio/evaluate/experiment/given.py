"""What a page is told from: labs with their runs, and whether the runs given are theirs at all.

A page of no runs looks like a page of a lab that has not begun. So runs that are of another lab or
plan than those asked for are refused where none is left, and counted where some are. So is what was
made for a plan and is in none of its tables (`left_out`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from palio.evaluate.experiment.analysis import measured
from palio.evaluate.experiment.config import LabConfig, read_lab
from palio.evaluate.experiment.plan import Plan
from palio.evaluate.experiment.runs import ArmRun, of_plan
from palio.evaluate.experiment.sealed import CONFIG, Entry
from palio.records import ConfigError, InputError, from_json


class LabRuns(NamedTuple):
    """A lab and what it made.

    Attributes:
        config: its configuration.
        runs: finished ones; those of other plans or labs are left out.
        log: of its sealed pool's openings.
    """

    config: LabConfig
    runs: Sequence[ArmRun]
    log: Sequence[Entry] = ()

    def of(self, plan: Plan) -> list[ArmRun]:
        """The runs of one plan."""
        return of_plan(self.runs, plan.digest(), self.config.digest())

    def made(self, plan: Plan) -> list[ArmRun]:
        """The same with those that do not count (`counted`); of each arm and seed the last."""
        digest = plan.digest()
        mine = (run for run in self.own() if run.plan_digest == digest)
        return list({(run.arm, run.seed): run for run in mine}.values())

    def own(self) -> list[ArmRun]:
        """The runs of this lab, of whatever plan."""
        digest = self.config.digest()
        return [run for run in self.runs if run.lab == digest]


def lab_of(place: Path, named: Path | None, suite_seed: int | None) -> LabConfig:
    """The configuration of a lab's runs: the one in its folder, else as it is named.

    Args:
        place: a lab's folder, or a file of runs, which knows no configuration.
        named: TOML with settings that differ.
        suite_seed: that of the command line.

    Raises:
        ConfigError: what is named is another lab than that of the folder.
    """
    held = place / CONFIG
    if not held.is_file():
        return read_lab(named, suite_seed)
    config = from_json(held.read_bytes(), LabConfig, where=str(held))
    asked = named is not None or suite_seed is not None
    if asked and read_lab(named, suite_seed).digest() != config.digest():
        raise ConfigError(
            f"the lab in this folder is another one than {named or 'the default one'}"
            + (f" with suite seed {suite_seed}" if suite_seed is not None else ""),
            where=str(held),
            remedy="leave --lab and --suite-seed out: the folder knows its own configuration",
        )
    return config


def chosen(plan: Plan, labs: Sequence[LabRuns]) -> dict[int, int]:
    """Seed -> place of the lab that it is told from, in the order of seeds.

    Only labs of one design are told together, those with most runs of the plan; they may differ in
    the device, which all arms of a seed share: differences are taken within a seed, and a seed is
    told from one lab, the first of those with most of its arms.
    """
    of_plan = [lab.of(plan) for lab in labs]
    designs = [lab.config.design() for lab in labs]
    most = Counter[str]()
    for design, runs in zip(designs, of_plan, strict=True):
        most[design] += len(runs)
    wanted = most.most_common(1)[0][0]
    arms = {
        place: Counter(run.seed for run in runs)
        for place, runs in enumerate(of_plan)
        if designs[place] == wanted
    }
    seeds = sorted({seed for counted in arms.values() for seed in counted})
    return {seed: max(arms, key=lambda place: (arms[place][seed], -place)) for seed in seeds}


def left_out(plan: Plan, labs: Sequence[LabRuns]) -> list[str]:
    """What is to be said about runs of a plan that were made and are in none of its tables.

    Args:
        plan: what is told.
        labs: by their places, from 1, a line names them.
    """
    by_seed = chosen(plan, labs)
    told = set(by_seed.values())
    lines = []
    for place, lab in enumerate(labs):
        of = f" of lab {place + 1}" if len(labs) > 1 else ""
        runs = lab.of(plan)
        others = [run for run in runs if by_seed[run.seed] != place] if place in told else runs
        if others:
            seeds = sorted({run.seed for run in others})
            named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            lines.append(f"{_many(len(others))}{of} left out ({named}): {_why(place, labs, told)}")
        lines += [
            f"{run.arm}, seed {run.seed}{of}: infrastructure kept {run.unscored:,} of its "
            f"{run.n['overall'] + run.unscored:,} problems from being scored, so it is in no table"
            for run in _broken(plan, lab)
        ]
        lines += [
            f"seed {run.seed}, {run.arm}: {_unmeasured(run, plan.measure)}"
            for run in runs
            if by_seed.get(run.seed) == place and not measured(run, plan.measure)
        ]
    return lines


def _why(place: int, labs: Sequence[LabRuns], told: set[int]) -> str:
    """Why runs of a lab are left out where the plan is told from others."""
    if labs[place].config.design() in {labs[each].config.design() for each in told}:
        return "a seed is told from one lab, the first of those with most of its arms"
    return (
        "the lab differs in more than the device from those that the plan is told from, which have "
        "most of its runs"
    )


def _broken(plan: Plan, lab: LabRuns) -> Iterator[ArmRun]:
    """Runs with unscored problems that were not made again."""
    whole = {(run.arm, run.seed) for run in lab.of(plan)}
    return (run for run in lab.made(plan) if (run.arm, run.seed) not in whole)


def _unmeasured(run: ArmRun, measure: str) -> str:
    """Why a plan's measure cannot be computed from a run."""
    if measure != "exposed":
        return f"no {measure} is recorded of it"
    found = {"exposed", "unexposed"} & run.groups.keys()
    if not found:
        return "it is not recorded which problems of its examination are exposed"
    return f"all problems of its examination are {found.pop()}, so there is no difference"


def check_given(
    labs: Sequence[LabRuns], places: Sequence[Path], plans: Sequence[Plan], *, every: bool
) -> list[str]:
    """What is to be said about runs that the page leaves out.

    Args:
        labs: with everything that was read.
        places: of their runs, for messages.
        plans: those that are told.
        every: whether these are simply all bundled plans. Where plans were picked, runs of plans of
            other names are left out on purpose.

    Raises:
        InputError: none of the runs that were read is of its lab, or none is of a plan.
    """
    told = {plan.digest() for plan in plans}
    names = {plan.name for plan in plans}
    lines, kept, strange = [], 0, Counter[str]()
    for lab, place in zip(labs, places, strict=True):
        own = lab.own()
        foreign = len(lab.runs) - len(own)
        if lab.runs and not own:
            raise InputError(
                f"{_many(len(lab.runs))} here, and none is of the lab {lab.config.digest()[:19]}",
                where=str(place),
                remedy="name the configuration that they were made with: --lab, --suite-seed",
            )
        if foreign:
            lines.append(f"{place}: {_many(foreign)} of another lab left out")
        kept += sum(run.plan_digest in told for run in own)
        strange.update(
            run.plan for run in own if run.plan_digest not in told and (every or run.plan in names)
        )
    if not kept and any(lab.runs for lab in labs):
        read = Counter(run.plan for lab in labs for run in lab.own())
        raise InputError(
            f"{_many(read.total())} here, of {', '.join(sorted(read))} as they were then, and none "
            "is of a plan that is told",
            where=", ".join(map(str, places)),
            remedy="name the plan that they were made with, its file if it is not bundled: --plan",
        )
    lines += [
        f"{_many(count)} of {name} left out: that plan, as it was then, is not told; name its file "
        "with --plan"
        for name, count in sorted(strange.items())
    ]
    return lines + [f"{plan.name}: {line}" for plan in plans for line in left_out(plan, labs)]


def _many(count: int) -> str:
    return f"{count:,} run{'s' * (count != 1)}"
