"""A rewriter is shown one moment: the request, what was done so far, what is done next; no more."""

from __future__ import annotations

import re
from typing import Any, Protocol

from palio.corpus.derivable import Prefix
from palio.judging.words import tokens_of
from palio.records import PalioError, Record

MOST_BARE = 10
"""Numbers up to this may count things ("2 of 5 results") without standing in the record."""
_TAG = re.compile(r"</?(?:think|tool_call|tool_response|response|obs)>|<\|im_(?:start|end)\|>")


class Step(Record, frozen=True, omit_defaults=False):
    """One call and the world's answer to it; arguments are canonical, the result is JSON text."""

    tool: str
    arguments: dict[str, Any]
    result: str


class Moment(Record, frozen=True, omit_defaults=False):
    """Everything that thinking may use.

    Attributes:
        query: the request.
        steps: calls with their results, in order.
        calls: (tool, arguments) of the turn whose thinking is wanted: one catalogue call, or
            recommend_product and terminate.
        compact: whether the world's rows are the compact ones.
    """

    query: str
    steps: tuple[Step, ...]
    calls: tuple[tuple[str, dict[str, Any]], ...]
    compact: bool


class Rewriter(Protocol):
    """Writes the thinking of a turn.

    Attributes:
        rewriter_id: name and version of everything that decides the text; part of row ids.
    """

    @property
    def rewriter_id(self) -> str:
        """See the class."""

    def thinking(self, moment: Moment) -> str:
        """Thinking that leads from `moment.steps` to `moment.calls`; one line, never empty.

        Raises:
            UnfoundedError: no text was found that keeps to the moment.
            UpstreamError: the model behind it failed.
        """


class UnfoundedError(PalioError):
    """A rewriter said what the record does not show."""


def unfounded(text: str, moment: Moment) -> tuple[str, ...]:
    """What a text says beyond its moment: tags, and numbers or ids that nothing shows.

    Words are not checked: a language model says things in its own words. Anything with a digit must
    stand in the request, in a result, or in the calls so far and next, or follow from prices by the
    arithmetic of `palio.corpus.derivable`.
    """
    if tag := _TAG.search(text):
        return (tag.group(),)
    prefix = Prefix(moment.query)
    for step in moment.steps:
        prefix.add(step.tool, step.arguments, step.result)
    calls = [*((step.tool, step.arguments) for step in moment.steps), *moment.calls]
    said = {
        token for _, given in calls for value in given.values() for token in tokens_of(str(value))
    }
    return tuple(
        token
        for token in tokens_of(text)
        if any(letter.isdigit() for letter in token)
        and token not in said
        and not prefix.knows(token)
        and not _is_counted(token, prefix)
    )


def _is_counted(token: str, prefix: Prefix) -> bool:
    try:
        number = float(token)
    except ValueError:
        return False
    return number <= MOST_BARE or prefix.knows_amount(number) or prefix.knows_total(number)
