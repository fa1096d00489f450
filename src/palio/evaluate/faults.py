"""What broke the rollouts of an evaluation that could not be scored, counted by fault code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from palio.records import Fault, FaultCode, Record


class FaultCount(Record, frozen=True, omit_defaults=False):
    """Unscored rollouts of one fault code.

    Attributes:
        code: 2000-2999 the validator's, 3000-3999 the platform's; 0: none was recorded.
        blame: "validator", "platform", or "" with code 0.
        name: of the code, e.g. "upstream_key_refused".
        rollouts: how many.
        example: what the last of them says.
        remedy: what to do about it.
    """

    code: int
    blame: str
    name: str
    rollouts: int
    example: str
    remedy: str


def bare(fault: Fault) -> str:
    """What a fault says, without the remedy that its text may end with."""
    return fault.what.removesuffix(f" ({fault.remedy})")


def count_faults(faults: Iterable[Fault | None]) -> tuple[FaultCount, ...]:
    """Faults by code, most frequent first.

    Args:
        faults: of unscored rollouts, one each; None where none was recorded.
    """
    last: dict[int, Fault | None] = {}
    counts: Counter[int] = Counter()
    for fault in faults:
        code = fault.code if fault else 0
        last[code] = fault
        counts[code] += 1
    return tuple(
        _fault_count(code, last[code], counts[code])
        for code in sorted(counts, key=lambda code: (-counts[code], code))
    )


def _fault_count(code: int, fault: Fault | None, rollouts: int) -> FaultCount:
    names = {int(each): each.name for each in FaultCode}
    return FaultCount(
        code=code,
        blame=fault.blame.value if fault else "",
        name=names.get(code, "not recorded"),
        rollouts=rollouts,
        example=bare(fault) if fault else "",
        remedy=fault.remedy if fault else "",
    )
