"""Quality and success become one number by one published formula."""

from __future__ import annotations

FULL_QUALITY = 0.8
FLOOR = 0.3


def coefficient(quality: float) -> float:
    """1 from quality 0.8 on, else 0.3 + quality x 0.7 / 0.8; in [0.3, 1].

    Args:
        quality: reasoning quality in [0, 1], of one run or a mean.
    """
    if quality >= FULL_QUALITY:
        return 1.0
    return FLOOR + quality * (1.0 - FLOOR) / FULL_QUALITY


def final_score(success_rate: float, mean_quality: float) -> float:
    """Success rate x coefficient(mean quality), both over the same problems; in [0, 1]."""
    return success_rate * coefficient(mean_quality)
