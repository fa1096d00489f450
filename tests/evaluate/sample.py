"""A small made-up run: enough of everything that a report shows, hostile text included."""

from __future__ import annotations

import functools
import json
import random

from palio.corpus.funnel import Funnel, FunnelStep
from palio.evaluate.behaviour import Behaviour
from palio.evaluate.charts import CurvePoint, RaceRow
from palio.evaluate.floors import FloorResult, FloorScore
from palio.evaluate.pairing import compare_outcomes, compare_results, greedy_outcomes
from palio.evaluate.report_data import (
    Example,
    Fact,
    FactTable,
    ReportData,
    StageResult,
    Statement,
)
from palio.evaluate.results import EvalResult, RolloutScore, rate_of, summarise
from palio.evaluate.statistics import cluster_mean, wilson
from palio.records import (
    AgentRef,
    DispatchEvent,
    Ending,
    FunctionCall,
    GateAnswer,
    InferenceEvent,
    JudgeId,
    Message,
    OutcomeVerdict,
    Problem,
    ReasoningVerdict,
    Reward,
    RichnessVerdict,
    ToolCall,
    Trajectory,
)

HOSTILE = "<script>alert('x')</script><img src=http://evil.test/x onerror=alert(1)>"
KINDS = ("product", "shop", "voucher")


def problem(number: int, query: str = "a blue wool scarf under 300") -> Problem:
    return Problem(
        problem_id=f"p{number:03d}",
        kind=KINDS[number % 3],
        query=query,
        rewards=(
            Reward(
                product_id="4821",
                title=("wool scarf",),
                attributes=({"colour": ("blue",)},),
            ),
        ),
        difficulty=("easy", "hard")[number % 2],
        catalogue="compact-7",
    )


PROBLEMS = tuple(problem(number) for number in range(60))
CLUSTERS = {one.problem_id: f"c{int(one.problem_id[1:]) // 2}" for one in PROBLEMS}


def score(problem_id: str, sample: int, success: bool, **changes: object) -> RolloutScore:
    behaviour = Behaviour(
        turns=4,
        valid_turns=4 if success else 3,
        calls=5,
        refused_calls=0,
        named_ids=2,
        invented_ids=0 if success else 1,
        completion_tokens=160,
        terminated=True,
    )
    fields: dict[str, object] = {
        "problem_id": problem_id,
        "sample": sample,
        "attempt": 0,
        "trajectory_id": f"{problem_id}-{sample}",
        "status": "scored",
        "success": {"oro": success, "strict": success and sample % 5 != 4},
        "rule": 1.0 if success else 0.4,
        "behaviour": behaviour,
        **changes,
    }
    return RolloutScore(**fields)  # type: ignore[arg-type]


def result(name: str, rate: float, samples: int = 1, seed: int = 0) -> EvalResult:
    rng = random.Random(f"{name}{samples}{seed}")
    skill = {one.problem_id: rng.betavariate(4 * rate + 0.01, 4 * (1 - rate)) for one in PROBLEMS}
    scores = [
        score(one.problem_id, sample, rng.random() < skill[one.problem_id])
        for one in PROBLEMS
        for sample in range(samples)
    ]
    return summarise(
        scores,
        PROBLEMS,
        name=name,
        samples=samples,
        temperature=0.0 if samples == 1 else 1.0,
        seed=seed,
        clusters=CLUSTERS,
        encoder="lexical-1",
    )


def floor(name: str, rate: float, certain: bool) -> FloorResult:
    rng = random.Random(name)
    rows = []
    for one in PROBLEMS:
        value = float(rng.random() < rate) if certain else rate * rng.random()
        rows.append(
            FloorScore(
                problem_id=one.problem_id, success={"oro": value, "strict": value}, rule=value
            )
        )
    rates = {}
    for group in ("overall", *KINDS):
        ids = {one.problem_id for one in PROBLEMS if group in ("overall", one.kind)}
        values = [row.success["oro"] for row in rows if row.problem_id in ids]
        number = wilson(int(sum(values)), len(values)) if certain else cluster_mean(values)
        rates[group] = {"oro": rate_of(number), "strict": rate_of(number)}
    return FloorResult(
        name=name,
        definition="hits of the request searched verbatim",
        certain=certain,
        sampled_problems=0,
        encoder="lexical-1",
        rates=rates,
        car={"overall": cluster_mean([row.rule for row in rows])},
        scores=tuple(rows),
    )


