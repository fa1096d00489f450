"""A trajectory laid out for reading: turns, calls, results as tables, verdicts with their evidence.

Nothing here marks text as safe: all of it is escaped where the page is rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from palio.evaluate.behaviour import product_ids_in
from palio.evaluate.report_data import Example, Fact
from palio.records import DispatchEvent, InferenceEvent, OutcomeVerdict, Problem, Reward

MAX_TEXT = 3_000
"""Characters of one text that are shown; a real result of the full world has about 2,500."""
MAX_ROWS = 12


def example_view(example: Example, number: int) -> dict[str, Any]:
    """Everything that the template shows of one example, as plain data."""
    trajectory = example.trajectory
    targets = {reward.product_id for reward in example.problem.rewards}
    fault = trajectory.fault
    return {
        "anchor": f"example-{number}",
        "heading": example.heading,
        "kind": example.problem.kind,
        "query": trajectory.query,
        "demands": demands(example.problem),
        "turns": turns(trajectory.events, targets),
        "outcomes": [_outcome(verdict) for verdict in example.outcomes],
        "answer": _plain(trajectory.answer) if trajectory.answer is not None else "none",
        "ending": str(trajectory.ending),
        "fault": f"{fault.code}, {fault.what}" if fault else "",
        **_reasoning(example),
        "richness": _richness(example),
    }


def demands(problem: Problem) -> list[Fact]:
    """The reward specification in words."""
    facts = []
    for place, reward in enumerate(problem.rewards, start=1):
        label = f"item {place}" if len(problem.rewards) > 1 else "item"
        facts.append(Fact(label=label, value=_demand(reward)))
    if problem.kind == "shop":
        facts.append(Fact(label="shop", value="all items from one shop"))
    if problem.voucher is not None:
        voucher = problem.voucher
        off = (
            f"{voucher.face_value:g} off"
            if voucher.discount_type == "fixed" and voucher.face_value is not None
            else f"{100 * (voucher.discount or 0):g} % off"
        )
        cap = f", at most {voucher.cap:g}" if voucher.cap is not None else ""
        text = f"{voucher.voucher_type}, {off}{cap}, from {voucher.threshold:g}"
        facts.append(Fact(label="voucher", value=text))
        facts.append(Fact(label="budget", value=f"{voucher.budget:g}"))
    return facts


def _demand(reward: Reward) -> str:
    parts = [f"e.g. product {reward.product_id}"]
    parts += [f"title like “{title}”" for title in reward.title]
    for option in reward.sku_options:
        parts += [f"{name} = {value}" for name, value in option.items()]
    for attribute in reward.attributes:
        parts += [f"{name} = {' or '.join(values)}" for name, values in attribute.items()]
    for price in reward.price:
        low = "" if price.low is None else f"{price.low:g}"
        high = "" if price.high is None else f"{price.high:g}"
        parts.append(f"price {low}\N{EN DASH}{high}")
    parts += [f"service {service}" for service in reward.service]
    return "; ".join(parts)


def turns(events: Sequence[object], targets: set[str]) -> list[dict[str, Any]]:
    """Completions with the calls they asked for; calls nobody asked for stand as the harness's."""
    found: list[dict[str, Any]] = []
    by_seq: dict[int, dict[str, Any]] = {}
    shown: set[str] = set()
    for event in events:
        if isinstance(event, InferenceEvent):
            turn = _completion(event, shown, len(by_seq) + 1)
            by_seq[event.seq] = turn
            found.append(turn)
        elif isinstance(event, DispatchEvent):
            turn_of = by_seq.get(event.emitted_by) if event.emitted_by is not None else None
            if turn_of is None:
                turn_of = _harness_turn(event, found)
            _carry_out(turn_of, event, targets)
            shown.update(product_ids_in(_parsed(event.result)))
    if found:
        found[0]["first"] = True
    return found


def _completion(event: InferenceEvent, shown: set[str], number: int) -> dict[str, Any]:
    completion = event.completion
    calls = completion.tool_calls if completion else ()
    return {
        "seq": event.seq,
        "label": f"turn {number}: the model",
        "harness": False,
        "first": False,
        "thinking": marked(_short(completion.reasoning_content or ""), shown) if completion else [],
        "content": _short(completion.content or "") if completion else "",
        "failure": event.fault.what if event.fault else "" if completion else "no completion",
        "calls": [
            {**_call(call.function.name, call.function.arguments), "missing": True, "id": call.id}
            for call in calls
        ],
    }


