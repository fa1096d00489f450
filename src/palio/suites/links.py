"""What an operator says of two problems overrules their texts, never what they share."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from palio.records import ConfigError, IntegrityError, Record
from palio.suites.clusters import Clustering, Edge

OPERATOR = "operator"
"""Edge kind of a must-link."""


class Links(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Pairs of problem ids that an operator has looked at.

    Attributes:
        must: they are one problem.
        cannot: they are two problems, however alike their texts: no edge of similarity joins them.
    """

    must: tuple[tuple[str, str], ...] = ()
    cannot: tuple[tuple[str, str], ...] = ()

    def told_apart(self) -> frozenset[tuple[str, str]]:
        """The cannot-links, each pair in id order."""
        return frozenset(_ordered(pair) for pair in self.cannot)


def _ordered(pair: tuple[str, str]) -> tuple[str, str]:
    one, other = sorted(pair)
    return one, other


def read_links(path: Path) -> Links:
    """Read a TOML file with the keys `must` and `cannot`, lists of pairs of problem ids.

    Raises:
        ConfigError: no such file, no TOML, or another shape.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Links)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"not a file of links: {error}",
            where=str(path),
            remedy='write must = [["problem a", "problem b"]] and cannot = [[...]]',
        ) from error


def must_edges(links: Links, known: Mapping[str, object]) -> tuple[Edge, ...]:
    """The edges of the must-links.

    Raises:
        ConfigError: a link names a problem that is not there, or one pair both ways.
    """
    for one, other in (*links.must, *links.cannot):
        missing = next((name for name in (one, other) if name not in known), None)
        if missing is not None:
            raise ConfigError(
                f"a link names problem {missing!r}, which is not there",
                remedy="correct the id: a link that binds nothing would pass unseen",
            )
        if one == other:
            raise ConfigError(f"a link joins problem {one!r} to itself")
    pairs = sorted({_ordered(pair) for pair in links.must})
    both = sorted(set(pairs) & links.told_apart())
    if both:
        raise ConfigError(f"problems {both[0][0]!r} and {both[0][1]!r} must and cannot be linked")
    return tuple(Edge(one=one, other=other, key="must-link") for one, other in pairs)


def check_told_apart(links: Links, clustering: Clustering) -> None:
    """Refuse a clustering that joins what an operator told apart.

    Raises:
        IntegrityError: names the pair and the chain of edges that joins it.
    """
    for one, other in sorted(links.told_apart()):
        if clustering.cluster_of[one] == clustering.cluster_of[other]:
            chain = "; ".join(_chain(clustering, one, other))
            raise IntegrityError(
                f"problems {one!r} and {other!r} cannot be linked, and are: {chain}",
                remedy="cut the chain with another cannot-link, or drop this one: a shared "
                "product, specification or text cannot be disputed",
            )


def _chain(clustering: Clustering, one: str, other: str) -> Iterable[str]:
    """A shortest chain of edges from one problem to another of its cluster."""
    beside: dict[str, list[tuple[str, str]]] = {}
    for kind, edges in clustering.edges.items():
        for edge in edges:
            beside.setdefault(edge.one, []).append((edge.other, f"{kind} {edge.key[:40]}"))
            beside.setdefault(edge.other, []).append((edge.one, f"{kind} {edge.key[:40]}"))
    came: dict[str, tuple[str, str]] = {one: ("", "")}
    front = [one]
    while front and other not in came:
        step = []
        for name in front:
            for neighbour, why in beside.get(name, ()):
                if neighbour not in came:
                    came[neighbour] = (name, why)
                    step.append(neighbour)
        front = step
    links = []
    while other != one:
        before, why = came[other]
        links.append(f"{before} - {other} by {why}")
        other = before
    return reversed(links)