def call(call_id: str, tool: str, arguments: str) -> ToolCall:
    return ToolCall(id=call_id, function=FunctionCall(name=tool, arguments=arguments))


def inference(seq: int, thinking: str, one: ToolCall) -> InferenceEvent:
    return InferenceEvent(
        seq=seq,
        at_ms=4.0 + seq,
        duration_ms=3,
        prefix=seq,
        request=(Message(role="user", content="a blue wool scarf under 300"),) if not seq else (),
        completion=Message(
            role="assistant", content="", reasoning_content=thinking, tool_calls=(one,)
        ),
    )


def dispatch(seq: int, tool: str, arguments: str, result: str, **more: object) -> DispatchEvent:
    fields: dict[str, object] = {"at_ms": 5.0 + seq, "duration_ms": 1.0, **more}
    return DispatchEvent(seq=seq, tool=tool, arguments=arguments, result=result, **fields)  # type: ignore[arg-type]


def events(thinking: str, pick: str = "4821") -> tuple[InferenceEvent | DispatchEvent, ...]:
    search, choice = '{"q":"blue wool scarf"}', json.dumps({"product_ids": pick})
    rows = [
        {"product_id": "4821", "shop_id": "77", "title": "Nordvik Wool Scarf", "price": 259},
        {"product_id": "6093", "shop_id": "12", "title": HOSTILE, "price": 240},
    ]
    warned = {"call_id": "c1", "emitted_by": 0, "warnings": ("one filter was ignored",)}
    return (
        inference(0, "search blue wool scarf.", call("c1", "find_product", search)),
        dispatch(1, "find_product", search, json.dumps(rows), **warned),
        inference(2, thinking, call("c2", "recommend_product", choice)),
        dispatch(3, "recommend_product", choice, choice, call_id="c2", emitted_by=2),
        dispatch(4, "terminate", "{}", "{}"),
    )


def trajectory(
    thinking: str = "need blue wool. 4821 blue blue yes.", **changes: object
) -> Trajectory:
    fields: dict[str, object] = {
        "trajectory_id": "t1",
        "problem_id": "p000",
        "query": "a blue wool scarf under 300",
        "kind": "product",
        "agent": AgentRef(name="tiny", kind="policy", model="tiny-sft"),
        "events": events(thinking),
        "messages": (),
        "answer": "4821",
        "ending": Ending.terminated,
        "catalogue": "compact-7",
        "tools": (),
        **changes,
    }
    return Trajectory(**fields)  # type: ignore[arg-type]


def example(heading: str, success: bool, **changes: object) -> Example:
    judge = JudgeId(name="outcome", version="1")
    made = trajectory(**changes)
    verdicts = tuple(
        OutcomeVerdict(
            trajectory_id="t1",
            problem_id="p000",
            judge=judge,
            profile=profile,
            status="scored",
            scores={"rule": 1.0 if success else 0.5, "title": 1.0, "price": 1.0},
            success=success,
            encoder="lexical-1",
            notes=() if success else ("extra ids: 2 given, 1 wanted",),
        )
        for profile in ("oro", "strict")
    )
    gates = (
        GateAnswer(
            gate=1, question="inference present", passed=True, event_seq=0, quote="31 tokens"
        ),
        GateAnswer(gate=2, question="results analysed", passed=True, event_seq=2, quote=HOSTILE),
        GateAnswer(gate=3, question="datum cited", passed=success, event_seq=2, quote="4821"),
    )
    return Example(
        heading=heading,
        problem=PROBLEMS[0],
        trajectory=made,
        outcomes=verdicts,
        reasoning=ReasoningVerdict(
            trajectory_id="t1",
            problem_id="p000",
            judge=JudgeId(name="evidence", version="1"),
            status="judged",
            quality=0.9 if success else 0.5,
            coefficient=1.0 if success else 0.7375,
            gates=gates,
            explanation="all gates passed" if success else "no datum cited",
        ),
        richness=RichnessVerdict(
            trajectory_id="t1",
            problem_id="p000",
            judge=JudgeId(name="richness", version="1"),
            evidence="verified",
            emitted=1,
            dispatched=1,
            richness=1.0,
            axis="agentic",
        ),
    )


