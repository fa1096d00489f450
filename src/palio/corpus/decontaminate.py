"""What an external benchmark holds is found in a finished corpus, by rule and pair, and taken out.

Exact keys are compared with the shipped registry, which holds hashes alone; with the benchmark's
task file its texts are compared too: exact keys, similar requests, shared runs of words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from palio.corpus.certificate import PROBLEM_FILE
from palio.corpus.config import NEVER, POOLS
from palio.corpus.funnel import Funnel
from palio.corpus.rows import read_rows
from palio.corpus.standing import standing
from palio.corpus.takedown import Notice, take_down
from palio.records import InputError, Problem, Record, from_json
from palio.suites.grams import GramRule, shared_grams
from palio.suites.keys import keys_of
from palio.suites.lexical import LexicalRule, likenesses
from palio.suites.registry import Benchmark, known_problems


class Hit(Record, frozen=True, omit_defaults=False):
    """A problem of the corpus that a benchmark holds.

    Attributes:
        rule: "product", "spec", "text", "lexical" or "gram".
        task: the benchmark's problem, "" when only its hash is known.
        detail: the shared key or the similarity.
    """

    problem_id: str
    pool: str
    benchmark: str
    rule: str
    rows: int
    task: str = ""
    detail: str = ""


class HitCount(Record, frozen=True):
    """Hits of one benchmark, rule and pool."""

    benchmark: str
    rule: str
    pool: str
    problems: int
    rows: int
    example: str


class Contamination(Record, frozen=True, omit_defaults=False):
    """Everything that was found; `rows_hit` of `rows` rows belong to a problem that was."""

    hits: tuple[Hit, ...]
    problems: int
    rows: int
    rows_hit: int

    def summary(self) -> list[HitCount]:
        """Counts by benchmark, rule and pool."""
        groups: dict[tuple[str, str, str], dict[str, Hit]] = {}
        for hit in self.hits:
            groups.setdefault((hit.benchmark, hit.rule, hit.pool), {})[hit.problem_id] = hit
        return [
            HitCount(
                benchmark=key[0],
                rule=key[1],
                pool=key[2],
                problems=len(hits),
                rows=sum(hit.rows for hit in hits.values()),
                example=next(f"{hit.problem_id} {hit.task}".strip() for hit in hits.values()),
            )
            for key, hits in sorted(groups.items())
        ]


def read_problems(folder: Path) -> dict[str, Problem]:
    """The published problems of a corpus, by id.

    Raises:
        InputError: the folder has none, or a line is wrong.
    """
    path = folder / PROBLEM_FILE
    if not path.is_file():
        raise InputError(
            "no problems here", where=str(path), remedy="build the corpus with this version"
        )
    with path.open("rb") as file:
        rows = (
            from_json(line, Problem, where=f"{path}:{number}")
            for number, line in enumerate(file, start=1)
        )
        return {problem.problem_id: problem for problem in rows}


def contamination(
    folder: Path,
    benchmarks: Mapping[str, Sequence[Problem]],
    registry: Iterable[Benchmark] | None = None,
) -> Contamination:
    """Compare a corpus with benchmarks.

    Args:
        folder: a finished corpus.
        benchmarks: name -> problems of a task file.
        registry: entries to compare hashes with; those that ship when None.

    Raises:
        InputError: the folder is no corpus with problems.
    """
    problems = read_problems(folder)
    pool_of = from_json((folder / "pools.json").read_bytes(), dict[str, str], where=str(folder))
    counts = Counter(
        row.problem_id for pool in POOLS for row in read_rows(folder / f"{pool}.jsonl")
    )
    found = [
        Hit(
            problem_id=known.problem_id,
            pool=pool_of[known.problem_id],
            benchmark=known.benchmark,
            rule=known.rule,
            rows=counts[known.problem_id],
        )
        for known in known_problems(problems.values(), registry)
    ]
    for name, tasks in benchmarks.items():
        for problem_id, rule, task, detail in sorted(matches(tuple(problems.values()), tasks)):
            found.append(
                Hit(
                    problem_id=problem_id,
                    pool=pool_of[problem_id],
                    benchmark=name,
                    rule=rule,
                    rows=counts[problem_id],
                    task=task,
                    detail=detail,
                )
            )
    hit = {each.problem_id for each in found}
    return Contamination(
        hits=tuple(found),
        problems=len(problems),
        rows=counts.total(),
        rows_hit=sum(counts[name] for name in hit),
    )


Match = tuple[str, str, str, str]
"""Problem, rule, task of the benchmark, detail."""


def matches(problems: Sequence[Problem], tasks: Sequence[Problem]) -> set[Match]:
    """Every way in which a problem is one of the tasks; the first task of each rule."""
    found: dict[tuple[str, str], Match] = {}

    def add(problem: str, rule: str, task: str, detail: str) -> None:
        found.setdefault((problem, rule), (problem, rule, task, detail))

    for rule in ("product", "spec", "text"):
        owner = {key: task.problem_id for task in tasks for key in _bare_keys(task, rule)}
        for problem in problems:
            for key in _bare_keys(problem, rule):
                if key in owner:
                    add(problem.problem_id, rule, owner[key], key[:80])
    ours = [msgspec.structs.replace(p, problem_id=f"c {p.problem_id}") for p in problems]
    theirs = [msgspec.structs.replace(t, problem_id=f"t {t.problem_id}") for t in tasks]
    for pair in likenesses((*ours, *theirs), LexicalRule())[0]:
        if pair.one[0] != pair.other[0]:
            said = f"jaccard {pair.jaccard:.3f}, containment {pair.containment:.3f}"
            detail = said if pair.strong else f"suspected: {said}"
            add(pair.one[2:], "lexical", pair.other[2:], detail)
    for gram, held in shared_grams((*ours, *theirs), GramRule()).items():
        sides: dict[str, list[str]] = {"c": [], "t": []}
        for name in held:
            sides[name[0]].append(name[2:])
        for name in sides["c"] if sides["t"] else ():
            add(name, "gram", sides["t"][0], gram)
    return set(found.values())


def _bare_keys(problem: Problem, rule: str) -> tuple[str, ...]:
    """Exact keys; products of a synthetic world never are those of a benchmark."""
    if rule != "product":
        return keys_of(problem, rule)
    if problem.families:
        return ()
    return tuple(sorted({reward.product_id for reward in problem.rewards if reward.product_id}))


def cleaned(folder: Path, found: Contamination, out: Path) -> Funnel:
    """Write the corpus without the rows of the problems that were found, with a new certificate.

    The problems keep their pools and have no rows; the take-down is recorded with its reason.

    Args:
        folder: the corpus; it stays as it is.
        found: what `contamination` found in it.
        out: another folder.

    Raises:
        InputError: nothing was found, or the corpus has never-touch problems, which only a new
            build knows.
        IntegrityError: the corpus is not as its manifest says.
    """
    before = standing(folder)
    problems = read_problems(folder)
    names = sorted({hit.problem_id for hit in found.hits if hit.rows})
    if not names:
        raise InputError(
            "no row is in a benchmark: there is nothing to take out", where=str(folder)
        )
    if before.config.fractions.get(NEVER):
        raise InputError(
            "the corpus has never-touch problems, whose texts it does not hold",
            where=str(folder),
            remedy="build it again, without the problems that were found",
        )
    sources = sorted({hit.benchmark for hit in found.hits})
    notice = Notice(why=f"in the benchmark {', '.join(sources)}", problems=tuple(names))
    return take_down(before, notice, problems.values(), out)[0]
