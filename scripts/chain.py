"""Measure the checkpoint that ships, without training: held-out problems, new brands, new words.

    python scripts/chain.py --out runs/chain

The configuration `chain` and seed 31 decide worlds, problems and pools, so they are made anew. That
they are those of the run that trained the checkpoint is seen by a digest: its manifest names the
training problems. docs/chain.json is the `chain.json` that this writes, and the checkpoint's card
tells the same rollouts. What was stopped goes on where it stood.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from palio.cli.screen import Screen
from palio.evaluate.carded import card_rows
from palio.evaluate.floors import compare_with_floor
from palio.evaluate.mainjob.apart import make_apart, open_apart
from palio.evaluate.mainjob.config import PRODUCTS_A_PROBLEM, MainJobConfig, read_config
from palio.evaluate.mainjob.measure import (
    Exam,
    checkpoint_policy,
    measure_floors,
    measure_policy,
    open_exam,
    read_floors,
    read_result,
)
from palio.evaluate.mainjob.reworded import make_reworded
from palio.evaluate.mainjob.stages import Reporter, Stages
from palio.evaluate.mainjob.telling import versions
from palio.evaluate.mainjob.worlds import Ground, make_worlds, open_ground
from palio.evaluate.results import OVERALL
from palio.judging import default_encoder
from palio.records import InputError, Problem, digest
from palio.train.card import renew_results
from palio.train.checkpoint import BUNDLED, MANIFEST, checkpoint_folder
from palio.train.engine import Engine
from palio.train.ground import TRAIN
from palio.train.ground import Ground as TrainingGround
from palio.world.artefacts import read_manifest
from palio.world.synthesis.config import compact_config

FRESH = 600
"""Problems of the catalogue of new brands."""


class Chain:
    """The three suites of a job, made and measured in a folder.

    Args:
        config: of the job.
        out: the folder.
        reporter: where progress goes.
        fresh: problems of the catalogue of new brands.
    """

    def __init__(
        self, config: MainJobConfig, out: Path, reporter: Reporter, fresh: int = FRESH
    ) -> None:
        self.config, self.out, self.fresh = config, out, fresh
        self.stages, self.advance = Stages(out, config, reporter), reporter.advance
        self._run("world", lambda at: make_worlds(config, at, lambda done: self.advance(done, "")))
        self.ground: Ground = open_ground(out / "world")

    def _run(self, name: str, work: Callable[[Path], dict[str, Any]], *inputs: object) -> None:
        self.stages.run(name, [digest(self.config), *inputs], work)

    def exams(self) -> dict[str, Exam]:
        """Name -> problems and worlds; the last two share no leak cluster with the rest."""
        config, out = self.config, self.out
        self._run("reworded", lambda at: make_reworded(config, self.ground, at))
        reworded = open_apart(out / "reworded")
        known = (*self.ground.problems, *reworded.problems)
        self._run("fresh", lambda at: self._fresh(known, at), self.fresh)
        return {
            "heldout": open_exam(config, self.ground),
            "fresh": open_apart(out / "fresh"),
            "reworded": reworded,
        }

    def _fresh(self, known: tuple[Problem, ...], folder: Path) -> dict[str, Any]:
        """The next catalogue after that of the reworded problems, in the wordings of training."""
        wanted = compact_config(
            self.config.seed * 1_000 + self.config.catalogues + 2,
            products=max(self.config.products, PRODUCTS_A_PROBLEM * self.fresh),
            problems=self.fresh,
            banks=self.config.banks,
        )
        wanted = msgspec.structs.replace(wanted, catalogue_id="compact-fresh")
        return make_apart(wanted, known, folder, f"fresh-{self.config.seed}")

    def measure(self, checkpoint: Path, exams: Mapping[str, Exam]) -> dict[str, Any]:
        """Floors and the checkpoint on each suite; what came out, as docs/chain.json has it."""
        told = {}
        with Engine(checkpoint) as engine:
            policy = checkpoint_policy(BUNDLED, BUNDLED, checkpoint, engine)
            assert policy.pin is not None, "a checkpoint has digests"
            inputs = msgspec.to_builtins(policy.pin)
            for name, exam in exams.items():

                def work(folder: Path, exam: Exam = exam) -> dict[str, Any]:
                    measure_floors(self.config, exam, folder)
                    return measure_policy(policy, self.config, exam, folder, self.advance)

                self._run(f"{name}-measured", work, inputs, digest(list(exam.problems)))
                told[name] = numbers(exam, self.out / f"{name}-measured")
        return {
            "what": "the checkpoint that ships (--checkpoint bundled), profile oro, 95 % intervals",
            "made": {
                "by": "scripts/chain.py",
                "seed": self.config.seed,
                "config": digest(self.config),
                "versions": versions(),
            },
            "checkpoint": inputs,
            "training_problems": trained_on(self.ground),
            "suites": told,
        }


def card(chain: Chain, checkpoint: Path, exams: Mapping[str, Exam]) -> Path:
    """Tell what was measured in the checkpoint's card, with the pools of the problems.

    Args:
        chain: what measured.
        checkpoint: what was measured.
        exams: the suites.
    """
    rows = [
        row
        for name, exam in exams.items()
        for row in card_rows(
            chain.out / f"{name}-measured" / "greedy",
            exam.problems,
            f"{name}-{chain.config.seed}",
            chain.ground.pools,
        )
    ]
    return renew_results(checkpoint, rows)


def trained_on(ground: Ground) -> str:
    """Digest of the training problems, as the manifest of a checkpoint names them."""
    return TrainingGround(ground.pool(TRAIN), {}, default_encoder()).digest()


def check_pools(ground: Ground, checkpoint: Path) -> None:
    """Refuse worlds and pools that are not those of the checkpoint's run.

    Raises:
        InputError: its manifest names other training problems, or none.
    """
    manifest = read_manifest(checkpoint / MANIFEST)
    said = manifest.inputs.get("problems", "") if manifest else ""
    found = trained_on(ground)
    if said != found:
        raise InputError(
            f"the checkpoint was trained on the problems {said or '?'}, these worlds give {found}",
            where=str(checkpoint),
            remedy="name the configuration and the seed of its run",
        )


def numbers(exam: Exam, folder: Path) -> dict[str, Any]:
    """What a measured suite came to: digests, greedy, sampled where it was, floors, the gap."""
    greedy, floors = read_result(folder, "greedy"), read_floors(folder)
    pairs = compare_with_floor(greedy, floors[0], exam.problems, clusters=exam.cluster_of)
    told: dict[str, Any] = {
        "problems": digest(list(exam.problems)),
        "worlds": digest({name: world.digest for name, world in sorted(exam.worlds.items())}),
        "wordings": sorted({problem.bank for problem in exam.problems}),
        "encoder": greedy.encoder,
        "unscored": greedy.overall.unscored_rollouts,
        "timed_out": greedy.overall.timed_out,
        "greedy": {name: plain(group.asr["oro"]) for name, group in greedy.intents.items()},
        "greedy_strict": plain(greedy.overall.asr["strict"]),
        "floors": {
            floor.name: {name: plain(rates["oro"]) for name, rates in floor.rates.items()}
            for floor in floors
        },
        "minus_first_hit": {row.intent: plain(row.difference) for row in pairs},
    }
    if exam.sampled:
        sampled = read_result(folder, "sampled")
        told["sampled"] = {
            "problems": digest(list(exam.sampled)),
            "samples": sampled.samples,
            "temperature": sampled.temperature,
            "unscored": sampled.overall.unscored_rollouts,
            "timed_out": sampled.overall.timed_out,
            "pass_at": {k: plain(one) for k, one in sampled.overall.pass_at["oro"].items()},
        }
    return told


def plain(number: msgspec.Struct) -> dict[str, Any]:
    """A rate, mean or difference with n and interval; six digits."""
    kept = msgspec.to_builtins(number)
    left_out = ("confidence", "clusters") if kept["method"] == "wilson" else ("confidence",)
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in kept.items()
        if name not in left_out
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--card", action="store_true", help="renew the checkpoint's card too")
    options = parser.parse_args()
    checkpoint = checkpoint_folder(Path(BUNDLED))
    with Screen() as screen:
        chain = Chain(read_config(Path("chain"), 31), options.out, screen)
        check_pools(chain.ground, checkpoint)
        exams = chain.exams()
        told = chain.measure(checkpoint, exams)
    path = options.out / "chain.json"
    path.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    for name, suite in told["suites"].items():
        whole = suite["greedy"][OVERALL]
        print(f"{name}: {whole['successes']} of {whole['n']}")
    print(f"-> {path}")
    if options.card:
        print(f"-> {card(chain, checkpoint, exams)}")


if __name__ == "__main__":
    main()
