"""The arena: its rules as pure functions of verdicts."""

from palio.arena.standings import (
    StandingEntry,
    StandingRow,
    Standings,
    standing_entry,
    standings,
    wilson_interval,
)

__all__ = [
    "StandingEntry",
    "StandingRow",
    "Standings",
    "standing_entry",
    "standings",
    "wilson_interval",
]
