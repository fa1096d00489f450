"""All plans and what their runs say, as one Markdown page with pictures: null results too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from palio.evaluate.experiment.analysis import (
    LEAST_SEEDS,
    ArmSummary,
    Effect,
    PlanResult,
    analyse,
    whole_seeds,
)
from palio.evaluate.experiment.given import LabRuns, chosen, left_out
from palio.evaluate.experiment.notes import MINUS, notes_of
from palio.evaluate.experiment.pictures import effects_chart, headroom_chart, overview_chart
from palio.evaluate.experiment.plan import Plan
from palio.evaluate.experiment.prose import read_prose
from palio.evaluate.experiment.runs import ArmRun
from palio.evaluate.experiment.sealed import Opening, openings
from palio.evaluate.figure import p_value
from palio.records import to_json
from palio.world.artefacts import write_lines

PAGE, FOLDER, RESULTS, OVERVIEW = "evidence.md", "evidence", "results.json", "overview"


def write_evidence(
    plans: Sequence[Plan],
    labs: Sequence[LabRuns],
    out: Path,
    intro: str,
    *,
    intro_path: str = "",
) -> list[PlanResult]:
    """Analyse, and write `evidence.md`, and in `evidence/` pictures and `results.json`.

    The page begins with the first contrast of every plan. Where several
    labs carried a plan out, `chosen` decides which runs it is told from.

    Args:
        plans: in the order in which they are told.
        labs: where they were carried out; at least one.
        out: folder to write.
        intro: Markdown; its beginning stands before everything else, a section that is called like
            a plan stands with it (`prose`).
        intro_path: the file that it is of, for errors.

    Raises:
        InputError: two sections of `intro` are of one plan.
    """
    prose = read_prose(intro, [plan.name for plan in plans], where=intro_path)
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    told, results = [], []
    everything = [run for lab in labs for plan in plans for run in lab.of(plan)]
    for plan in plans:
        by_seed = chosen(plan, labs)
        mine = [run for seed in by_seed for run in labs[by_seed[seed]].of(plan) if run.seed == seed]
        result = analyse(plan, mine)
        results.append(result)
        # labs that are told together share it
        temperature = labs[next(iter(by_seed.values()), 0)].config.temperature
        missing = [f"- {line}" for line in left_out(plan, labs)]
        notes = [*notes_of(plan, mine, everything), *missing]
        more = {"lab": _places(by_seed), "reading": prose.readings.get(plan.name, "")}
        more["examined"] = _examined(plan, result, temperature)
        more["nothing"] = _nothing(missing)
        made = {run.arm for lab in labs for run in lab.made(plan)}
        told.append({**_told(plan, result, mine, notes, made), **more})
        for name, picture in pictures(plan, result, mine, temperature).items():
            write_lines(folder / f"{name}.svg", [picture.encode(), b"\n"])
    overview = overview_chart(plans, results)
    if overview:
        write_lines(folder / f"{OVERVIEW}.svg", [overview.encode(), b"\n"])
    page = _template().render(
        plans=told,
        overview=OVERVIEW if overview else "",
        labs=[_lab(each) for each in labs],
        prose=prose,
        openings=[_opening(each) for lab in labs for each in openings(lab.log)],
        heads=[lab.log[-1].own for lab in labs if lab.log],
    )
    write_lines(out / PAGE, [page.strip().encode(), b"\n"])
    write_lines(folder / RESULTS, [to_json(results), b"\n"])
    return results


def _places(by_seed: Mapping[int, int]) -> str:
    """Which lab, and of several, which seeds are of which."""
    labs = sorted(set(by_seed.values()))
    if len(labs) < 2:
        return f"{labs[0] + 1}" if labs else ""
    seeds = {lab: [f"{seed}" for seed in by_seed if by_seed[seed] == lab] for lab in labs}
    return "; ".join(
        f"{lab + 1} (seed{'s' * (len(found) > 1)} {', '.join(found)})"
        for lab, found in seeds.items()
    )


def pictures(
    plan: Plan, result: PlanResult, runs: Sequence[ArmRun], temperature: float
) -> dict[str, str]:
    """Name -> SVG: the effects, and pass@1 beside pass@k by arm where a problem has k rollouts."""
    made = {}
    if result.n:
        made[plan.name] = effects_chart(plan, result)
        if plan.samples > 1:
            made[f"{plan.name}-headroom"] = headroom_chart(plan, runs, temperature)
    return made


def _lab(lab: LabRuns) -> dict[str, Any]:
    config = lab.config
    return {
        "config": config,
        # what was asked for is rounded up to as many of each kind, and a pool may have fewer
        "examined": max((r.n["overall"] + r.unscored for r in lab.own()), default=config.evaluated),
        "digest": config.digest(),
        "agents": ", ".join(config.agents),
        "device": "CPU cores" if config.device == "cpu" else config.device,
    }


def _opening(opening: Opening) -> dict[str, str]:
    began, ended = opening.began, opening.result
    rate = ended.rates.get("overall") if ended else None
    found = "broken off, no result"
    if rate:
        share, low, high = (100 * each for each in (rate.successes / rate.n, rate.low, rate.high))
        found = f"{share:.1f} ({low:.1f} to {high:.1f}), n = {rate.n:,}"
        found += f", {ended.unscored:,} unscored" if ended and ended.unscored else ""
        found += f", {ended.timed_out:,} stopped by the clock" if ended and ended.timed_out else ""
    elif ended:
        found = f"nothing scored, {ended.unscored:,} unscored"
    return {
        "number": str(began.opening),
        "at": began.at,
        "who": _cell(began.who),
        "why": _cell(began.why),
        "checkpoint": began.run or began.checkpoint[7:19],
        "found": found,
    }


def _cell(text: str) -> str:
    """What somebody wrote, so that it stays in its cell of a table."""
    return " ".join(text.split()).replace("|", "/")


def _template() -> jinja2.Template:
    folder = resources.files(__package__).joinpath("templates")
    # Markdown, not HTML: nothing in it comes from an agent
    environment = jinja2.Environment(  # noqa: S701
        undefined=jinja2.StrictUndefined, trim_blocks=False, keep_trailing_newline=True
    )
    environment.filters["join_lines"] = lambda text: " ".join(text.split())
    return environment.from_string(folder.joinpath("evidence.md.j2").read_text("utf-8"))


def _told(
    plan: Plan,
    result: PlanResult,
    runs: Sequence[ArmRun],
    notes: Sequence[str],
    made: Collection[str],
) -> dict[str, Any]:
    return {
        "plan": plan,
        "result": result,
        "arms": _arms(result, runs, f"{plan.samples}"),
        "effects": [
            _effect(effect, plan.smallest, _unpaired(effect, result, made))
            for effect in result.effects
        ],
        "exposed": plan.measure == "exposed",
        "tested": any(each.test for effect in result.effects for each in effect.seeds),
        "notes": "\n".join(notes),
    }


def _seeds(result: PlanResult) -> tuple[list[int], set[int]]:
    """The seeds that any arm has, and those that all arms and contrasts have."""
    seeds = sorted({seed for arm in result.arms for seed in arm.seeds})
    return seeds, whole_seeds((arm.seeds for arm in result.arms), result.effects)


def _arms(result: PlanResult, runs: Sequence[ArmRun], k: str) -> list[dict[str, str]]:
    """Rows of the table of arms: all values, and means over the plan's whole seeds."""
    seeds, whole = _seeds(result)
    told = []
    for arm in result.arms:
        value = dict(zip(arm.seeds, arm.values, strict=True))
        by_seed = ", ".join(f"{100 * value[s]:.1f}" if s in value else "-" for s in seeds)
        over = whole or set(arm.seeds)
        told.append(
            _arm(arm, [r for r in runs if r.arm == arm.arm and r.seed in over], k)
            | {"by_seed": by_seed if value else ""}
        )
    return told


