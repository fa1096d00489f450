"""Which ids a call names, however it writes them, and which of them a conversation has shown."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from palio.judging.answers import product_ids
from palio.records import Message, ToolCall
from palio.world.arguments import canonical_arguments
from palio.world.world import World

_ID_NAME = re.compile(r"(?:.*[_-])?(?i:ids?)|.*[a-z0-9]I[Dd]s?", re.DOTALL)
"""`product_ids`, `shop_id` and what an agent may write in their place, `id` or `itemIds`."""
_SHOWN = re.compile(r'"(?:product|shop)_id"\s*:\s*"?([^",}\]]+)')
"""In a result's text; a quote inside a JSON string is escaped, so a title cannot forge the key."""


def named_ids(call: ToolCall) -> frozenset[str]:
    """The ids in the arguments of a call, under any name of an id.

    Read from the text as it was written: of a name that stands there twice, or beside its alias,
    the tool looks at one, and of an argument that it does not know at none.
    """
    named: set[str] = set()

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, value in pairs:
            if _ID_NAME.fullmatch(name):
                named.update(_listed(value))
        return dict(pairs)

    text: Any = call.function.arguments
    for _ in range(2):  # as `arguments.parse_object`: an object may be encoded twice
        if not isinstance(text, str):
            break
        try:
            text = json.loads(text, object_pairs_hook=note)
        except (ValueError, RecursionError):
            break
    return frozenset(named)


def _listed(value: Any) -> tuple[str, ...]:
    """The ids of one argument, a text with commas or a list of any depth."""
    if isinstance(value, list):
        return tuple(one for part in value for one in _listed(part))
    read = canonical_arguments("view_product_information", {"product_ids": value})
    return product_ids(read.get("product_ids"))


def grounded(
    ids: Collection[str], world: World | None, history: Sequence[Message] | None = None
) -> bool:
    """Whether a world knows all of the ids, and a conversation has shown them.

    Args:
        ids: of products or shops.
        world: where they should be; None: nothing is known there.
        history: messages up to the call; a result shows an id, and so does the request that names
            it. None: what was shown is not asked.
    """
    if not ids:
        return True
    if world is None:
        return False
    known = world.catalogue
    if not all(one in known.products or one in known.by_shop for one in ids):
        return False
    return history is None or set(ids) <= _shown(history) | _requested(ids, history)


def _shown(history: Sequence[Message]) -> set[str]:
    results = (message.content or "" for message in history if message.role == "tool")
    return {one.strip() for text in results for one in _SHOWN.findall(text)}


def _requested(ids: Collection[str], history: Sequence[Message]) -> set[str]:
    asked = "\n".join(message.content or "" for message in history if message.role == "user")
    return {one for one in ids if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", asked)}
