"""What decides the bytes of a shard's output, in one digested record."""

from __future__ import annotations

from palio.corpus.config import CorpusConfig, checked
from palio.corpus.readers.detect import NAMES
from palio.corpus.readers.sources import MAX_BYTES
from palio.records import ConfigError, Record, digest

ENGINE_VERSION = "3"
"""Raised whenever an equal input and configuration would give other output than before."""

STEPS = ("scored", "hard rejects", "axis", "grounding", "format")
"""The steps of `palio.corpus.gates.row_steps` that need nothing but the row itself."""


class ShardConfig(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Every choice that the output of a shard depends on.

    Attributes:
        corpus: the gates; what is decided between rows (caps, pools) is part of it and is read by
            the second stage.
        format: one of `palio.corpus.readers.detect.NAMES` for all records, or "auto".
        max_bytes: longest record that is read.
        level: zstd level of the Parquet columns, 1 to 19.
        split: bytes from which a plain file of lines is shared out, and of each share; 0 = never.
    """

    corpus: CorpusConfig = CorpusConfig()
    format: str = "auto"
    max_bytes: int = MAX_BYTES
    level: int = 3
    split: int = 256 << 20
    engine: str = ENGINE_VERSION

    def digest(self) -> str:
        """Digest over every field, defaults included."""
        return digest(self)

    def checked(self) -> ShardConfig:
        """The configuration itself, once it is known to make sense.

        Raises:
            ConfigError: an unknown format, a level or size out of range, or contradicting gates.
        """
        checked(self.corpus)
        if self.format not in ("auto", *NAMES):
            raise ConfigError(
                f"no format {self.format!r}", remedy=f"one of auto, {', '.join(NAMES)}"
            )
        if not 1 <= self.level <= 19 or self.max_bytes < 1 or self.split < 0:
            raise ConfigError("level must be 1 to 19, max_bytes positive, split not negative")
        return self
