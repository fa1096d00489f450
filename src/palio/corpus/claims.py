"""What an agent told beside its record is sorted: forged, invented, or of no harm to a row.

`Trajectory.differences` holds sentences of the broker, of the log reader and of importers; what
they mean for a corpus is decided here alone. A sentence that is neither forged nor invented drops
no row: an agent that returns nothing, or leaves calls out, still has the record of the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

FORGED = (
    "claims another result of",
    "shows the model another result of",
    "the dialogue shows another result than",
    "which the proxy's record of the result does not have",
)
"""An observation was shown or told that no tool gave."""
INVENTED = (
    "a call that never happened",
    "is not in the proxy's record",
    "the last recorded answer is",
)
"""A call, or an answer, was told that the record does not have."""

Departure = Literal["forged_observation", "invented_call"]


def departure(differences: Iterable[str]) -> tuple[Departure, str] | None:
    """The worst departure of an account from its record, with its sentence; None without one.

    Args:
        differences: of one trajectory.
    """
    sentences = tuple(differences)
    kinds: tuple[tuple[Departure, tuple[str, ...]], ...] = (
        ("forged_observation", FORGED),
        ("invented_call", INVENTED),
    )
    for reason, marks in kinds:
        for sentence in sentences:
            if any(mark in sentence for mark in marks):
                return reason, sentence
    return None
