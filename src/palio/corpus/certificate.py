"""A corpus carries the proof that its pools share nothing, and all that is needed to check it.

The certificate stands beside `problems.jsonl`, from which `palio corpus verify` computes everything
again with code of its own. A corpus whose pools share anything gets none: the build fails.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from palio import __version__
from palio.corpus.config import NEVER, POOLS, CorpusConfig
from palio.corpus.separation import Separation
from palio.records import InputError, IntegrityError, Problem, Record, from_json, to_json
from palio.records.base import current_schema
from palio.suites.alarms import Alarm
from palio.suites.clusters import Edge
from palio.suites.grams import grams_of
from palio.suites.guard import ALGORITHM, GuardConfig, Suspicion
from palio.suites.keys import keys_of
from palio.suites.lexical import WordWeights, most_similar, word_weights
from palio.suites.pools import POOL_RULE, WORDINGS_POOL_RULE, check_disjoint
from palio.suites.registry import fingerprint, known_problems
from palio.suites.wordings import MEASURING, HeldoutWordings
from palio.suites.words import request_words
from palio.world.artefacts import file_digest, write_lines

CERTIFICATE = "certificate.json"
PROBLEM_FILE = "problems.jsonl"
NEVER_FILE = "never-touch.json"
"""Hashes of the keys of never-touch problems by rule; nothing else of them is published."""
HASHED = ("problem", "product", "spec", "text", "family")
WEIGHT_FILE = "weights.json"
"""The word weights, where never-touch problems are part of them and so nobody can count again."""


class Quarantined(Record, frozen=True, omit_defaults=False):
    """A problem without rows, and the suspicion that it is one with `others`."""

    problem: str
    pool: str
    kind: str
    key: str
    others: tuple[str, ...]


class Nearest(Record, frozen=True, omit_defaults=False):
    """The most similar requests of which one trains and the other measures; weighted Jaccard."""

    jaccard: float
    train: str
    measured: str
    pool: str


class PoolRule(Record, frozen=True, omit_defaults=False):
    """By which rule units became pools; `guard.split` and `guard.weak` belong to it.

    Attributes:
        salt, fractions: of the configuration.
        earlier: digest of the assignment that pools were kept from, "" without one.
        carried: published problems that stand where that assignment put them, and not where the
            rule alone would; with a stratified split all that it knew.
        wordings: what was held out by wording; left out when nothing was.
    """

    salt: str
    fractions: dict[str, float]
    earlier: str = ""
    carried: tuple[str, ...] = ()
    version: str = POOL_RULE
    wordings: HeldoutWordings | msgspec.UnsetType = msgspec.UNSET


class Certificate(Record, frozen=True, omit_defaults=False):
    """What was checked, with what, and what was found. All counts are of published problems.

    Attributes:
        files: name -> digest of the files that it speaks of.
        edges: exact edge kinds of the clusters.
        guard: everything else that decided clusters and split.
        request_words: the words that similarities leave out.
        weights: digest of the word weights; `documents` requests were counted.
        model: embedding model, "" without.
        rows, problems: by pool; the problems of all pools, "never-touch" and quarantined included.
        sizes: cluster size -> clusters.
        joins: edge kind -> edges.
        suspicions: kind -> suspicions that are not inside one cluster.
        embedding: edges and suspicions that cannot be computed again without the model.
        compared: rule -> different keys that were compared between the pools.
        shared: rule -> keys that two pools share; all 0.
        known: benchmark -> rule -> pool -> problems that the registry knows.
        rule: by which units became pools; None in certificates from before it was stated.
    """

    files: dict[str, str]
    edges: tuple[str, ...]
    guard: GuardConfig
    request_words: tuple[str, ...]
    weights: str
    documents: int
    model: str
    rows: dict[str, int]
    problems: dict[str, int]
    clusters: int
    sizes: dict[str, int]
    joins: dict[str, int]
    suspicions: dict[str, int]
    alarms: tuple[Alarm, ...]
    quarantine: tuple[Quarantined, ...]
    embedding: tuple[Edge, ...]
    embedding_suspicions: tuple[Suspicion, ...]
    compared: dict[str, int]
    shared: dict[str, int]
    nearest: Nearest | None
    known: dict[str, dict[str, dict[str, int]]]
    rule: PoolRule | None = None
    algorithm: str = ALGORITHM
    tool_version: str = __version__
    schema_version: str = msgspec.field(default_factory=current_schema)


def read_certificate(folder: Path) -> Certificate:
    """The certificate of a corpus folder.

    Raises:
        InputError: there is none, or it is not one.
    """
    path = folder / CERTIFICATE
    if not path.is_file():
        raise InputError(
            "no certificate here", where=str(path), remedy="build the corpus with this version"
        )
    return from_json(path.read_bytes(), Certificate, where=str(path))


def certify(
    folder: Path, problems: Mapping[str, Problem], separation: Separation, config: CorpusConfig
) -> Certificate:
    """Check the finished pool files of a folder, and write problems and certificate beside them.

    Args:
        folder: holds `<pool>.jsonl`, `<pool>.parquet`, `pools.json` and `provenance.jsonl`.
        problems: all problems, never-touch ones included, in id order.
        separation: their pools.
        config: the configuration of the corpus.

    Raises:
        IntegrityError: two pools share something; names the rule and the pair.
    """
    public = {name: p for name, p in problems.items() if separation.pool_of[name] != NEVER}
    write_lines(folder / PROBLEM_FILE, (to_json(problem) + b"\n" for problem in public.values()))
    weights = word_weights(problems.values())
    if len(public) < len(problems):
        hidden = [problem for name, problem in problems.items() if name not in public]
        write_lines(folder / NEVER_FILE, [to_json(_hashes(hidden)), b"\n"])
        write_lines(folder / WEIGHT_FILE, [to_json(weights), b"\n"])
    compared, rows = _compared(folder, public, separation, config)
    clear = {name: p for name, p in public.items() if name not in separation.quarantine}
    guarded = separation.guarded
    clusters = {guarded.clustering.cluster_of[name] for name in public}
    sizes = Counter(len(guarded.clustering.members[cluster]) for cluster in clusters)
    certificate = Certificate(
        files=_digests(folder),
        edges=config.edges,
        guard=config.guard,
        request_words=tuple(sorted(request_words())),
        weights=weights.digest(),
        documents=weights.documents,
        model=guarded.model,
        rows=rows,
        problems=dict(sorted(Counter(separation.pool_of.values()).items())),
        clusters=len(clusters),
        sizes={str(size): sizes[size] for size in sorted(sizes)},
        joins={
            kind: sum(edge.one in public for edge in edges)
            for kind, edges in guarded.clustering.edges.items()
        },
        suspicions=_suspicion_counts(guarded.suspicions, public),
        alarms=guarded.alarms,
        quarantine=_quarantine(separation, public),
        embedding=guarded.clustering.edges.get("embedding", ()),
        embedding_suspicions=tuple(s for s in guarded.suspicions if s.kind == "embedding"),
        compared=compared,
        shared=dict.fromkeys(compared, 0),
        nearest=_nearest(clear, separation, weights),
        known=_known(public, separation),
        rule=_rule(separation, config, public),
    )
    write_lines(folder / CERTIFICATE, [msgspec.json.format(to_json(certificate)), b"\n"])
    return certificate


def _rule(separation: Separation, config: CorpusConfig, public: Mapping[str, Problem]) -> PoolRule:
    return PoolRule(
        salt=config.salt,
        fractions=config.fractions,
        earlier=separation.earlier,
        carried=tuple(name for name in separation.carried if name in public),
        version=WORDINGS_POOL_RULE if separation.wordings else POOL_RULE,
        wordings=separation.wordings or msgspec.UNSET,
    )


def _hashes(problems: Sequence[Problem]) -> dict[str, list[str]]:
    """Rule -> sorted hashes of the keys of problems that are not published."""
    return {
        rule: sorted({fingerprint(rule, key) for p in problems for key in keys_of(p, rule)})
        for rule in HASHED
    }


def _digests(folder: Path) -> dict[str, str]:
    names = [f"{pool}.{kind}" for pool in POOLS for kind in ("jsonl", "parquet")]
    names += [PROBLEM_FILE, NEVER_FILE, WEIGHT_FILE, "pools.json", "provenance.jsonl"]
    return {name: file_digest(folder / name) for name in sorted(names) if (folder / name).exists()}


def _suspicion_counts(
    suspicions: Iterable[Suspicion], public: Mapping[str, Problem]
) -> dict[str, int]:
    """Suspicions among published problems; a run counts with those of its holders."""
    counts: Counter[str] = Counter()
    for each in suspicions:
        counts[each.kind] += sum(name in public for name in each.problems) > 1
    return dict(sorted(counts.items()))


def _quarantine(separation: Separation, public: Mapping[str, Problem]) -> tuple[Quarantined, ...]:
    return tuple(
        Quarantined(
            problem=name,
            pool=separation.pool_of[name],
            kind=why.kind,
            key=why.key,
            others=tuple(each for each in why.problems if each != name and each in public),
        )
        for name, why in separation.quarantine.items()
        if name in public
    )


def _nearest(
    clear: Mapping[str, Problem], separation: Separation, weights: WordWeights
) -> Nearest | None:
    """The nearest pair of a training problem and one that measures; None without such a pair."""
    sides = {name: separation.pool_of[name] == "train" for name in clear}
    found = most_similar(tuple(clear.values()), sides, weights)
    if found is None:
        return None
    jaccard, one, other = found
    train, measured = (one, other) if sides[one] else (other, one)
    return Nearest(
        jaccard=jaccard, train=train, measured=measured, pool=separation.pool_of[measured]
    )


def _known(
    public: Mapping[str, Problem], separation: Separation
) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for hit in known_problems(public.values()):
        pools = found.setdefault(hit.benchmark, {}).setdefault(hit.rule, {})
        pool = separation.pool_of[hit.problem_id]
        pools[pool] = pools.get(pool, 0) + 1
    return found


class _Row(Record, frozen=True):
    trajectory_id: str
    problem_id: str
    messages: msgspec.Raw


def _compared(
    folder: Path, public: Mapping[str, Problem], separation: Separation, config: CorpusConfig
) -> tuple[dict[str, int], dict[str, int]]:
    """Different keys compared by rule, and rows by pool; raises where two pools share a key."""
    pool_of = {name: separation.pool_of[name] for name in public}
    by_pool: dict[str, list[Problem]] = {pool: [] for pool in POOLS}
    for name, problem in public.items():
        by_pool[pool_of[name]].append(problem)
    compared = dict(check_disjoint(by_pool).keys)
    cluster_of = separation.clustering.cluster_of
    clusters = _Owners("cluster")
    for name, pool in pool_of.items():
        clusters.claim(cluster_of[name], pool, name)
    compared["cluster"] = len(clusters)
    if config.guard.grams is not None:
        runs = _Owners("13-gram")
        for name, problem in public.items():
            if name not in separation.quarantine:
                for gram in grams_of(problem.query, config.guard.grams):
                    runs.claim(gram, pool_of[name], name)
        compared["gram"] = len(runs)
    _check_suspicions(separation, pool_of)
    _check_wordings(public, pool_of, config.banks)
    rows = {}
    owners = (_Owners("row"), _Owners("conversation"))
    for pool in POOLS:
        rows[pool] = _claim_rows(folder / f"{pool}.jsonl", pool, owners, separation)
    compared["row"] = len(owners[0])
    compared["conversation"] = len(owners[1])
    return compared, rows


def _claim_rows(path: Path, pool: str, owners: Sequence[_Owners], separation: Separation) -> int:
    decode = msgspec.json.Decoder(_Row).decode
    count = 0
    with path.open("rb") as file:
        for line in file:
            row = decode(line)
            if row.problem_id in separation.quarantine:
                raise IntegrityError(f"a row of quarantined {row.problem_id!r}", where=str(path))
            owners[0].claim(row.trajectory_id, pool, row.trajectory_id)
            told = hashlib.sha256(row.messages).hexdigest()
            owners[1].claim(told, pool, row.trajectory_id)
            count += 1
    return count


def _check_suspicions(separation: Separation, pool_of: Mapping[str, str]) -> None:
    """Suspicions that are open across pools although nothing in them is quarantined."""
    for each in separation.guarded.suspicions:
        left = [n for n in each.problems if n in pool_of and n not in separation.quarantine]
        for name in left:
            if pool_of[name] != pool_of[left[0]]:
                raise IntegrityError(
                    f"{left[0]!r} and {name!r} of two pools may be one: {each.kind} {each.key}"
                )


def _check_wordings(
    public: Mapping[str, Problem], pool_of: Mapping[str, str], banks: Sequence[str]
) -> None:
    """No problem of a held-out wording stands where something trains or is chosen."""
    for name, problem in public.items():
        if problem.bank in banks and pool_of[name] not in MEASURING:
            raise IntegrityError(
                f"{name!r} of the held-out wording {problem.bank!r} stands in {pool_of[name]}",
                remedy="this is a defect of palio: the split should have kept it out",
            )


class _Owners:
    """The first pool that claims a key owns it; another pool's claim is a leak."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._owner: dict[str, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._owner)

    def claim(self, key: str, pool: str, name: str) -> None:
        """Raises IntegrityError when another pool has the key."""
        held = self._owner.setdefault(key, (pool, name))
        if held[0] != pool:
            raise IntegrityError(
                f"pools {held[0]!r} and {pool!r} share {self._rule} {key[:80]!r}: "
                f"{held[1]!r} and {name!r}",
                remedy="this is a defect of palio: the split should have kept them together",
            )
