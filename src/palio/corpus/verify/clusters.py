"""Clusters as connected components, found by walking from problem to problem."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping


def components(
    names: Iterable[str],
    keys: Iterable[Mapping[str, Iterable[str]]],
    pairs: Iterable[tuple[str, str]],
) -> list[tuple[str, ...]]:
    """The sets of names that shared keys and pairs connect, each sorted.

    Args:
        names: all names.
        keys: mappings of a key to the names that hold it.
        pairs: names that are connected whatever they hold.
    """
    beside: dict[str, list[str]] = {name: [] for name in names}
    for mapping in keys:
        for held in mapping.values():
            first, *rest = held
            for name in rest:
                beside[first].append(name)
                beside[name].append(first)
    for one, other in pairs:
        if one in beside and other in beside:
            beside[one].append(other)
            beside[other].append(one)
    seen: set[str] = set()
    found = []
    for name in beside:
        if name in seen:
            continue
        seen.add(name)
        reached = [name]
        for here in reached:
            for near in beside[here]:
                if near not in seen:
                    seen.add(near)
                    reached.append(near)
        found.append(tuple(sorted(reached)))
    return found


def name_of(members: Iterable[str]) -> str:
    """The name of a cluster: "c-" and 16 digits of the smallest digest of its members' ids."""
    return "c-" + min(hashlib.sha256(member.encode()).hexdigest() for member in members)[:16]
