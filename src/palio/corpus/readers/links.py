"""References between parts of a record are looked at and not followed, so none can trap us."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_PARENTS = frozenset(("parent_id", "parent", "parentId", "parentUuid", "parent_message_id"))
_IDS = ("id", "uuid", "message_id", "step_id")


def is_cyclic(items: Iterable[Any]) -> bool:
    """Whether the parent links of a list of messages or steps lead back to where they came from."""
    parent_of: dict[str, list[str]] = {}
    for item in items:
        if not isinstance(item, dict) or _PARENTS.isdisjoint(item):
            continue
        own = next((str(item[key]) for key in _IDS if item.get(key) is not None), None)
        parent = next((str(item[key]) for key in sorted(_PARENTS) if item.get(key)), None)
        if own is not None and parent is not None:
            parent_of.setdefault(own, []).append(parent)
    return has_cycle(parent_of)


def has_cycle(links: Mapping[str, Iterable[str]]) -> bool:
    """Whether a graph (node -> nodes it names) has a cycle; walks without recursion."""
    done: set[str] = set()
    for start in links:
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            node, leaving = stack.pop()
            if leaving:
                on_path.discard(path.pop())
                done.add(node)
                continue
            if node in on_path:
                return True
            if node in done:
                continue
            path.append(node)
            on_path.add(node)
            stack.append((node, True))
            stack += [(other, False) for other in links.get(node, ())]
    return False