def curve() -> tuple[CurvePoint, ...]:
    rng = random.Random(3)
    points, tokens = [], 0
    for stage, steps, start, end in (("base", 160, 4.2, 0.6), ("SFT", 220, 1.6, 0.12)):
        for step in range(steps):
            tokens += 14_000
            share = step / steps
            loss = end + (start - end) * (1 - share) ** 3 + rng.gauss(0, 0.05)
            points.append(CurvePoint(stage=stage, step=step, tokens=tokens, loss=max(0.02, loss)))
            if step % 55 == 54:
                points.append(
                    CurvePoint(
                        stage=stage,
                        step=step,
                        tokens=tokens,
                        loss=max(0.05, loss * 1.1),
                        split="development",
                    )
                )
    return tuple(points)


def race() -> tuple[RaceRow, ...]:
    table = (
        ("careful", "agentic", 57, 60, 0.93, 0.9),
        ("terse", "agentic", 54, 60, 0.79, 0.7),
        ("narrator", "subtask", 40, 60, 0.41, 0.5),
        ("hasty", "agentic", 17, 60, 0.16, 0.3),
        (HOSTILE, "external", 9, 58, 0.05, 0.1),
        ("$crash_x^2$", "broken", 0, 60, 0.0, None),
    )
    rows = [
        RaceRow(
            agent=a,
            kind=k,
            success=rate_of(wilson(c, n)),
            score=s,
            quality=q,
            unscored=60 - n,
            rank=i + 1,
        )
        for i, (a, k, c, n, s, q) in enumerate(table)
    ]
    rows.append(
        RaceRow(
            agent="oracle",
            kind="oracle",
            success=rate_of(wilson(60, 60)),
            score=1.0,
            note="never ranked",
        )
    )
    return tuple(rows)


def funnel() -> Funnel:
    rows = [
        ("structure", {"orphan_result": 300, "unparsed_arguments": 120}),
        ("outcome", {"failed": 3900}),
        ("coefficient", {"below 0.7": 1180}),
        ("axis", {"subtask": 2100, "unknown": 220}),
        ("grounding", {"ungrounded_id": 75}),
        ("cap", {"over 50 a problem": 410}),
    ]
    taken, steps = 12_400, []
    for name, rejected in rows:
        kept = taken - sum(rejected.values())
        steps.append(FunnelStep(name=name, taken=taken, kept=kept, rejected=rejected))
        taken = kept
    return Funnel(steps=tuple(steps))


@functools.cache
def report_data() -> ReportData:
    base, sft = result("base", 0.02), result("after SFT", 0.5)
    first, chance = floor("first-hit", 0.3, True), floor("random-hit", 0.3, False)
    table = FactTable(
        title="Provenance",
        facts=(Fact(label="seed", value="7"), Fact(label="palio", value="0.1.0")),
    )
    return ReportData(
        title="palio demo",
        lead="Scripted agents raced, and a 1.8 M parameter model learned from what they left.",
        statements=(
            Statement(heading="Scripted", text="The racing agents are programs."),
            Statement(heading="Learned", text="The policy was trained from random weights."),
            Statement(heading="The world", text="A generated catalogue, compact configuration."),
        ),
        stages=(
            StageResult(
                name="base", greedy=base, sampled=result("base", 0.02, 8), note="copy documents"
            ),
            StageResult(
                name="after SFT",
                greedy=sft,
                sampled=result("after SFT", 0.5, 8),
                note="1.8 M parameters",
            ),
        ),
        floors=(first, chance),
        comparisons=compare_outcomes(
            greedy_outcomes(sft, "oro"),
            first.outcomes("oro"),
            PROBLEMS,
            names=("after SFT", "first-hit"),
            clusters=CLUSTERS,
        ),
        against_base=compare_results(sft, base, PROBLEMS, clusters=CLUSTERS),
        standings=race(),
        race=(Fact(label="agents", value="8"), Fact(label="problems", value="60")),
        funnel=funnel(),
        corpus=(Fact(label="train rows", value="3,812"),),
        curve=curve(),
        world=(FactTable(title="Catalogue", facts=(Fact(label="products", value="10,000"),)),),
        examples=(example("A success", True), example("A failure", False, answer="4821,6093")),
        caveats=("One seed a run.",),
        provenance=(table,),
    )
