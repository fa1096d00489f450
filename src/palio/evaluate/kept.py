"""What an evaluation came to is kept beside its rollouts, and says which model it was made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palio import __version__
from palio.evaluate.pin import plain
from palio.evaluate.report_data import StageResult
from palio.evaluate.rollouts import ROWS
from palio.records import Provenance, digest
from palio.world.artefacts import MANIFEST, file_digest, replacing, write_manifest

RESULTS = "results.json"
GREEDY = "greedy"


def sampled_folder(out: Path, samples: int) -> Path:
    """Where an evaluation has its rollouts of so many samples a problem."""
    return out / f"sampled-{samples}"


def keep_results(
    out: Path,
    told: Mapping[str, Any],
    stage: StageResult,
    terms: Mapping[str, Any],
    seed: int,
    floors: Sequence[Path] = (),
) -> Provenance:
    """Write `results.json`, then `manifest.json`, each whole or not at all.

    Args:
        out: folder of the evaluation; its rollouts are in folders below it.
        told: the results in plain numbers, each with its n and interval.
        stage: the policy that was evaluated.
        terms: of its greedy rollouts, from `palio.evaluate.policy.terms_of`; samples differ from
            them in number and temperature.
        seed: of samples and intervals.
        floors: folders of the rollouts of floors, below `out`.

    Returns:
        The manifest: its inputs hold digests of problems, worlds and of the model's parts, its
        outputs those of the results and of every rollout behind them.
    """
    with replacing(out / RESULTS) as file:
        file.write(json.dumps(told, indent=2, ensure_ascii=False).encode() + b"\n")
    results = [result for result in (stage.greedy, stage.sampled) if result]
    pin = plain(next((result.model for result in results if result.model), None))
    parts = {name: text for name, text in pin.items() if isinstance(text, str) and text}
    worlds = {f"world {name}": text for name, text in terms["worlds"].items()}
    behind = [*floors, *([out / GREEDY] if stage.greedy else [])]
    if stage.sampled is not None:  # earlier samples of another k may lie beside them
        behind.append(sampled_folder(out, stage.sampled.samples))
    rows = sorted(path.relative_to(out) for each in behind for path in each.rglob(ROWS))
    config = {"policy": stage.name, "model": pin, **terms}
    if stage.sampled is not None:
        drawn = stage.sampled
        config["sampled"] = {"samples": drawn.samples, "temperature": drawn.temperature}
    made = Provenance(
        kind="evaluation",
        tool_version=__version__,
        config=config,
        config_digest=digest(config),
        inputs={"problems": terms["problems"], **worlds, **parts},
        outputs={str(path): file_digest(out / path) for path in (*rows, Path(RESULTS))},
        counts={
            "problems": max(result.overall.problems for result in results),
            "rollouts": sum(result.overall.rollouts for result in results),
            "unscored": sum(result.overall.unscored_rollouts for result in results),
        },
        seed=seed,
    )
    write_manifest(made, out / MANIFEST)
    return made


def models_in_words(stages: Sequence[StageResult]) -> list[str]:
    """Of every policy one line that says which model it is; none of programs."""
    lines = []
    for stage in stages:
        results = [result for result in (stage.greedy, stage.sampled) if result]
        pin = next((result.model for result in results if result.model), None)
        if pin is not None:
            lines.append(f"{stage.name}: {pin.in_words()}")
    return lines
