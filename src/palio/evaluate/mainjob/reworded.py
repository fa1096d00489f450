"""The trained policy asked in words that no training problem has, in a catalogue of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from palio.evaluate.mainjob.apart import make_apart
from palio.evaluate.mainjob.config import PRODUCTS_A_PROBLEM, MainJobConfig
from palio.evaluate.mainjob.worlds import Ground
from palio.world.synthesis.config import compact_config
from palio.world.synthesis.wording import banks_for

CATALOGUE = "compact-reworded"


def make_reworded(config: MainJobConfig, ground: Ground, folder: Path) -> dict[str, Any]:
    """Make its catalogue and problems; see `make_apart`, with all other problems of the job.

    Args:
        config: seed and sizes.
        ground: all other problems of the job.
        folder: for catalogue and suite.
    """
    wanted = compact_config(
        config.seed * 1_000 + config.catalogues + 1,
        products=max(config.products, PRODUCTS_A_PROBLEM * config.reworded),
        problems=config.reworded,
        banks=banks_for("compact", "measuring"),
    )
    wanted = msgspec.structs.replace(wanted, catalogue_id=CATALOGUE)
    return make_apart(wanted, ground.problems, folder, f"reworded-{config.seed}")
