"""Synthetic shopping worlds: products, hard decoys and problems from one seed."""

from palio.world.synthesis.config import ItemMix, SynthesisConfig, compact_config, full_config
from palio.world.synthesis.synthesise import Decoy, Synthesis, synthesise

__all__ = [
    "Decoy",
    "ItemMix",
    "Synthesis",
    "SynthesisConfig",
    "compact_config",
    "full_config",
    "synthesise",
]
