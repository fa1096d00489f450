"""A strategy reads like straight-line code: asking for what the conversation lacks ends the turn.

Every call of a scripted model replays its strategy from the request on. A question whose answer
already stands in the conversation is answered from it; the first one that does not becomes the
model's next message, with the notes taken since the last answer as its thinking. So a model needs
no state of its own, and it can also go on from a conversation that another model began.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from palio.agents.scripted.conversation import Conversation, Rows, call_key, read_rows

Call = tuple[str, dict[str, Any]]
COMPACT_TURNS = 10
FULL_TURNS = 25
"""Turns that a model allows itself; the rows' shape tells the two worlds apart."""


class NextTurn(Exception):  # noqa: N818 - control flow: it carries the model's next message
    """The next message of the model: its thinking and its calls."""

    def __init__(self, thinking: str, calls: Sequence[Call]) -> None:
        super().__init__(thinking)
        self.thinking = thinking
        self.calls = tuple(calls)


class OutOfTurns(Exception):  # noqa: N818 - control flow: time to answer
    """Only the final turn is left."""


class Desk:
    """Where a strategy takes notes and asks for tool results.

    Attributes:
        compact: whether this is the compact world: guessed from the missing system message, then
            known from the rows.
    """

    def __init__(self, conversation: Conversation, offered: frozenset[str]) -> None:
        self.conversation = conversation
        self.offered = offered
        self.compact = not conversation.briefed
        self.notes: list[str] = []

    def say(self, note: str) -> None:
        """Take a note, unless it is empty; it becomes thinking of the turn being prepared."""
        if note:
            self.notes.append(note)

    def ask(self, name: str, arguments: dict[str, Any]) -> Rows:
        """The rows that a call answered.

        Raises:
            NextTurn: the conversation does not hold the answer yet.
            OutOfTurns: it does not, and only one turn is left.
        """
        text = self.conversation.results.get(call_key(name, arguments))
        if text is None:
            limit = COMPACT_TURNS if self.compact else FULL_TURNS
            if self.conversation.turns >= limit - 1:
                raise OutOfTurns
            raise NextTurn(self.thinking(), [(name, arguments)])
        self.notes.clear()
        return read_rows(text)

    def find(
        self,
        q: str,
        *,
        price: str = "",
        service: str = "",
        shop_id: str = "",
        sort: str = "",
        page: int = 1,
    ) -> Rows:
        """One page of search results; arguments stand in the order that training relies on."""
        arguments: dict[str, Any] = {
            "q": q,
            "price": price,
            "service": service,
            "shop_id": shop_id,
            "sort": sort,
            "page": page if page > 1 else "",
        }
        rows = self.ask("find_product", {key: value for key, value in arguments.items() if value})
        if rows:
            self.compact = "service" not in rows[0]
        return rows

    def view(self, product_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Details of products by id."""
        rows = self.ask("view_product_information", {"product_ids": ",".join(product_ids)})
        return {str(row.get("product_id")): row for row in rows}

    def finish(self, product_ids: Sequence[str]) -> NextTurn:
        """The last turn: recommend and terminate, both at once."""
        calls: list[Call] = [("terminate", {"status": "success"})]
        if product_ids:
            calls.insert(0, ("recommend_product", {"product_ids": ",".join(product_ids)}))
        else:
            calls = [("terminate", {"status": "failure"})]
        return NextTurn(self.thinking(), calls)

    def thinking(self) -> str:
        """The notes taken since the last answer, as one line."""
        return " ".join(self.notes)


def arguments_json(arguments: dict[str, Any]) -> str:
    """Compact JSON of a call's arguments, in the order given."""
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
