"""Golden scorer vectors: what the original scorers answered, row by row beside what ours does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from palio.judging.encoders import StubEncoder
from palio.judging.outcome import OutcomeScorer
from palio.judging.rules import count, counters, wanted
from palio.records.base import Record
from palio.records.faults import InputError
from palio.records.problem import Problem
from palio.records.product import Product
from palio.records.verdict import Profile
from palio.world.lines import Line, read_lines
from palio.world.rows import BadRowError, product_of_line

VECTOR_PROFILES: tuple[Profile, ...] = ("upstream", "oro")
TOLERANCE = 1e-9


class Disagreement(Record, frozen=True):
    """One row on which a profile answers otherwise than its original."""

    line: int
    profile: Profile
    what: str
    expected: Any
    got: Any


class VectorReport(Record, frozen=True):
    """How many rows agree, by profile."""

    file: str
    total: int
    agreed: dict[str, int]
    disagreements: tuple[Disagreement, ...] = ()

    @property
    def all_agree(self) -> bool:
        """Whether every row agrees under every profile."""
        return all(count == self.total for count in self.agreed.values())


class _Vector(msgspec.Struct):
    """A row of either kind; the fields of the other kind are absent."""

    kind: Literal["rule", "traj"]
    task: list[str | int]
    title_sim: float
    upstream: dict[str, Any]
    oro: dict[str, Any]
    product: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    variant: str = ""
    recommend: Any = None
    upstream_success: bool = False
    oro_success: bool = False


_decoder = msgspec.json.Decoder(_Vector)


def run_vectors(
    path: Path, problems: Mapping[str, Problem], products: Mapping[str, Product]
) -> VectorReport:
    """Score every row of a vector file and compare within 1e-9.

    Args:
        path: JSON lines of `rule` and `traj` rows.
        problems: problem id ``<kind>-<row from 0>`` -> problem, as `import_suite` names them.
        products: the catalogue of the `traj` rows.

    Raises:
        InputError: a row is unreadable, or names a task that is not there; names file and line.
    """
    agreed: dict[str, int] = dict.fromkeys(map(str, VECTOR_PROFILES), 0)
    wrong: list[Disagreement] = []
    scorers: dict[float, OutcomeScorer] = {}
    total = 0
    for line in read_lines(path):
        where = f"{path}:{line.number}"
        row = _row(line, where)
        problem = _problem(row, problems, where)
        total += 1
        scorer = scorers.get(row.title_sim)
        if scorer is None:
            scorer = scorers[row.title_sim] = OutcomeScorer(products, StubEncoder(row.title_sim))
        for profile in VECTOR_PROFILES:
            answers = (
                _rule(row, problem, scorer, profile, where)
                if row.kind == "rule"
                else _trajectory(row, problem, scorer, profile)
            )
            unequal = [part for part in answers if not _equal(part[1], part[2])]
            agreed[profile] += not unequal
            wrong += [
                Disagreement(
                    line=line.number, profile=profile, what=what, expected=expected, got=got
                )
                for what, expected, got in unequal
            ]
    if not total:
        raise InputError("no vector in the file", where=str(path))
    return VectorReport(file=str(path), total=total, agreed=agreed, disagreements=tuple(wrong))


def _row(line: Line, where: str) -> _Vector:
    if line.fault:
        raise InputError(f"unreadable line: {line.detail}", where=where)
    try:
        return _decoder.decode(line.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a scorer vector: {error}", where=where) from error


def _problem(row: _Vector, problems: Mapping[str, Problem], where: str) -> Problem:
    name = "-".join(str(part) for part in row.task[:2])
    problem = problems.get(name)
    if problem is None:
        raise InputError(
            f"the vector's task {row.task!r} is in no task file",
            where=where,
            remedy="name the folder of the task files: --tasks DIR",
        )
    return problem


def _rule(
    row: _Vector, problem: Problem, scorer: OutcomeScorer, profile: Profile, where: str
) -> list[tuple[str, Any, Any]]:
    """(what, expected, got) of a single product against one wanted item."""
    slot = row.task[2] if len(row.task) > 2 else 0
    if not isinstance(slot, int) or not 0 <= slot < len(problem.rewards):
        raise InputError(f"the task {problem.problem_id} has no item {slot!r}", where=where)
    product = _product(row, where)
    want = wanted(problem.rewards[slot])
    counted = count(product, want, profile, scorer.encoder)
    truth = product.product_id == want.product_id
    total, hit = counters(counted, profile, truth=truth)
    expected = row.upstream if profile == "upstream" else row.oro
    return [
        ("rule", expected.get("rule"), counted.rule),
        ("total", expected.get("total"), total),
        ("hit", expected.get("hit"), hit),
    ]


def _product(row: _Vector, where: str) -> Product:
    if isinstance(row.product, msgspec.UnsetType):
        raise InputError("a rule vector without a product", where=where)
    try:
        plain = msgspec.json.decode(row.product)
        if isinstance(plain, dict):
            plain.setdefault("shop_id", "0")  # a rule row looks at one product, at no shop
        return product_of_line(msgspec.json.encode(plain))
    except (msgspec.DecodeError, BadRowError) as error:
        raise InputError(f"the vector's product is no product: {error}", where=where) from error


def _trajectory(
    row: _Vector, problem: Problem, scorer: OutcomeScorer, profile: Profile
) -> list[tuple[str, Any, Any]]:
    """(what, expected, got) of an answer; of two recommendations the last one counts."""
    answer = row.recommend
    if row.variant == "two_calls_last_wins" and isinstance(answer, list) and answer:
        answer = answer[-1]
    scores, success = scorer.score_answer(problem, answer, profile)
    upstream = profile == "upstream"
    return [
        ("scores", row.upstream if upstream else row.oro, scores),
        ("success", row.upstream_success if upstream else row.oro_success, success),
    ]


def _equal(expected: Any, got: Any) -> bool:
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(
            _equal(value, got[key]) for key, value in expected.items()
        )
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=0.0, abs_tol=TOLERANCE)
    return bool(expected == got)
