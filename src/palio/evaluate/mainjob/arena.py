"""Second part of the main job: the race with its standings, and the bulk rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.agents.shortcut import with_table
from palio.agents.spec import AgentSpec
from palio.arena.standings import Standings, standing_entry, standings
from palio.broker.limits import Limits
from palio.broker.upstream import HttpUpstream
from palio.evaluate.mainjob.config import MainJobConfig
from palio.evaluate.mainjob.worlds import RACE, Ground, open_world
from palio.records import MissingDependencyError, Problem, from_json, to_json
from palio.rollout import (
    Job,
    Progress,
    Shard,
    bulk,
    final_attempts,
    read_trajectories,
    run_suite,
)
from palio.rollout.verdicts import Judged, Panel, judge_all
from palio.sandbox.choice import UNSAFE, open_driver, opened
from palio.sandbox.spec import Driver
from palio.suites import read_suite
from palio.world.artefacts import write_lines
from palio.world.world import World

STANDINGS = "standings.json"


def run_race(
    config: MainJobConfig, ground: Ground, folder: Path, advance: Callable[[int, str], None]
) -> dict[str, Any]:
    """Race the agents, each run in a sandbox whose one door is the broker, then rank them.

    The models are served over HTTP by a server of their own, as a real model would be. Where no
    driver encloses the agents they run as plain child processes: these agents are ours, so that
    harms nobody, but it is said and nothing is ranked.
    """
    racers = [racer(name, ground, folder) for name in config.racers]
    world = ground.world(RACE)
    jobs = [
        Job(spec, problem, world, config.seed, RACE) for problem in ground.race for spec in racers
    ]

    def note(step: Progress) -> None:
        run = step.trajectory
        advance(step.done, f"{run.agent.name} {run.ending}")

    chosen, lacking = race_driver()
    with (
        ModelServer(ScriptedUpstream()) as server,
        HttpUpstream(server.url) as upstream,
        opened(chosen) as driver,
    ):
        report = run_suite(
            jobs,
            folder,
            driver=driver,
            upstream=upstream,
            limits=Limits(seconds=config.race_seconds),
            concurrency=config.race_parallel,
            progress=note,
        )
    judged = list(judged_race(ground, folder))
    made = standings(
        standing_entry(each.trajectory, each.outcome("oro"), each.verdicts.reasoning)
        for each in judged
    )
    write_lines(folder / STANDINGS, [to_json(made) + b"\n"])
    return {
        "runs": report.jobs,
        "unscored": report.unscored,
        "agents": len(racers),
        "problems": len(ground.race),
        "winner": made.ranked[0].agent if made.ranked else "",
        "isolation": chosen.capabilities.isolation,
        "lacking": lacking,
    }


def race_driver() -> tuple[Driver, str]:
    """The driver of the race, and why it is not an enclosing one, "" when it is."""
    try:
        return open_driver(), ""
    except MissingDependencyError as error:
        return open_driver(UNSAFE), str(error)


def racer(name: str, ground: Ground, folder: Path) -> AgentSpec:
    """A bundled agent; the shortcut agent gets the answers of every second race problem."""
    if name != "shortcut":
        return find_agent(name)
    return with_table(ground.race[::2], folder / "shortcut.py")


def judged_race(ground: Ground, folder: Path) -> Iterator[Judged]:
    """The race's final attempts with their verdicts."""
    panel = Panel(ground.race, {RACE: ground.catalogue(RACE).products}, ("oro", "strict"))
    runs = final_attempts(read_trajectories(folder / "trajectories.jsonl"))
    return judge_all(runs, panel, workers=1)


def read_standings(folder: Path) -> Standings:
    """The standings that `run_race` wrote."""
    path = folder / STANDINGS
    return from_json(path.read_bytes(), Standings, where=str(path))


def run_bulk(
    config: MainJobConfig, ground: Ground, folder: Path, advance: Callable[[int, str], None]
) -> dict[str, Any]:
    """Roll the bundled agents out over the training problems of every catalogue, inline."""
    shards = bulk_shards(config, ground)
    report = bulk(
        shards,
        folder,
        workers=config.workers,
        limits=Limits(seconds=60.0),
        progress=lambda done, _, rows: advance(done, f"{rows:,} trajectories"),
    )
    return {"trajectories": report.trajectories, "endings": report.endings}


def bulk_shards(config: MainJobConfig, ground: Ground) -> list[Shard]:
    """Two shards a catalogue: teachers on every training problem, the others on a share."""
    plans = (("teachers", config.teachers, 1), ("others", config.others, config.others_every))
    by_catalogue: dict[str, list[str]] = {}
    for problem in ground.pool("train"):
        by_catalogue.setdefault(problem.catalogue, []).append(problem.problem_id)
    return [
        Shard(
            name=f"{catalogue}-{plan}",
            source=partial(load_share, ground.folder, catalogue, tuple(ids[::every])),
            agents=tuple(find_agent(name) for name in agents),
            upstream=ScriptedUpstream,
            seeds=(config.seed,),
            config={"problems": ids[::every]},
        )
        for catalogue, ids in by_catalogue.items()
        for plan, agents, every in plans
        if agents
    ]


def load_share(folder: Path, catalogue: str, ids: tuple[str, ...]) -> tuple[World, list[Problem]]:
    """A world and the named problems; runs in the worker process."""
    wanted = set(ids)
    suite = read_suite(folder / "suite.json")
    chosen = [problem for problem in suite.problems if problem.problem_id in wanted]
    return open_world(folder, catalogue), chosen
