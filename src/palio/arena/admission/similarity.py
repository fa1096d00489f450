"""How much of one submission's structure stands in another's, whatever its names and texts are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from palio.arena.admission.config import AdmissionConfig
from palio.arena.admission.findings import Finding
from palio.arena.admission.source import Source, read_source
from palio.records import bytes_digest

SHINGLE = 12
"""Nodes in a row that are compared: shorter runs stand in any two Python files."""


def similarity(
    data: bytes,
    source: Source,
    others: Mapping[str, bytes],
    common: Iterable[bytes],
    config: AdmissionConfig,
) -> list[Finding]:
    """Compare with other submissions; what cannot be compared counts as similar: fails closed.

    Args:
        data: the submission.
        source: the same, parsed.
        others: name -> file of each other submission.
        common: files that everybody may start from, such as the template.
        config: from which share on it is a finding.
    """
    own_digest, found = bytes_digest(data), []
    shared: set[int] = set()
    for text in common:
        shared |= _shingles_of(text, config) or set()
    own = shingles(source.tree) - shared
    for name, text in sorted(others.items()):
        if bytes_digest(text) == own_digest:
            found.append(Finding("duplicate", "error", f"the same file as {name}"))
            continue
        theirs = _shingles_of(text, config)
        if theirs is None:
            what = f"it cannot be compared with {name}, which does not parse"
            found.append(Finding("near-duplicate", "error", what))
            continue
        share = overlap(own, theirs - shared, config.shortest)
        if share >= config.similar:
            what = f"{share:.0%} of its structure stands in {name}"
            near = share >= config.near_duplicate
            found.append(Finding("near-duplicate", "error" if near else "warning", what))
    return found


def overlap(own: set[int], theirs: set[int], shortest: int) -> float:
    """Share of the smaller structure that stands in the other, in [0, 1]; 0 for very small ones."""
    smaller = min(len(own), len(theirs))
    return len(own & theirs) / smaller if smaller >= shortest else 0.0


def shingles(tree: ast.AST) -> set[int]:
    """Runs of `SHINGLE` node kinds in reading order, names, texts and annotations left out."""
    kinds = list(_kinds(tree))
    runs = (tuple(kinds[at : at + SHINGLE]) for at in range(len(kinds) - SHINGLE + 1))
    return {hash(run) for run in runs}


def _kinds(tree: ast.AST) -> Iterable[int]:
    """A number for each node; docstrings, imports and annotations say nothing of who wrote it."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom | ast.expr_context):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield _NUMBERS[type(node).__name__]
        children = []
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment"):
                continue
            children += [each for each in _listed(value) if isinstance(each, ast.AST)]
        waiting += reversed(children)


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


_NUMBERS = {
    name: number
    for number, name in enumerate(
        sorted(n for n, kind in vars(ast).items() if isinstance(kind, type))
    )
}


def _shingles_of(data: bytes, config: AdmissionConfig) -> set[int] | None:
    source, _ = read_source(data, config)
    return None if source is None else shingles(source.tree)
