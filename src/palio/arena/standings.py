"""Standings are a pure function of verdicts: the order of rows and the names of agents say nothing.

Rules (fixed, so that two validators compute the same bytes):

- A problem counts for an agent when one of its runs there is scored and judged. Several runs of
  one problem are averaged first. The agent's own failures count, with success 0 and quality 0.
- final = success rate x coefficient(mean quality), both over the same problems.
- Runs that infrastructure or the judge left open leave numerator and denominator, are counted
  apart, and `worst_case` is the final score if each of them had failed.
- Ranks are competition ranks (1, 2, 2, 4) of the final score, equal to twelve digits.
- `group` says which ranks mean nothing: from the top, a row joins the group of the best row when
  the paired difference of their scores on common problems has an interval that holds 0 (Agresti
  and Min 2005: two pseudo-problems; fewer than six differing problems always hold 0), or, with
  fewer than two common problems, when their final intervals overlap.
- Agents that may not compete (oracle, inline, not eligible) are listed apart without a rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from palio.judging.coefficient import coefficient, final_score
from palio.judging.outcome import agent_failed
from palio.records.base import Record, current_schema
from palio.records.trajectory import Trajectory
from palio.records.verdict import OutcomeVerdict, ReasoningVerdict

Z95 = 1.959963984540054
DIGITS = 12
MIN_DIFFERENT = 6
"""With five differing problems even the exact sign test stays at p = 0.0625."""


class StandingEntry(Record, frozen=True):
    """One run as the standings see it.

    Attributes:
        status: "counted", "unscored" (infrastructure) or "unjudged".
        success: 1 for strict success under the race's profile, else 0.
        quality: reasoning quality in [0, 1]; 0 for a run that the agent itself failed.
        eligible: False for oracles, inline runs and agents that may not compete.
    """

    agent: str
    version: str
    problem_id: str
    status: Literal["counted", "unscored", "unjudged"]
    success: float = 0.0
    quality: float = 0.0
    eligible: bool = True


class StandingRow(Record, frozen=True, omit_defaults=False):
    """One agent.

    Attributes:
        rank: competition rank, None when the agent is not ranked.
        group: number of the group of statistically tied agents, from 1; None when not ranked.
        n: problems counted.
        successes: sum of successes over them; whole when each problem was run once.
        success_low: lower end of the 95 % Wilson interval of the success rate.
        success_high: upper end.
        final_low: `success_low` times the coefficient.
        final_high: `success_high` times the coefficient.
        unscored: runs that infrastructure left without a score.
        unjudged: runs without a reasoning verdict.
        worst_case: final score if every unscored and unjudged problem had failed.
    """

    agent: str
    version: str
    rank: int | None
    group: int | None
    n: int
    successes: float
    success_rate: float | None
    success_low: float
    success_high: float
    mean_quality: float | None
    coefficient: float | None
    final: float | None
    final_low: float
    final_high: float
    unscored: int
    unjudged: int
    worst_case: float


class Standings(Record, frozen=True, omit_defaults=False):
    """All agents of a race: those ranked, best first, and those apart.

    Attributes:
        ranked: eligible agents with a counted problem.
        unranked: eligible agents without one.
        ineligible: agents that may not compete, by final score.
        problems: different problems over all rows.
    """

    ranked: tuple[StandingRow, ...]
    unranked: tuple[StandingRow, ...]
    ineligible: tuple[StandingRow, ...]
    problems: int
    confidence: float = 0.95
    schema_version: str = msgspec.field(default_factory=current_schema)


class _Agent(NamedTuple):
    """An agent's means: problem -> (success, quality) of the counted ones."""

    key: tuple[str, str]
    counted: dict[str, tuple[float, float]]
    problems: int
    unscored: int
    unjudged: int
    eligible: bool


def standing_entry(
    trajectory: Trajectory, outcome: OutcomeVerdict, reasoning: ReasoningVerdict | None
) -> StandingEntry:
    """The entry of one run from its record and its verdicts.

    Args:
        trajectory: the run.
        outcome: its outcome under the race's profile.
        reasoning: its reasoning verdict, None when there is none: the run is unjudged.
    """
    failed = agent_failed(trajectory)
    status: Literal["counted", "unscored", "unjudged"] = "counted"
    quality = 0.0
    if outcome.status == "unscored":
        status = "unscored"
    elif not failed:
        if reasoning is None or reasoning.quality is None:
            status = "unjudged"
        else:
            quality = reasoning.quality
    counted = status == "counted"
    return StandingEntry(
        agent=trajectory.agent.name,
        version=trajectory.agent.version,
        problem_id=trajectory.problem_id,
        status=status,
        success=float(counted and outcome.success and not failed),
        quality=quality,
        eligible=trajectory.eligible
        and trajectory.isolation != "inline"
        and trajectory.agent.kind != "oracle",
    )


