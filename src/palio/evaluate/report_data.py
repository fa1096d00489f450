"""Everything that the report of a run shows, as one record: who fills it needs no HTML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from palio.arena.standings import StandingRow, Standings
from palio.corpus.funnel import Funnel
from palio.evaluate.charts import CurvePoint, PassPair, RaceRow, RateSeries
from palio.evaluate.comparison import Comparison
from palio.evaluate.floors import FloorResult
from palio.evaluate.results import OVERALL, EvalResult, Rate, rate_of
from palio.evaluate.statistics import Estimate
from palio.records import (
    OutcomeVerdict,
    Problem,
    Profile,
    ReasoningVerdict,
    Record,
    RichnessVerdict,
    Trajectory,
)
from palio.records.base import current_schema

Origin = Literal["scripted", "learned"]


class StageResult(Record, frozen=True):
    """One policy of the result table: a stage of training, or a scripted agent beside it.

    Attributes:
        name: e.g. "base", "after SFT".
        origin: whether what acts was learned or written by hand.
        greedy: one rollout a problem at temperature 0: ASR.
        sampled: k rollouts a problem: pass@1 and pass@k.
        note: one line under the name, e.g. parameters and tokens.
        seconds: what making and evaluating it took; None where nobody kept it.
        floor: it stands below the others, as a floor: it learned the form alone.
    """

    name: str
    origin: Origin = "learned"
    greedy: EvalResult | None = None
    sampled: EvalResult | None = None
    note: str = ""
    seconds: float | None = None
    floor: bool = False

    def rate_series(self, profile: Profile = "oro") -> RateSeries | None:
        """Greedy ASR by intent, None when there was no greedy run."""
        if self.greedy is None:
            return None
        rates = {
            intent: rate_of(group.asr[profile]) for intent, group in self.greedy.intents.items()
        }
        return RateSeries(name=self.name, rates=rates, floor=self.floor)

    def pass_pair(self, profile: Profile = "oro") -> PassPair | None:
        """Sampled pass@1 and pass@k of all problems, between which there is headroom.

        None when there was no sampled run, or unscored rollouts leave the two other problems.
        """
        if self.sampled is None:
            return None
        rates = self.sampled.intents[OVERALL].pass_at[profile]
        k = max(int(one) for one in rates)
        if rates["1"].n != rates[str(k)].n:
            return None
        return PassPair(name=self.name, k=k, one=rate_of(rates["1"]), many=rate_of(rates[str(k)]))


def race_rows(standings: Standings, kinds: Mapping[str, str]) -> tuple[RaceRow, ...]:
    """The rows of a race's standings as the report shows them: ranked, unranked, then apart.

    Args:
        standings: from `palio.arena.standings`.
        kinds: agent name -> declared kind.
    """
    apart = {id(row): "apart: may not compete" for row in standings.ineligible}
    rows = (*standings.ranked, *standings.unranked, *standings.ineligible)
    return tuple(_race_row(row, kinds, apart.get(id(row), "")) for row in rows)


def _race_row(row: StandingRow, kinds: Mapping[str, str], note: str) -> RaceRow:
    success = Rate(
        value=row.success_rate,
        n=row.n,
        low=row.success_low,
        high=row.success_high,
        method="wilson",
    )
    return RaceRow(
        agent=row.agent,
        kind=kinds.get(row.agent, "unknown"),
        success=success,
        score=row.final,
        score_low=row.final_low,
        score_high=row.final_high,
        quality=row.mean_quality,
        unscored=row.unscored + row.unjudged,
        worst_case=row.worst_case,
        rank=row.rank,
        note=note,
    )


class Fact(Record, frozen=True):
    """One line of a table of facts."""

    label: str
    value: str


class Statement(Record, frozen=True):
    """One paragraph that says plainly what something is."""

    heading: str
    text: str


class Example(Record, frozen=True):
    """One trajectory to read, with its verdicts and what the problem demanded."""

    heading: str
    problem: Problem
    trajectory: Trajectory
    outcomes: tuple[OutcomeVerdict, ...] = ()
    reasoning: ReasoningVerdict | None = None
    richness: RichnessVerdict | None = None


class FactTable(Record, frozen=True):
    """A titled list of facts."""

    title: str
    facts: tuple[Fact, ...]


class ReportData(Record, frozen=True):
    """A whole report.

    Attributes:
        title: heading of the page.
        lead: one or two sentences under it.
        statements: what is scripted, what is learned, what the world is.
        stages: rows of the result table, weakest first.
        floors: rows below them.
        reworded: the trained policy on requests in words that no training problem has.
        reworded_floors: what reads nothing, on the same problems.
        comparisons: paired, the trained policy against the first hit: overall, then intents.
        random_gap: intent -> trained minus expected random hit.
        against_base: trained against base, overall then intents.
        standings: the race.
        race: facts of the race, e.g. agents, problems, minutes.
        funnel: steps of the corpus.
        corpus: facts of the corpus, e.g. rows a pool and clusters.
        curve: training losses.
        world: composition of the world and of the held-out problems.
        examples: at best one success and one failure.
        caveats: what a reader must not conclude.
        provenance: versions, seeds, digests.
    """

    title: str
    lead: str
    statements: tuple[Statement, ...] = ()
    stages: tuple[StageResult, ...] = ()
    floors: tuple[FloorResult, ...] = ()
    reworded: StageResult | None = None
    reworded_floors: tuple[FloorResult, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    random_gap: dict[str, Estimate] = {}
    against_base: tuple[Comparison, ...] = ()
    standings: tuple[RaceRow, ...] = ()
    race: tuple[Fact, ...] = ()
    funnel: Funnel | None = None
    corpus: tuple[Fact, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    world: tuple[FactTable, ...] = ()
    examples: tuple[Example, ...] = ()
    caveats: tuple[str, ...] = ()
    provenance: tuple[FactTable, ...] = ()
    schema_version: str = msgspec.field(default_factory=current_schema)
