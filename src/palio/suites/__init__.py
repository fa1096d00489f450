"""Versioned problem suites, leak clusters and the pools that a problem may live in."""

from palio.suites.clusters import EDGE_KINDS, Clustering, Edge, EdgeKind, leak_clusters
from palio.suites.files import check_suite, read_suite, write_suite
from palio.suites.keys import normalise_text, spec_key
from palio.suites.pools import (
    DEFAULT_FRACTIONS,
    Disjointness,
    assign_pools,
    check_disjoint,
    split_units,
)

__all__ = [
    "DEFAULT_FRACTIONS",
    "EDGE_KINDS",
    "Clustering",
    "Disjointness",
    "Edge",
    "EdgeKind",
    "assign_pools",
    "check_disjoint",
    "check_suite",
    "leak_clusters",
    "normalise_text",
    "read_suite",
    "spec_key",
    "split_units",
    "write_suite",
]