def standings(entries: Iterable[StandingEntry]) -> Standings:
    """The standings of a race; see the module for the rules."""
    rows = list(entries)
    agents = _agents(rows)
    made = [(agent, _row(agent)) for agent in agents]
    able = [(agent, row) for agent, row in made if agent.eligible and row.final is not None]
    able.sort(key=lambda pair: _order(pair[1]))
    return Standings(
        ranked=tuple(_ranked(able)),
        unranked=tuple(row for agent, row in made if agent.eligible and row.final is None),
        ineligible=tuple(sorted((row for agent, row in made if not agent.eligible), key=_order)),
        problems=len({row.problem_id for row in rows}),
    )


def _agents(rows: Sequence[StandingEntry]) -> list[_Agent]:
    """Agents in order of name and version; one ineligible run makes the agent ineligible."""
    grouped: dict[tuple[str, str], list[StandingEntry]] = {}
    for row in rows:
        grouped.setdefault((row.agent, row.version), []).append(row)
    return [_agent(key, grouped[key]) for key in sorted(grouped)]


def _agent(key: tuple[str, str], rows: Sequence[StandingEntry]) -> _Agent:
    runs: dict[str, list[StandingEntry]] = {}
    for row in rows:
        if row.status == "counted":
            runs.setdefault(row.problem_id, []).append(row)
    counted = {
        problem: (
            math.fsum(run.success for run in runs[problem]) / len(runs[problem]),
            math.fsum(run.quality for run in runs[problem]) / len(runs[problem]),
        )
        for problem in sorted(runs)
    }
    return _Agent(
        key=key,
        counted=counted,
        problems=len({row.problem_id for row in rows}),
        unscored=sum(row.status == "unscored" for row in rows),
        unjudged=sum(row.status == "unjudged" for row in rows),
        eligible=all(row.eligible for row in rows),
    )


def _row(agent: _Agent) -> StandingRow:
    n = len(agent.counted)
    successes = math.fsum(success for success, _ in agent.counted.values())
    qualities = math.fsum(quality for _, quality in agent.counted.values())
    low, high = wilson_interval(successes, n)
    rate = successes / n if n else None
    quality = qualities / n if n else None
    factor = None if quality is None else coefficient(quality)
    return StandingRow(
        agent=agent.key[0],
        version=agent.key[1],
        rank=None,
        group=None,
        n=n,
        successes=successes,
        success_rate=rate,
        success_low=low,
        success_high=high,
        mean_quality=quality,
        coefficient=factor,
        final=None if rate is None or quality is None else final_score(rate, quality),
        final_low=low * (factor or 0.0),
        final_high=high * (1.0 if factor is None else factor),
        unscored=agent.unscored,
        unjudged=agent.unjudged,
        worst_case=final_score(successes / agent.problems, qualities / agent.problems),
    )


def _order(row: StandingRow) -> tuple[float, str, str]:
    return (-round(row.final or 0.0, DIGITS), row.agent, row.version)


def _ranked(able: Sequence[tuple[_Agent, StandingRow]]) -> list[StandingRow]:
    """Rows with rank and group, best first."""
    out: list[StandingRow] = []
    leaders: list[tuple[_Agent, StandingRow]] = []
    group = 0
    while len(out) < len(able):
        place = len(out)
        equals = [pair for pair in able if _same(pair[1], able[place][1])]
        if not any(tied(leader, pair) for leader in leaders for pair in equals):
            group, leaders = group + 1, equals
        out += [msgspec.structs.replace(row, rank=place + 1, group=group) for _, row in equals]
    return out


def _same(a: StandingRow, b: StandingRow) -> bool:
    return round(a.final or 0.0, DIGITS) == round(b.final or 0.0, DIGITS)


def tied(first: tuple[_Agent, StandingRow], second: tuple[_Agent, StandingRow]) -> bool:
    """Whether the data cannot tell two agents apart at 95 %."""
    (a, row_a), (b, row_b) = first, second
    common = [problem for problem in a.counted if problem in b.counted]
    if len(common) < 2:
        return row_a.final_low <= row_b.final_high and row_b.final_low <= row_a.final_high
    scores_a, scores_b = _scores(a, row_a), _scores(b, row_b)
    return holds_zero([scores_a[problem] - scores_b[problem] for problem in common])


def _scores(agent: _Agent, row: StandingRow) -> Mapping[str, float]:
    """Each problem's share of the final score: its success times the agent's coefficient."""
    factor = row.coefficient or 0.0
    return {problem: success * factor for problem, (success, _) in agent.counted.items()}


def holds_zero(differences: Sequence[float]) -> bool:
    """Whether the 95 % interval of a mean paired difference in [-1, 1] holds 0.

    Two pseudo-problems, one half won by each side, are added (Agresti and Min 2005, "Simple
    improved confidence intervals for comparing matched proportions"). Fewer than `MIN_DIFFERENT`
    problems on which the two differ never tell them apart.
    """
    if sum(d != 0 for d in differences) < MIN_DIFFERENT:
        return True
    n = len(differences) + 2
    mean = math.fsum(differences) / n
    variance = (math.fsum(d * d for d in differences) + 1.0) / n - mean * mean
    return abs(mean) <= Z95 * math.sqrt(max(variance, 0.0) / n)


def wilson_interval(successes: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a proportion; (0, 1) for n = 0.

    Takes fractional successes, which means over several runs of a problem give and which the
    interval functions of statistics libraries refuse.
    """
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)