def _arm(summary: ArmSummary, runs: Sequence[ArmRun], k: str) -> dict[str, str]:
    def rate(wanted: str) -> str:
        found = [run.rate(wanted) for run in runs if run.n.get(wanted)]
        return f"{100 * float(np.mean(found)):.1f}" if found else ""

    def count(wanted: str) -> str:
        found = [getattr(run, wanted) for run in runs]
        return f"{float(np.mean(found)):,.0f}" if found else ""

    counted = ""
    if runs and all(run.loss_counted for run in runs):
        counted = f", {count('loss_counted')} counted"
    many = [run.pass_at[k] for run in runs if k in run.pass_at]
    gaps = [run.pass_at[k] - run.pass_at["1"] for run in runs if {k, "1"} <= run.pass_at.keys()]
    return {
        "name": summary.arm,
        "gap": f"{100 * float(np.mean(gaps)):.1f}" if gaps else "",
        "car": f"{float(np.mean([run.car for run in runs])):.3f}" if runs else "",
        "mean": "" if summary.mean is None else f"**{100 * summary.mean:.1f}**",
        "many": f"{100 * float(np.mean(many)):.1f}" if many else "",
        "greedy": rate("overall"),
        "product": rate("product"),
        "shop": rate("shop"),
        "voucher": rate("voucher"),
        "loss_tokens": count("loss_tokens") + counted,
        "steps": count("steps"),
        "invented": count("invented_ids"),
    }


