"""Last part of the main job: all that was made and measured, as a report and a summary."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from palio import __version__
from palio.agents.registry import TABLE
from palio.corpus.funnel import read_funnel
from palio.evaluate.charts import CurvePoint
from palio.evaluate.examples import pick_examples
from palio.evaluate.floors import FIRST_HIT, FloorResult, compare_with_floor, gap_to_floor
from palio.evaluate.mainjob.arena import read_standings
from palio.evaluate.mainjob.config import MainJobConfig
from palio.evaluate.mainjob.measure import Exam, read_floors, read_result
from palio.evaluate.mainjob.statements import load_statements
from palio.evaluate.mainjob.worlds import RACE, Ground
from palio.evaluate.pairing import compare_results
from palio.evaluate.report_data import (
    Example,
    Fact,
    FactTable,
    ReportData,
    StageResult,
    race_rows,
)
from palio.evaluate.rollouts import read_rollouts
from palio.judging import EvidenceJudge, richness_verdict

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "bm25s", "pyarrow", "msgspec")


def stage_result(name: str, folder: Path, *, note: str = "", seconds: float = 0.0) -> StageResult:
    """One measured policy of the result table."""
    return StageResult(
        name=name,
        origin="learned",
        greedy=read_result(folder, "greedy"),
        sampled=read_result(folder, "sampled"),
        note=note,
        seconds=seconds,
    )


def tell(
    config: MainJobConfig,
    ground: Ground,
    exam: Exam,
    out: Path,
    *,
    stages: tuple[StageResult, ...],
    reworded: StageResult | None,
    curve: tuple[CurvePoint, ...],
    results: Mapping[str, Mapping[str, Any]],
    seconds: Mapping[str, float],
) -> ReportData:
    """Everything that the report shows.

    Args:
        config: the job's configuration.
        ground: worlds, problems, pools.
        exam: what was measured on.
        out: the job's folder.
        stages: base first, the trained policy last.
        reworded: the trained policy on requests in words that nothing trained on.
        curve: training losses.
        results: stage of the job -> what it returned.
        seconds: stage of the job -> seconds.
    """
    trained, base = stages[-1].greedy, stages[0].greedy
    assert trained is not None, "measured greedily"
    assert base is not None, "measured greedily"
    floors = read_floors(out / "floors")
    clusters = ground.clustering.cluster_of
    words = load_statements()
    named = {floor.name: floor for floor in floors}
    first = named[FIRST_HIT.name]
    others: list[FloorResult] = [floor for floor in floors if not floor.certain]
    return ReportData(
        title="palio: from a race to a trained agent",
        lead=_lead(stages[-1], stages[0]),
        statements=words.statements,
        stages=stages,
        reworded=reworded,
        reworded_floors=read_floors(out / "reworded") if reworded else (),
        floors=floors,
        comparisons=compare_with_floor(trained, first, exam.problems, clusters=clusters),
        random_gap=gap_to_floor(
            trained, others[0], exam.problems, clusters=clusters, seed=config.seed
        ),
        against_base=compare_results(trained, base, exam.problems, clusters=clusters),
        standings=race_rows(read_standings(out / "race"), _kinds(config)),
        race=_race_facts(results["race"], seconds["race"]),
        funnel=read_funnel(out / "corpus"),
        corpus=_corpus_facts(results["corpus"]),
        curve=curve,
        world=_world_facts(config, ground, exam),
        examples=_examples(out / "trained" / "greedy", exam),
        caveats=words.caveats,
        provenance=_provenance(config, results, seconds),
    )


def versions() -> dict[str, str]:
    """palio, Python and the packages that decide numbers."""
    found = {"palio": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _lead(trained: StageResult, base: StageResult) -> str:
    assert trained.greedy is not None
    assert base.greedy is not None
    after, before = trained.greedy.overall.asr["oro"], base.greedy.overall.asr["oro"]
    return (
        "Eight agents raced, their trajectories were judged and filtered into a corpus, and a "
        f"small model learned from it. On {after.n} held-out problems it solves "
        f"{100 * (after.rate or 0):.1f} % (95 %: {100 * after.low:.1f} to {100 * after.high:.1f}); "
        f"before it saw the corpus, {100 * (before.rate or 0):.1f} % (n = {before.n})."
    )


def _kinds(config: MainJobConfig) -> dict[str, str]:
    return {row.name: row.kind for row in TABLE if row.name in config.racers}


def _facts(pairs: Mapping[str, Any]) -> tuple[Fact, ...]:
    return tuple(Fact(label=label, value=_shown(value)) for label, value in pairs.items())


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{int(value):,}" if value == int(value) else f"{value:,.2f}"


def isolation_told(isolation: str, lacking: str) -> str:
    """What enclosed the race's agents, in words; where nothing did, why, and what follows."""
    if lacking:
        return f"none, so nothing is ranked: {lacking}"
    return f"{isolation}: a sandbox for each run, with the broker as its only door"


def _race_facts(result: Mapping[str, Any], seconds: float) -> tuple[Fact, ...]:
    return _facts(
        {
            "agents": result["agents"],
            "problems": result["problems"],
            "runs": result["runs"],
            "unscored runs": result["unscored"],
            "isolation": isolation_told(result["isolation"], result["lacking"]),
            "seconds": round(seconds, 1),
        }
    )


def _corpus_facts(result: Mapping[str, Any]) -> tuple[Fact, ...]:
    pools = {f"{pool} rows": rows for pool, rows in result["pools"].items()}
    return _facts({"trajectories taken": result["taken"], "kept": result["kept"], **pools})


def _world_facts(config: MainJobConfig, ground: Ground, exam: Exam) -> tuple[FactTable, ...]:
    pools = {name: len(ground.pool(name)) for name in config.fractions}
    head = {
        "configuration": "compact: 5 results a page, short titles, 4-digit ids, 1-2 items",
        "catalogues": config.catalogues,
        "products a catalogue": config.products,
        **{f"{pool} problems": count for pool, count in pools.items()},
        "problems raced": len(ground.race),
        "problems measured on": len(exam.problems),
        "of these sampled": len(exam.sampled),
    }
    tables = [FactTable(title="Worlds and pools", facts=_facts(head))]
    for name, counts in ground.composition.items():
        ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        tables.append(FactTable(title=name.capitalize(), facts=_facts(ordered)))
    return tuple(tables)


def _examples(folder: Path, exam: Exam) -> tuple[Example, ...]:
    """At best a success and a failure on the first hundred problems of the exam.

    By problem and not by place in the file, where rollouts stand as they ended: equal runs show
    equal examples.
    """
    problems = {problem.problem_id: problem for problem in exam.problems[:100]}
    rows = read_rollouts(folder)  # `pick_examples` judges those of the problems only
    return pick_examples(rows, problems, EvidenceJudge().verdict, richness_verdict)


def _provenance(
    config: MainJobConfig, results: Mapping[str, Mapping[str, Any]], seconds: Mapping[str, float]
) -> tuple[FactTable, ...]:
    digests = {
        "suite": results["world"]["suite"],
        "corpus configuration": results["corpus"]["config"],
        "race catalogue": RACE,
    }
    return (
        FactTable(title="Versions", facts=_facts(versions())),
        FactTable(title="Seconds a stage", facts=_facts(dict(seconds))),
        FactTable(title="Digests", facts=_facts(digests)),
        FactTable(title="Configuration", facts=_facts(msgspec.to_builtins(config))),
    )
