"""The offline title encoder: words and character trigrams, deterministic on every machine."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

from palio.records.verdict import Profile

LEXICAL_ID = "palio-lexical-1"
# Calibrated like the original scorers: the share of the 8,385 pairs of 130 unrelated real titles
# that pass is what the Qwen encoder passes. Measured (tests/judging/test_encoders.py measures it
# again): 24.0 % at 0.04413, 0.60 % at 0.2866, 0.155 % (Qwen's share at 0.8) at 0.5307. Against
# Qwen's own hits at 0.7 the area under the ROC curve is 0.936.
THRESHOLDS: dict[Profile, float] = {"upstream": 0.04413, "oro": 0.2866, "strict": 0.2866}
WEB_THRESHOLD = 0.5307

# Words that every second listing has; they say little about what is sold.
COMMON = frozenset(
    {"a", "an", "and", "by", "for", "high", "in", "new", "of", "on", "or", "original", "pack"}
    | {"premium", "quality", "set", "size", "the", "to", "type", "with"}
)
COMMON_WEIGHT = 0.3
CACHED_TITLES = 1 << 16
_WORD = re.compile(r"[^\W_]+")


def features(title: str) -> dict[str, float]:
    """Unit-length sparse vector of a title: feature -> weight, features in sorted order.

    A word weighs the square root of its length (at most 8 letters); its character trigrams
    together weigh as much as the word, so that spelling variants and plurals stay near.
    """
    weights: dict[str, float] = {}
    for word in sorted(set(_WORD.findall(unicodedata.normalize("NFKC", title).casefold()))):
        stem = word[:-1] if len(word) > 3 and word.endswith("s") else word
        weight = math.sqrt(min(len(stem), 8)) * (COMMON_WEIGHT if stem in COMMON else 1.0)
        weights["=" + stem] = max(weights.get("=" + stem, 0.0), weight)
        padded = f"^{stem}$"
        grams = [padded[i : i + 3] for i in range(len(padded) - 2)]
        for gram in grams:
            weights[gram] = max(weights.get(gram, 0.0), weight / math.sqrt(len(grams)))
    norm = math.sqrt(math.fsum(weight * weight for weight in weights.values()))
    return {feature: weights[feature] / norm for feature in sorted(weights)}


class LexicalEncoder:
    """Cosine of `features`; caches the vectors of the last 65,536 titles."""

    encoder_id = LEXICAL_ID
    thresholds: Mapping[Profile, float] = THRESHOLDS
    web_threshold = WEB_THRESHOLD

    def __init__(self) -> None:
        self._features = lru_cache(maxsize=CACHED_TITLES)(features)

    def similarity(self, a: str, b: str) -> float:
        """Cosine in [0, 1]; 1 for equal titles, 0 when a title has no word."""
        if a == b:
            return 1.0
        first, second = self._features(min(a, b)), self._features(max(a, b))
        if len(first) > len(second):
            first, second = second, first
        return math.fsum(
            weight * second[feature] for feature, weight in first.items() if feature in second
        )
