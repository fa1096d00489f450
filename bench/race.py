"""The demo's race: eight agents on sixty problems as child processes over HTTP."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from palio.agents.scripted import ScriptedUpstream
from palio.evaluate.mainjob.arena import racer, run_race
from palio.evaluate.mainjob.config import MainJobConfig
from palio.evaluate.mainjob.worlds import RACE, make_worlds, open_ground
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver


def run(quick: bool) -> list[dict[str, Any]]:
    """Seconds of the whole race, judging included, beside the same runs in one process."""
    config = MainJobConfig(catalogues=1, race_problems=6 if quick else 60)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        make_worlds(config, out / "world", lambda _: None)
        ground = open_ground(out / "world")
        (out / "race").mkdir()
        started = time.perf_counter()
        run_race(config, ground, out / "race", lambda *_: None)
        seconds = time.perf_counter() - started
        world, upstream, driver = ground.world(RACE), ScriptedUpstream(), InlineDriver()
        racers = [racer(each, ground, out) for each in config.racers]
        started = time.perf_counter()
        for problem in ground.race:
            for spec in racers:
                run_problem(spec, problem, world, driver=driver, upstream=upstream)
        inline = time.perf_counter() - started
    runs = len(racers) * len(ground.race)
    return [
        {
            "name": f"race of {len(racers)} agents x {len(ground.race)} problems ({runs} runs)",
            "palio": seconds,
            "peer": inline,
            "peer_name": "the same runs in one process, unjudged",
            "unit": "s",
            "target": "" if quick else "<= 120",
        }
    ]