def _harness_turn(event: DispatchEvent, found: list[dict[str, Any]]) -> dict[str, Any]:
    if found and found[-1]["harness"]:
        return found[-1]
    turn = {
        "seq": event.seq,
        "label": "the harness, not asked by the model",
        "harness": True,
        "first": False,
        "thinking": [],
        "content": "",
        "failure": "",
        "calls": [],
    }
    found.append(turn)
    return turn


def _call(tool: str, arguments: str) -> dict[str, Any]:
    return {
        "tool": tool,
        "arguments": _short(arguments, 600),
        "error": "",
        "warnings": (),
        "rows": [],
        "columns": [],
        "text": "",
        "missing": False,
    }


def _carry_out(turn: dict[str, Any], event: DispatchEvent, targets: set[str]) -> None:
    """Put a result into the open call that it answers, or beside the others."""
    waiting = [call for call in turn["calls"] if call["missing"] and call["tool"] == event.tool]
    named = [call for call in waiting if event.call_id and call.get("id") == event.call_id]
    if named or waiting:
        call = (named or waiting)[0]
    else:
        call = _call(event.tool, event.arguments)
        turn["calls"].append(call)
    columns, rows = _table(_parsed(event.result), targets)
    call.update(
        missing=False,
        error=event.error,
        warnings=event.warnings,
        columns=columns,
        rows=rows,
        text="" if rows or event.tool == "terminate" else _short(event.result),
    )


def _table(value: Any, targets: set[str]) -> tuple[list[str], list[dict[str, Any]]]:
    """(columns, rows) of a result that is a list of objects, else nothing."""
    if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
        return [], []
    columns = list(dict.fromkeys(key for row in value for key in row))
    rows = [
        {
            "cells": [_plain(row.get(column, "")) for column in columns],
            "target": str(row.get("product_id")) in targets,
        }
        for row in value[:MAX_ROWS]
    ]
    return columns, rows


def marked(text: str, shown: set[str]) -> list[dict[str, Any]]:
    """The text in pieces; those that are ids of `shown` are marked."""
    if not shown:
        return [{"text": text, "marked": False}] if text else []
    ids = "|".join(re.escape(one) for one in sorted(shown, key=len, reverse=True) if one)
    pieces = re.split(rf"(?<!\w)({ids})(?!\w)", text) if ids else [text]
    return [{"text": piece, "marked": i % 2 == 1} for i, piece in enumerate(pieces) if piece]


def _outcome(verdict: OutcomeVerdict) -> dict[str, Any]:
    if verdict.status == "unscored":
        state, tone = "unscored", ""
    else:
        state, tone = ("success", "good") if verdict.success else ("failure", "bad")
    scores = ", ".join(f"{name} {value:.2f}" for name, value in verdict.scores.items())
    return {
        "text": f"{verdict.profile}: {state}",
        "tone": tone,
        "scores": scores,
        "notes": verdict.notes,
    }


def _reasoning(example: Example) -> Mapping[str, Any]:
    verdict = example.reasoning
    if verdict is None:
        return {"gates": [], "quality": "", "explanation": ""}
    places = {event.seq for event in example.trajectory.inferences}
    gates = [
        {
            "label": f"{gate.gate}. {gate.question}",
            "passed": gate.passed,
            "quote": _short(gate.quote, 300),
            "anchor": gate.event_seq if gate.event_seq in places else None,
        }
        for gate in verdict.gates
    ]
    judge, version = verdict.judge.name, f"-v{verdict.judge.version.removeprefix('v')}"
    judge += "" if judge.endswith(version) else version
    graded = (
        "unjudged"
        if verdict.quality is None
        else f"{verdict.quality:.1f}, coefficient {verdict.coefficient or 0:.4g}"
    )
    return {
        "gates": gates,
        "quality": f"{graded} ({judge})",
        "explanation": _short(verdict.explanation, 600),
    }


def _richness(example: Example) -> str:
    verdict = example.richness
    if verdict is None:
        return ""
    share = "unknown" if verdict.richness is None else f"{verdict.richness:.2f}"
    return (
        f"Agentic richness {share} ({verdict.emitted} of {verdict.dispatched} catalogue calls "
        f"emitted by the model, {verdict.evidence}), axis {verdict.axis}"
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _short(text, 400)


def _short(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
