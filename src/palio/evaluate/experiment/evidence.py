"""All plans and what their runs say, as one Markdown page with pictures: null results too."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from palio.evaluate.experiment.analysis import ArmSummary, Effect, PlanResult, analyse
from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.pictures import effects_chart
from palio.evaluate.experiment.plan import Plan
from palio.evaluate.experiment.runs import ArmRun, of_plan
from palio.evaluate.experiment.sealed import Entry, Opening, openings
from palio.evaluate.figure import p_value
from palio.records import to_json
from palio.world.artefacts import write_lines

PAGE, FOLDER, RESULTS = "evidence.md", "evidence", "results.json"
_MINUS = "\N{MINUS SIGN}"


def write_evidence(
    plans: Sequence[Plan],
    runs: Sequence[ArmRun],
    lab: LabConfig,
    out: Path,
    intro: str,
    log: Sequence[Entry] = (),
) -> list[PlanResult]:
    """Analyse, and write `evidence.md`, and in `evidence/` a picture a plan and `results.json`.

    Args:
        plans: in the order in which they are told.
        runs: of the lab; runs of other plans or labs are left out.
        lab: the lab's configuration.
        out: folder to write.
        intro: what stands before everything else.
        log: of the sealed pool's openings.
    """
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    told, results = [], []
    for plan in plans:
        mine = of_plan(runs, plan.digest(), lab.digest())
        result = analyse(plan, mine)
        results.append(result)
        told.append(_told(plan, result, mine))
        if result.n:
            picture = effects_chart(plan, result)
            write_lines(folder / f"{plan.name}.svg", [picture.encode(), b"\n"])
    page = _template().render(
        plans=told,
        lab=lab,
        digest=lab.digest(),
        intro=intro.strip(),
        openings=[_opening(each) for each in openings(log)],
        head=log[-1].own if log else "",
    )
    write_lines(out / PAGE, [page.strip().encode(), b"\n"])
    write_lines(folder / RESULTS, [to_json(results), b"\n"])
    return results


def _opening(opening: Opening) -> dict[str, str]:
    began, ended = opening.began, opening.result
    rate = ended.rates.get("overall") if ended else None
    found = "broken off, no result"
    if rate:
        share, low, high = (100 * each for each in (rate.successes / rate.n, rate.low, rate.high))
        found = f"{share:.1f} ({low:.1f} to {high:.1f}), n = {rate.n:,}"
    return {
        "number": str(began.opening),
        "at": began.at,
        "who": began.who,
        "why": " ".join(began.why.split()).replace("|", "/"),
        "checkpoint": began.run or began.checkpoint[7:19],
        "found": found,
    }


def _template() -> jinja2.Template:
    folder = resources.files(__package__).joinpath("templates")
    # Markdown, not HTML: nothing in it comes from an agent
    environment = jinja2.Environment(  # noqa: S701
        undefined=jinja2.StrictUndefined, trim_blocks=False, keep_trailing_newline=True
    )
    environment.filters["join_lines"] = lambda text: " ".join(text.split())
    return environment.from_string(folder.joinpath("evidence.md.j2").read_text("utf-8"))


def _told(plan: Plan, result: PlanResult, runs: Sequence[ArmRun]) -> dict[str, Any]:
    return {
        "plan": plan,
        "result": result,
        "arms": [
            _arm(summary, [run for run in runs if run.arm == summary.arm], f"{plan.samples}")
            for summary in result.arms
        ],
        "effects": [_effect(effect, plan.smallest) for effect in result.effects],
        "notes": _groups(plan, runs),
    }


def _arm(summary: ArmSummary, runs: Sequence[ArmRun], k: str) -> dict[str, str]:
    def rate(wanted: str) -> str:
        found = [run.rate(wanted) for run in runs if run.n.get(wanted)]
        return f"{100 * float(np.mean(found)):.1f}" if found else ""

    def count(wanted: str) -> str:
        found = [getattr(run, wanted) for run in runs]
        return f"{float(np.mean(found)):,.0f}" if found else ""

    many = [run.pass_at[k] for run in runs if k in run.pass_at]
    return {
        "name": summary.arm,
        "by_seed": ", ".join(f"{100 * value:.1f}" for value in summary.values),
        "mean": "" if summary.mean is None else f"**{100 * summary.mean:.1f}**",
        "many": f"{100 * float(np.mean(many)):.1f}" if many else "",
        "greedy": rate("overall"),
        "product": rate("product"),
        "shop": rate("shop"),
        "voucher": rate("voucher"),
        "loss_tokens": count("loss_tokens"),
        "steps": count("steps"),
        "invented": count("invented_ids"),
    }


def _effect(effect: Effect, smallest: float) -> dict[str, str]:
    both = effect.arm == effect.against
    interval = ""
    if effect.low is not None and effect.high is not None:
        interval = f"{points(effect.low)} to {points(effect.high)}"
    return {
        "name": "exposed \N{MINUS SIGN} unexposed"
        if both
        else f"{effect.arm} {_MINUS} {effect.against}",
        "by_seed": ", ".join(points(each.difference) for each in effect.seeds),
        "mean": "" if effect.mean is None else f"**{points(effect.mean)}**",
        "interval": interval,
        "p": p_value(effect.p_holm),
        "detectable": "" if effect.detectable is None else f"{100 * effect.detectable:.1f}",
        "verdict": verdict(effect, smallest),
    }


def points(value: float) -> str:
    """A difference of rates in percentage points, with its sign."""
    sign = "+" if value >= 0 else _MINUS
    return f"{sign}{abs(100 * value):.1f}"


def verdict(effect: Effect, smallest: float) -> str:
    """What may be said: significant at 5 % after Holm, excluded at the smallest effect, or open."""
    if effect.mean is None or effect.low is None or effect.high is None or effect.p_holm is None:
        return "one seed: no interval" if effect.mean is not None else "not run"
    if effect.p_holm < 0.05:
        return "higher" if effect.mean > 0 else "lower"
    if -smallest < effect.low and effect.high < smallest:
        return f"no effect as large as {100 * smallest:.0f} points"
    return "open: more seeds are needed"


def _groups(plan: Plan, runs: Sequence[ArmRun]) -> str:
    """Success on wordings that arms never trained on, where a plan leaves any out."""
    lines = []
    for arm in plan.arms:
        for bank in arm.banks_out:
            rates = [r.rate(f"bank:{bank}") for r in runs if r.arm == arm.name]
            if rates:
                shown = ", ".join(f"{100 * rate:.1f}" for rate in rates)
                lines.append(f"- {arm.name} on the unseen wording {bank}: {shown}")
    return "\n".join(lines)
