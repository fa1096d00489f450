"""The rules by which pools may share nothing; each names the pair that breaks it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from palio.corpus.verify import texts
from palio.corpus.verify.clusters import components, name_of
from palio.corpus.verify.evidence import EXACT, Evidence

Pair = tuple[str, str]


def check_rows(evidence: Evidence) -> None:
    """No trajectory and no conversation in two pools, each row where its problem belongs."""
    for rule in ("row", "conversation"):
        owner: dict[str, str] = {}
        first: dict[str, str] = {}
        for row in evidence.rows:
            key = row.trajectory_id if rule == "row" else row.told
            if rule == "row" and key in first:
                evidence.complain(rule, f"trajectory {key} occurs twice", first[key], row.place)
            elif owner.setdefault(key, row.pool) != row.pool:
                what = f"{owner[key]} and {row.pool} share a {rule}"
                evidence.complain(rule, what, first[key], row.place)
            first.setdefault(key, row.place)
        evidence.checked[rule] = len(owner)
    for row in evidence.rows:
        if row.problem_id in evidence.away:
            evidence.complain("quarantine", f"a row of quarantined {row.problem_id!r}", row.place)


def check_exact(evidence: Evidence) -> None:
    """No problem, product, specification, text or title family in two pools."""
    for rule in EXACT:
        for key, held in evidence.keys[rule].items():
            for pair in evidence.apart(held):
                what = f"pools share {rule} {key[:80]!r}: {evidence.where(*pair)}"
                evidence.leak(rule, what, *pair)
        evidence.checked[rule] = len(evidence.keys[rule])


def strong_and_weak(evidence: Evidence) -> tuple[list[Pair], list[Pair]]:
    """Lexical pairs that merge and that are merely suspected, each pair in id order."""
    bounds = evidence.rules.lexical
    if bounds is None or evidence.all_told_apart():
        return [], []
    requests = evidence.requests()
    strong: list[Pair] = []
    weak: list[Pair] = []
    for light, heavy, _ in requests.pairs(bounds):
        if not evidence.told_apart(light, heavy):
            pair = (min(light, heavy), max(light, heavy))
            (strong if requests.strong(light, heavy, bounds) else weak).append(pair)
    evidence.checked["lexical"] = len(strong) + len(weak)
    return sorted(strong), sorted(weak)


def check_lexical(evidence: Evidence, strong: list[Pair], weak: list[Pair]) -> None:
    """No two requests in different pools that are one, or that may be one and are not set apart."""
    for rule, pairs in (("lexical", strong), ("suspicion", weak)):
        for one, other in pairs:
            if rule == "suspicion" and not _clear(evidence, (one, other)):
                continue
            if evidence.apart((one, other)):
                said = "are nearly the same" if rule == "lexical" else "are suspiciously alike"
                what = f"the requests of {evidence.where(one, other)} {said}"
                evidence.leak(rule, what, one, other)


def check_runs(evidence: Evidence) -> list[tuple[str, ...]]:
    """No run of words in two pools; gives the sets of problems that share one."""
    rule = evidence.rules.grams
    if rule is None:
        return []
    holders: dict[str, dict[str, None]] = {}
    for name, task in evidence.tasks.items():
        for run in texts.runs(task.query, evidence.request_words, rule.words, rule.content):
            holders.setdefault(run, {})[name] = None
    sets: dict[tuple[str, ...], str] = {}
    clear = 0
    for run, held in holders.items():
        clear += any(name not in evidence.away for name in held)
        if len(held) > 1:
            sets.setdefault(tuple(held), run)
    for names, run in sets.items():
        left = [name for name in names if _clear(evidence, (name,))]
        for pair in evidence.apart(left):
            evidence.leak("gram", f"pools share {run!r}: {evidence.where(*pair)}", *pair)
    evidence.checked["gram"] = clear
    return list(sets)


def _clear(evidence: Evidence, names: tuple[str, ...]) -> bool:
    """Whether none of the problems is quarantined; one with rows is not, whatever is stated."""
    return all(name not in evidence.away or evidence.places.get(name) for name in names)


def check_embedding(evidence: Evidence) -> None:
    """Edges of meaning, as stated: without the model nobody can compute them."""
    for edge in evidence.stated.embedding:
        if evidence.apart((edge.one, edge.other)):
            what = f"the model finds {evidence.where(edge.one, edge.other)} to mean the same"
            evidence.leak("embedding", what, edge.one, edge.other)
    for each in evidence.stated.embedding_suspicions:
        for pair in evidence.apart(name for name in each.problems if _clear(evidence, (name,))):
            evidence.leak("suspicion", f"the model suspects {evidence.where(*pair)}", *pair)


def find_clusters(evidence: Evidence, strong: list[Pair]) -> list[tuple[str, ...]]:
    """The clusters of all problems, computed again."""
    keys = [evidence.keys[rule] for rule in evidence.stated.edges if rule in evidence.keys]
    pairs = [*strong, *evidence.rules.links.must]
    pairs += [(edge.one, edge.other) for edge in evidence.stated.embedding]
    return components(evidence.tasks, keys, pairs)


def check_clusters(evidence: Evidence, clusters: list[tuple[str, ...]]) -> dict[str, str]:
    """No cluster in two pools, every row names its cluster; gives each problem's cluster."""
    cluster_of = {name: name_of(members) for members in clusters for name in members}
    for members in clusters:
        for pair in evidence.apart(members):
            what = f"cluster {name_of(members)} stands in two pools: {evidence.where(*pair)}"
            evidence.leak("cluster", what, *pair)
    for one, other in evidence.rules.links.cannot:
        if one in cluster_of and cluster_of[one] == cluster_of.get(other):
            evidence.leak("cluster", f"{one!r} and {other!r} were told apart", one, other)
    for row in evidence.rows:
        wanted = cluster_of.get(row.problem_id)
        if wanted is not None and row.cluster_id != wanted:
            what = f"the row names cluster {row.cluster_id}, its problem is in {wanted}"
            evidence.complain("cluster", what, row.place)
    evidence.checked["cluster"] = len(clusters)
    return cluster_of


def check_never(evidence: Evidence, hashes: Mapping[str, list[str]]) -> None:
    """No published problem shares a key with a never-touch one."""
    for rule, named in hashes.items():
        hidden = set(named)
        for key, held in evidence.keys.get(rule, {}).items():
            data = f"palio-registry-1\0{rule}\0{key}".encode()
            if hashlib.sha256(data).hexdigest()[:20] in hidden:
                rows = evidence.places.get(held[0], ())
                what = f"{evidence.where(held[0])} has the {rule} of a never-touch problem"
                evidence.complain("never-touch", what, *rows[:3])
    evidence.checked["never-touch"] = sum(map(len, hashes.values()))
