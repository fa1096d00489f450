"""What the certificate states is compared with what the files show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from palio.corpus.verify.evidence import Evidence
from palio.corpus.verify.files import NEVER, Folder, canonical_digest
from palio.corpus.verify.shapes import Manifest, Stated

REQUEST_WORDS = {
    "palio-leak-2": "sha256:43ce272d6085803035ef674eed9da3115e9c10fbcda23ebd7788fbfb4d6f1ae9",
}
"""Digest of the sorted request words of every algorithm: a longer list would hide similarities."""


def check_rules(folder: Folder, stated: Stated, manifest: Manifest | None) -> None:
    """The stated rules are those of the configuration, and the words those of the algorithm."""
    known = REQUEST_WORDS.get(stated.algorithm)
    if known is None:
        folder.complain("certificate", f"algorithm {stated.algorithm!r} is not known here")
    elif canonical_digest(list(stated.request_words)) != known:
        folder.complain("certificate", f"the request words are not those of {stated.algorithm}")
    if any(stated.shared.values()):
        folder.complain("certificate", f"it states shared keys: {stated.shared}")
    if manifest is None:
        return
    document = folder.document("certificate.json", dict[str, Any]) or {}
    for name in ("guard", "edges"):
        if name in manifest.config and manifest.config[name] != document.get(name):
            what = f"its {name} is not that of the configuration in the manifest"
            folder.complain("certificate", what)
    for name in ("salt", "fractions") if stated.rule is not None else ():
        if manifest.config.get(name) != getattr(stated.rule, name):
            what = f"its {name} is not that of the configuration in the manifest"
            folder.complain("certificate", what)
    if stated.rule is not None:
        banks = stated.rule.wordings.banks if stated.rule.wordings is not None else ()
        if (manifest.config.get("heldout_banks") or []) != list(banks):
            what = "its held-out wordings are not those of the configuration in the manifest"
            folder.complain("certificate", what)


def check_weights(evidence: Evidence, own: bool) -> None:
    """The word weights are those that were certified."""
    stated = evidence.stated
    documents = len(evidence.tasks) if own else stated.documents
    weights = {"documents": documents, "weight": evidence.weights}
    if canonical_digest(weights) != stated.weights:
        evidence.complain("certificate", "the word weights are not those of the problems")


def check_counts(
    evidence: Evidence,
    pool_of: Mapping[str, str],
    clusters: Sequence[tuple[str, ...]],
    pairs: tuple[int, Iterable[tuple[str, str]], Iterable[tuple[str, ...]]],
    cluster_of: Mapping[str, str],
) -> None:
    """Every count of the certificate, computed again.

    Args:
        evidence: the corpus.
        pool_of: assigned pools.
        clusters: clusters found.
        pairs: strong lexical pairs, weak ones, and sets of problems that share a run.
        cluster_of: cluster of each problem.
    """
    stated = evidence.stated
    strong, weak, runs = pairs
    sizes = Counter(map(len, clusters))
    joins = {
        rule: sum(len(held) - 1 for held in evidence.keys[rule].values()) for rule in stated.edges
    }
    joins["lexical"] = strong
    joins["embedding"] = len(stated.embedding)
    joins["operator"] = len({frozenset(pair) for pair in stated.guard.links.must})
    found: dict[str, Any] = {
        "rows": dict(Counter(row.pool for row in evidence.rows)),
        "problems": dict(Counter(pool_of.values())),
        "clusters": len(clusters),
        "sizes": {str(size): count for size, count in sizes.items()},
        "joins": joins,
    }
    if NEVER not in pool_of.values():
        found["suspicions"] = {
            "lexical": sum(_open(pair, cluster_of) for pair in weak),
            "gram": sum(_open(names, cluster_of) for names in runs),
            "embedding": len(stated.embedding_suspicions),
        }
    for name, value in found.items():
        _compare(evidence, name, value, getattr(stated, name))
    compared = {rule: evidence.checked.get(rule, 0) for rule in stated.compared}
    _compare(evidence, "compared", compared, stated.compared)


def _open(names: tuple[str, ...], cluster_of: Mapping[str, str]) -> bool:
    return len({cluster_of[name] for name in names}) > 1


def _compare(evidence: Evidence, name: str, value: Any, said: Any) -> None:
    """Equal counts; one of 0 may be left out."""
    ours = value if isinstance(value, dict) else {"": value}
    theirs = said if isinstance(said, dict) else {"": said}
    for key in sorted(ours.keys() | theirs.keys()):
        own, other = ours.get(key, 0), theirs.get(key, 0)
        if own != other:
            what = f"it states {' '.join((name, key)).strip()} = {other}, found {own}"
            evidence.complain("certificate", what)


def check_nearest(evidence: Evidence, pool_of: Mapping[str, str]) -> None:
    """The stated nearest pair is as near as stated, and no pair is nearer."""
    clear = [name for name in pool_of if name in evidence.tasks and name not in evidence.away]
    sides = {name: pool_of[name] == "train" for name in clear}
    found = evidence.requests(clear).nearest(sides)
    stated = evidence.stated.nearest
    near = found[0] if found is not None else 0.0
    said = stated.jaccard if stated is not None else 0.0
    if abs(near - said) > 1e-12:
        pair = f" ({found[1]!r} and {found[2]!r})" if found is not None else ""
        what = f"it states a greatest similarity of {said:.6f}, found {near:.6f}{pair}"
        evidence.complain("certificate", what)
    evidence.checked["nearest"] = len(clear)
