"""Third part of the main job: everything that was raced and rolled out becomes a corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from palio.corpus.build import build
from palio.corpus.config import CorpusConfig
from palio.corpus.reading import TraceReader
from palio.evaluate.mainjob.config import MainJobConfig
from palio.evaluate.mainjob.worlds import Ground
from palio.rollout.verdicts import Panel, judge_all
from palio.world.artefacts import MANIFEST, file_digest


def build_corpus(
    config: MainJobConfig,
    ground: Ground,
    sources: list[Path],
    folder: Path,
    advance: Callable[[int, str], None],
) -> dict[str, Any]:
    """Judge every trajectory, gate it, and split it by the pools that were fixed before.

    Args:
        config: seed, shares and workers.
        ground: the problems and their pools.
        sources: folders of trajectories: the race and the bulk rollout.
        folder: the corpus folder.
        advance: called with rows gated so far and a note.
    """
    reader = TraceReader(sources)
    catalogues = {name: ground.catalogue(name).products for name in ground.catalogue_ids}
    panel = Panel(ground.problems, catalogues, ("oro", "strict"))
    choices = CorpusConfig(fractions=config.fractions, salt=f"main-{config.seed}")
    funnel = build(
        judge_all(reader, panel, workers=config.workers),
        ground.problems,
        choices,
        folder,
        inputs=reader.digests(),
        previous=ground.pools,
        unread=reader.rejects,
        progress=lambda rows: advance(rows, "judged and gated"),
    )
    return {
        "taken": funnel.taken,
        "kept": funnel.kept,
        "config": choices.digest(),
        "pools": {name: pool.rows for name, pool in funnel.pools.items()},
        "manifest": file_digest(folder / MANIFEST),
    }