def _nothing(left: Sequence[str]) -> str:
    """What stands in the place of tables where no run can be told."""
    if not left:
        return "Not run yet."
    return "\n".join(["Runs were made, and nothing can be told from them:", "", *left])


def _unpaired(effect: Effect, result: PlanResult, made: Collection[str]) -> str:
    """Why a contrast without any difference has none.

    Args:
        effect: the contrast.
        result: with the seeds that each arm has.
        made: arms with a run, those too that are in no table.
    """
    seeds = {arm.arm: set(arm.seeds) for arm in result.arms}
    one, other = seeds[effect.arm], seeds[effect.against]
    if one & other:
        return "no pair: different bases"
    if one and other:
        return "no pair: no seed of both"
    return "runs left out, see below" if {effect.arm, effect.against} <= {*made} else "not run"


def _effect(effect: Effect, smallest: float, unpaired: str) -> dict[str, str]:
    both = effect.arm == effect.against
    interval = ""
    if effect.low is not None and effect.high is not None:
        interval = f"{points(effect.low)} to {points(effect.high)}"
    return {
        "name": "exposed \N{MINUS SIGN} unexposed"
        if both
        else f"{effect.arm} {MINUS} {effect.against}",
        "by_seed": ", ".join(points(each.difference) for each in effect.seeds),
        "mean": "" if effect.mean is None else f"**{points(effect.mean)}**",
        "interval": interval,
        "p": p_value(effect.p_holm),
        "mcnemar": ", ".join(p_value(each.test.p_value) for each in effect.seeds if each.test),
        "detectable": _detectable(effect),
        "verdict": verdict(effect, smallest, unpaired),
    }


def _detectable(effect: Effect) -> str:
    if effect.detectable is not None:
        return f"{100 * effect.detectable:.1f}"
    return "no spread" if len(effect.seeds) > 1 else ""


def points(value: float) -> str:
    """A difference of rates in percentage points, with its sign."""
    sign = "+" if value >= 0 else MINUS
    return f"{sign}{abs(100 * value):.1f}"


def verdict(effect: Effect, smallest: float, unpaired: str = "not run") -> str:
    """What may be said: significant at 5 % after Holm, excluded at the smallest effect, or open.

    Two differences that happen to lie close give a narrow interval; of two seeds nothing is said.

    Args:
        effect: the contrast.
        smallest: effect in rate points / 100 below which nobody would care.
        unpaired: what is said where no seed has a difference.
    """
    if effect.mean is None:
        return unpaired
    if effect.low is None or effect.high is None or effect.p_holm is None:
        seeds = "one seed" if len(effect.seeds) == 1 else "all seeds alike"
        return f"{seeds}: no interval"
    if len(effect.seeds) < LEAST_SEEDS and any(each.difference for each in effect.seeds):
        return f"open: fewer than {LEAST_SEEDS} seeds"
    if effect.p_holm < 0.05:
        return "higher" if effect.mean > 0 else "lower"
    if -smallest < effect.low and effect.high < smallest:
        return f"no effect as large as {100 * smallest:g} points"
    return "open: more seeds are needed"


def _examined(plan: Plan, result: PlanResult, temperature: float) -> str:
    """How many problems each column is of, at which temperature, and over which seeds means are."""
    seeds, whole = _seeds(result)
    over = ""
    if whole and len(whole) < len(seeds):
        named = ", ".join(map(str, sorted(whole)))
        held = whole_seeds((arm.seeds for arm in result.arms), ())
        which = "arm has" if whole == held else "arm and every contrast has"
        over = f" Means in the first table are over seeds {named}, which every {which}."
    if not plan.samples:
        return f"n = {result.n:,} problems a run.{over}"
    k = plan.samples
    sampled = f"pass@1: {result.sampled:,} problems, one rollout of each"
    if k > 1:
        sampled = (
            f"pass@1, pass@{k} and their gap: {result.sampled:,} problems, {k} rollouts of each"
        )
    greedy = f"Greedy ASR, its kinds, CAR and invented ids: {result.n:,} problems."
    return f"{over} {sampled} at temperature {temperature:g}. {greedy}".strip()
