"""An agent under development runs as in a race: own process, broker, scorer and judge."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from palio.agents.scripted import ScriptedUpstream
from palio.agents.spec import AgentSpec
from palio.broker.limits import Limits
from palio.broker.upstream import HttpUpstream, Upstream
from palio.records import Trajectory
from palio.rollout.problem import run_problem
from palio.rollout.verdicts import Judged, Panel, judge_all
from palio.sandbox.choice import open_driver, opened
from palio.suites.taking import first_of_each_kind
from palio.world.synthesis.config import compact_config
from palio.world.synthesis.synthesise import synthesise
from palio.world.world import COMPACT, World

PRODUCTS = 600


def try_agent(
    spec: AgentSpec,
    *,
    problems: int = 6,
    seed: int = 0,
    model_url: str = "",
    api_key: str = "",
    seconds: float = 30.0,
    driver: str = "auto",
    answering: Callable[[Upstream], AbstractContextManager[Upstream]] = nullcontext,
    progress: Callable[[Trajectory], None] | None = None,
    stop: threading.Event | None = None,
) -> list[dict[str, Any]]:
    """Run an agent on a few problems of a small synthetic world, one after the other.

    Args:
        spec: the agent; its `model` is asked at `model_url`, or among the scripted models.
        problems: how many, evenly over the three kinds.
        seed: of the world and of the runs.
        model_url: OpenAI-compatible base URL; "" for the scripted models.
        api_key: bearer token of that server.
        seconds: wall clock of a problem.
        driver: name of the driver, see `palio.sandbox.choice`.
        answering: who answers instead, for some models at least.
        progress: called with each record.
        stop: set it to stop.

    Returns:
        One plain row a problem: problem_id, kind, query, answer, ending, fault, success (by
        profile), quality, richness, calls, inferences, seconds, differences.
    """
    made = synthesise(compact_config(seed, products=PRODUCTS, problems=max(3, problems)))
    world = World.build(made.catalogue, COMPACT)
    runs = []
    with ExitStack() as stack:
        chosen = stack.enter_context(opened(open_driver(driver)))
        rest: Upstream = ScriptedUpstream(seed)
        if model_url:
            rest = stack.enter_context(HttpUpstream(model_url, api_key))
        upstream = stack.enter_context(answering(rest))
        for problem in first_of_each_kind(made.problems, problems):
            run = run_problem(
                spec,
                problem,
                world,
                driver=chosen,
                upstream=upstream,
                limits=Limits(seconds=seconds),
                seed=seed,
                stop=stop,
            )
            runs.append(run)
            if progress is not None:
                progress(run)
    products = {made.catalogue.catalogue_id: made.catalogue.products}
    panel = Panel(made.problems, products, unknown="refuse")
    return [_row(each) for each in judge_all(runs, panel)]


def _row(judged: Judged) -> dict[str, Any]:
    run, verdicts = judged.trajectory, judged.verdicts
    return {
        "problem_id": run.problem_id,
        "kind": run.kind,
        "query": run.query,
        "answer": run.answer,
        "ending": str(run.ending),
        "fault": run.fault.what if run.fault else "",
        "success": {verdict.profile: verdict.success for verdict in verdicts.outcomes},
        "quality": verdicts.reasoning.quality if verdicts.reasoning else None,
        "richness": verdicts.richness.richness if verdicts.richness else None,
        "calls": len(run.dispatches),
        "inferences": len(run.inferences),
        "seconds": run.duration_s,
        "differences": list(run.differences),
    }
