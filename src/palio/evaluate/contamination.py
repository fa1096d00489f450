"""Which problems of an evaluation a model may have been trained on, and how it does on the others.

The two groups are different problems, so the gap between them is no measure of inflation: harder
problems may be the ones that leaked. It is a warning, and the clean rate is the one to report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from palio.corpus.build import read_pools
from palio.corpus.config import POOLS
from palio.corpus.decontaminate import matches, read_problems
from palio.corpus.rows import read_rows
from palio.evaluate.results import RolloutScore
from palio.evaluate.statistics import Proportion, wilson
from palio.records import KINDS, InputError, Problem, Profile, Record
from palio.suites.keys import keys_of

_EXACT = ("product", "spec", "text")


class Contaminated(Record, frozen=True, omit_defaults=False):
    """One evaluated problem that the training pool holds in some form.

    Attributes:
        rules: "product", "spec", "text", "lexical" or "gram".
        trained: training problems that it is: all with an equal key, of those that are only alike
            the first of each rule.
        rows: of these training problems.
    """

    problem_id: str
    kind: str
    rules: tuple[str, ...]
    trained: tuple[str, ...]
    rows: int


class ContaminationReport(Record, frozen=True, omit_defaults=False):
    """An evaluation split by what the model was trained on.

    Attributes:
        corpus: folder of the training corpus.
        pools: pools of the corpus that count as trained on.
        problems: of the suite.
        found: those that the pools hold, with rule, training problems and their rows.
        clean, contaminated: success rates of scored problems; None without an evaluation.
        unscored: problems of the evaluation that infrastructure broke; they are in neither.
        clean_by_kind: success rate on clean problems by kind.
    """

    corpus: str
    pools: tuple[str, ...]
    problems: int
    found: tuple[Contaminated, ...]
    clean: Proportion | None = None
    contaminated: Proportion | None = None
    clean_by_kind: dict[str, Proportion] = {}
    unscored: int = 0


def contamination_report(
    corpus: Path,
    problems: Sequence[Problem],
    scores: Iterable[RolloutScore] | None = None,
    *,
    pools: Sequence[str] = ("train",),
    profile: Profile = "oro",
) -> ContaminationReport:
    """Compare a suite with what a corpus trained on: products, specifications, texts, rare words.

    Args:
        corpus: the corpus folder that the model was trained on.
        problems: of the evaluated suite.
        scores: greedy rollouts of the evaluation, one a problem.
        pools: pools of the corpus that were trained on; one that is named twice counts once.
        profile: whose success counts.

    Raises:
        InputError: the folder is no corpus, or has no such pool; or a rollout is of a problem that
            is not of the suite, so that nobody can say whether it was trained on; or rollouts are
            sampled, whose rate would be one of their samples'.
    """
    known, pool_of = read_problems(corpus), read_pools(corpus)
    pools = tuple(dict.fromkeys(pools))
    unknown = sorted(set(pools) - set(pool_of.values()) - set(POOLS))
    if unknown:
        raise InputError(f"a corpus has no pool {unknown[0]!r}", where=str(corpus))
    trained = [each for each in known.values() if pool_of.get(each.problem_id) in pools]
    rows = Counter(row.problem_id for pool in pools for row in read_rows(corpus / f"{pool}.jsonl"))
    kinds = {problem.problem_id: problem.kind for problem in problems}
    report = ContaminationReport(
        corpus=str(corpus),
        pools=pools,
        problems=len(problems),
        found=_found(_hits(problems, trained), kinds, rows),
    )
    return report if scores is None else _split(report, scores, kinds, profile)


def _hits(
    problems: Sequence[Problem], trained: Sequence[Problem]
) -> Iterator[tuple[str, str, str]]:
    """(problem, rule, training problem) of every problem that was trained on, in whatever form.

    `matches` gives for each of its first argument what it is, so the evaluated problems come first:
    several of them may be one training problem.
    """
    for rule in _EXACT:
        owners: defaultdict[str, list[str]] = defaultdict(list)
        for each in trained:
            for key in keys_of(each, rule):
                owners[key].append(each.problem_id)
        for problem in problems:
            for key in keys_of(problem, rule):
                yield from ((problem.problem_id, rule, name) for name in owners.get(key, ()))
    for name, rule, one, _ in matches(problems, trained):
        yield name, rule, one


def _found(
    hits: Iterable[tuple[str, str, str]], kinds: Mapping[str, str], rows: Mapping[str, int]
) -> tuple[Contaminated, ...]:
    rules: defaultdict[str, set[str]] = defaultdict(set)
    trained: defaultdict[str, set[str]] = defaultdict(set)
    for name, rule, one in hits:
        rules[name].add(rule)
        trained[name].add(one)
    return tuple(
        Contaminated(
            problem_id=name,
            kind=kinds[name],
            rules=tuple(sorted(rules[name])),
            trained=tuple(sorted(trained[name])),
            rows=sum(rows[one] for one in trained[name]),
        )
        for name in sorted(rules)
    )


def _split(
    report: ContaminationReport,
    scores: Iterable[RolloutScore],
    kinds: Mapping[str, str],
    profile: Profile,
) -> ContaminationReport:
    first = list(scores)
    if any(row.sample for row in first):
        raise InputError(
            "these rollouts are sampled, and the rates of contamination are greedy",
            remedy="name the folder greedy beside it",
        )
    strange = sorted({row.problem_id for row in first} - kinds.keys())
    if strange:
        raise InputError(
            f"the suite does not have the evaluated problem {strange[0]!r}",
            remedy="name the suite that the evaluation used",
        )
    success = {
        row.problem_id: row.success.get(profile, False) for row in first if row.status == "scored"
    }
    dirty = {each.problem_id for each in report.found}
    clean = {name: good for name, good in success.items() if name not in dirty}
    leaked = [good for name, good in success.items() if name in dirty]
    present = [kind for kind in KINDS if kind in set(kinds.values())]
    return msgspec.structs.replace(
        report,
        clean=wilson(sum(clean.values()), len(clean)),
        contaminated=wilson(sum(leaked), len(leaked)),
        clean_by_kind={kind: _rate(clean, kinds, kind) for kind in present},
        unscored=len({row.problem_id for row in first}) - len(success),
    )


def _rate(success: dict[str, bool], kinds: Mapping[str, str], kind: str) -> Proportion:
    found = [good for name, good in success.items() if kinds.get(name) == kind]
    return wilson(sum(found), len(found))
