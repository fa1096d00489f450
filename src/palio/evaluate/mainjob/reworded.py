"""The trained policy asked in words that no training problem has, in a catalogue of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from palio.evaluate.mainjob.apart import make_apart
from palio.evaluate.mainjob.config import PRODUCTS_A_PROBLEM, MainJobConfig
from palio.evaluate.mainjob.worlds import Ground
from palio.records import InputError
from palio.world.synthesis.config import compact_config
from palio.world.synthesis.wording import banks_for

CATALOGUE = "compact-reworded"


def make_reworded(config: MainJobConfig, ground: Ground, folder: Path) -> dict[str, Any]:
    """Make its catalogue and problems; see `make_apart`, with all other problems of the job.

    Args:
        config: seed and sizes.
        ground: all other problems of the job.
        folder: for catalogue and suite.

    Raises:
        InputError: every problem shares a leak cluster with others.
    """
    wanted = compact_config(
        config.seed * 1_000 + config.catalogues + 1,
        products=max(config.products, PRODUCTS_A_PROBLEM * config.reworded),
        problems=config.reworded,
        banks=banks_for("compact", "measuring"),
    )
    wanted = msgspec.structs.replace(wanted, catalogue_id=CATALOGUE)
    made = make_apart(wanted, ground.problems, folder, f"reworded-{config.seed}")
    if not made["problems"]:
        raise InputError(
            f"each of the {made['left out']} reworded problems shares a leak cluster with the "
            "job's others, so there is nothing to measure on",
            where=str(ground.folder),
            remedy="set reworded higher, or to 0 to do without, in another --out",
        )
    return made
