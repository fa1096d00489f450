"""Synthetic shopping worlds: products, hard decoys and problems from one seed."""

from palio.world.synthesis.config import (
    ItemMix,
    SynthesisConfig,
    compact_config,
    full_config,
    preset,
)
from palio.world.synthesis.files import suite_of, write_synthesis
from palio.world.synthesis.synthesise import Decoy, Synthesis, synthesise
from palio.world.synthesis.web import WebConfig, WebSynthesis, synthesise_web

__all__ = [
    "Decoy",
    "ItemMix",
    "Synthesis",
    "SynthesisConfig",
    "WebConfig",
    "WebSynthesis",
    "compact_config",
    "full_config",
    "preset",
    "suite_of",
    "synthesise",
    "synthesise_web",
    "write_synthesis",
]
