"""The gates of a row in one pass over what a clean conversation says.

Equal by test to the gates themselves, which parse the calls of a row each for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from palio.corpus.config import CorpusConfig
from palio.corpus.conversation import RECOMMEND
from palio.corpus.gates import Drop, Gate, one_recommendation
from palio.corpus.shards.calls import Moves, are_grounded, ids_of, moves_of, names_them, parsed_of
from palio.corpus.shards.clean import Told
from palio.corpus.shards.offers import Offer
from palio.records import to_json
from palio.world.arguments import CATALOGUE_TOOLS

ACTING = frozenset(CATALOGUE_TOOLS)
GATES = frozenset(
    (
        *("scored", "paired_calls", "one_recommendation", "parsable_arguments", "let_in"),
        *("resolved_products", "ends_well", "gate", "on_axis", "true_to_record", "grounded"),
        "good_format",
    )
)
"""Names of the gates that `Passing` stands for; when there is another, each row meets them all.

"gate" is the budget, and the oracle, which knows no problem here. `scored`, `let_in` and
`true_to_record` keep every clean chat row.
"""

_BEFORE = frozenset(("scored", "paired_calls"))
"""Gates before `one_recommendation`, which a clean row with all calls answered in order passes."""


class Passed(NamedTuple):
    """The calls of a row that passes: their moves and arguments, and the ids it recommends."""

    moves: Moves
    parsed: list[dict[str, Any]]
    wanted: tuple[str, ...]


class Dropped(NamedTuple):
    """A row that a gate drops, and what a reject says of it."""

    step: str
    drop: Drop
    trajectory_id: str
    problem_id: str
    agent: str


class Passing:
    """Asks all gates of a clean row at once.

    Args:
        config: of the gates.
        steps: the gates as they apply.

    Attributes:
        covered: whether they are among `GATES`; if not, each row must meet them all.
    """

    def __init__(self, config: CorpusConfig, steps: Sequence[tuple[str, Sequence[Gate]]]) -> None:
        self._config = config
        self.covered = {gate.__name__ for _, gates in steps for gate in gates} <= GATES
        self._recommending = _step_of_recommendation(steps) if self.covered else None

    def passed(self, messages: list[Any], told: Told, offer: Offer, size: int) -> Passed | None:
        """What a row that no gate drops asks for; None when one might drop it.

        The axis is for the caller to ask. `size` is at least the bytes of the messages' JSON form.
        """
        config = self._config
        results, names, arguments = told.results, told.talk.tools, told.talk.arguments
        moves = moves_of(tuple(names), len(results), config.terminal_tools)
        if not told.tidy or moves is None:
            return None
        parsed = parsed_of(arguments)
        if parsed is None:
            return None
        wanted = ids_of(parsed[moves.at])
        if not wanted or not names_them(wanted):
            return None
        tools = offer.size if config.count_tools else 0
        if size + tools > config.token_budget and (
            len(to_json(messages)) + tools > config.token_budget
        ):
            return None
        if config.grounding and not are_grounded(wanted, arguments[: moves.at], results):
            return None
        if not config.format:
            return Passed(moves, parsed, wanted) if told.ended else None
        if not told.formed or told.thinking / told.turns < config.thinking:
            return None
        if offer.names and not offer.names.issuperset(names):
            return None
        return Passed(moves, parsed, wanted)

    def gone(self, told: Told) -> tuple[str, Drop] | None:
        """(step, drop) of a row that the count of its recommendations drops."""
        names = told.talk.tools
        if self._recommending is None or not told.tidy or len(told.results) != len(names):
            return None
        count = names.count(RECOMMEND)
        if count == 1:
            return None
        reason = "recommend_repeated" if count else "recommend_missing"
        return self._recommending, Drop(reason=reason, detail=f"{count} calls")


def _step_of_recommendation(steps: Sequence[tuple[str, Sequence[Gate]]]) -> str | None:
    """The step that asks for one recommendation, if only gates of `_BEFORE` come before."""
    for step, gates in steps:
        for gate in gates:
            if gate is one_recommendation:
                return step
            if gate.__name__ not in _BEFORE:
                return None
    return None
