"""A gate looks at one judged trajectory and says why it must go, or says nothing.

Gates never count and never write: the build counts the reasons and keeps the dropped rows. They
stand in the order in which they are applied; the first reason is the one that is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from palio.corpus.claims import departure
from palio.corpus.config import CorpusConfig
from palio.corpus.conversation import (
    RECOMMEND,
    calls_of,
    ids_in,
    observations,
    orphan_calls,
    orphan_results,
    parse_arguments,
    ungrounded_ids,
)
from palio.corpus.readers.dialogue import NO_RECORD
from palio.corpus.readers.recording import UNLOGGED
from palio.corpus.salvage.oracle import oracle_words
from palio.judging.answers import product_ids, recommended
from palio.records import Blame, Ending, Message, Problem, Record, Reject, Tool, to_json
from palio.rollout.verdicts import Judged


class Drop(Record, frozen=True):
    """Why a row goes: a short code that is counted, and one sentence for people."""

    reason: str
    detail: str = ""


def unreadable(line: Reject) -> Drop:
    """Why a record is no row: its reason, and where it stands."""
    detail = f"{line.file}:{line.line}: {line.detail}"
    return Drop(reason=f"unreadable_{line.reason}", detail=detail)


UNATTESTED = frozenset({NO_RECORD, UNLOGGED})
"""What a reader notes on a trace whose emitter nobody recorded: its axis is unknown."""

Gate: TypeAlias = Callable[[Judged, CorpusConfig], Drop | None]
TokenCount: TypeAlias = Callable[[Sequence[Message], Sequence[Tool]], int]
"""Exact tokens of a row under the target's tokenizer and template."""

_TAGS = re.compile(r"</?(?:think|tool_call|tool_response|response|obs)>|<\|im_(?:start|end)\|>")


def scored(judged: Judged, _config: CorpusConfig) -> Drop | None:
    """Infrastructure failed: neither a success nor a failure of anybody."""
    fault = judged.trajectory.fault
    if judged.trajectory.ending is Ending.infra or (fault and fault.blame is not Blame.agent):
        return Drop(reason="unscored", detail=fault.what if fault else "infrastructure failed")
    return None


def paired_calls(judged: Judged, config: CorpusConfig) -> Drop | None:
    """Every call has its response in the next turn, and every response its call."""
    messages = judged.trajectory.messages
    if orphans := orphan_calls(messages, config.terminal_tools):
        return Drop(reason="orphan_call", detail=f"{orphans[0].function.name} has no response")
    if results := orphan_results(messages):
        return Drop(reason="orphan_result", detail=f"call id {results[0].tool_call_id!r}")
    return None


def one_recommendation(judged: Judged, _config: CorpusConfig) -> Drop | None:
    """`recommend_product` exactly once, counted over what was executed."""
    count = sum(1 for tool, _, _ in observations(judged.trajectory) if tool == RECOMMEND)
    if count == 1:
        return None
    return Drop(
        reason="recommend_repeated" if count else "recommend_missing", detail=f"{count} calls"
    )


def parsable_arguments(judged: Judged, _config: CorpusConfig) -> Drop | None:
    """Arguments are one JSON object; a string that holds an object is double encoding."""
    for message in judged.trajectory.messages:
        for call in message.tool_calls:
            if parse_arguments(call.function.arguments) is None:
                detail = f"{call.function.name}: {call.function.arguments[:80]}"
                return Drop(reason="bad_arguments", detail=detail)
    return None


def resolved_products(judged: Judged, _config: CorpusConfig) -> Drop | None:
    """Every recommended id exists in the catalogue; unchecked where no catalogue was at hand."""
    if judged.verdicts.unresolved:
        return Drop(reason="unresolved_product", detail=", ".join(judged.verdicts.unresolved[:5]))
    if not recommended(judged.trajectory):
        return Drop(reason="unresolved_product", detail="the recommendation names no product")
    return None


def ends_well(judged: Judged, _config: CorpusConfig) -> Drop | None:
    """The conversation does not end on a turn that only thinks."""
    last = next((m for m in reversed(judged.trajectory.messages) if m.role == "assistant"), None)
    if last is not None and not last.tool_calls and not (last.content or "").strip():
        return Drop(reason="ends_on_think", detail="the last turn neither calls nor answers")
    return None


def row_bytes(judged: Judged, config: CorpusConfig) -> int:
    """UTF-8 bytes of a row's JSON form, which is longer than its chat text: escapes, keys, ids."""
    size = len(to_json(judged.trajectory.messages))
    return size + len(to_json(judged.trajectory.tools)) if config.count_tools else size


def within_budget(count: TokenCount | None) -> Gate:
    """Gate on tokens: bytes decide where they suffice, `count` only where they do not."""

    def gate(judged: Judged, config: CorpusConfig) -> Drop | None:
        size = row_bytes(judged, config)
        if size <= config.token_budget:
            return None
        if count is None:
            tokens = int(size / config.bytes_per_token)
        else:
            offered = judged.trajectory.tools if config.count_tools else ()
            tokens = count(judged.trajectory.messages, offered)
        if tokens <= config.token_budget:
            return None
        detail = f"{tokens} tokens" + ("" if count else f" at most, {size} bytes")
        return Drop(reason="over_budget", detail=f"{detail}; the budget is {config.token_budget}")

    return gate


def let_in(judged: Judged, config: CorpusConfig) -> Drop | None:
    """Rows made of sub-task traces come in only where the configuration asks for them."""
    if config.salvaged or not judged.trajectory.salvaged:
        return None
    return Drop(reason="salvaged", detail="salvaged = false")


def on_axis(judged: Judged, config: CorpusConfig) -> Drop | None:
    """Who emitted the calls: the model itself (Axis A) or its harness (Axis B)."""
    verdict = judged.verdicts.richness
    richness = verdict.richness if verdict and verdict.evidence in config.evidence else None
    if UNATTESTED.intersection(judged.trajectory.differences):
        richness = None  # an agent's own account says nothing of who emitted a call
    axis = config.axis_of(richness)
    if axis in config.axes:
        return None
    return Drop(
        reason=f"axis_{axis}", detail="" if richness is None else f"richness {richness:.3f}"
    )


def good_outcome(judged: Judged, config: CorpusConfig) -> Drop | None:
    """Success under the chosen profile."""
    if config.outcome == "none":
        return None
    verdict = next((v for v in judged.verdicts.outcomes if v.profile == config.outcome), None)
    if verdict is None:
        return Drop(reason="outcome_missing", detail=f"no verdict under {config.outcome}")
    if verdict.status == "unscored":
        return Drop(reason="outcome_unscored", detail=verdict.fault.what if verdict.fault else "")
    if verdict.success:
        return None
    return Drop(reason="outcome_failed", detail="; ".join(verdict.notes))


def agreed(judged: Judged, config: CorpusConfig) -> Drop | None:
    """Enough different judges scored the outcome, and where asked for, all say the same.

    A verdict without a score is no opinion. A judge is its whole `JudgeId`, so another version is
    another judge. With outcome "none" every profile must be agreed upon, since its label is kept.
    """
    if config.validators <= 1 and not config.unanimous:
        return None
    scored = [verdict for verdict in judged.verdicts.outcomes if verdict.status == "scored"]
    every = {verdict.profile for verdict in scored}
    for profile in sorted(every) if config.outcome == "none" else (config.outcome,):
        yes = {v.judge for v in scored if v.profile == profile and v.success}
        no = {v.judge for v in scored if v.profile == profile and not v.success}
        judges = len(yes | no)
        if 0 < judges < config.validators:
            detail = f"{judges} of at least {config.validators} scored {profile}"
            return Drop(reason="too_few_validators", detail=detail)
        if config.unanimous and yes and no:
            names = ", ".join(sorted(f"{judge.name} {judge.version}" for judge in no)[:3])
            detail = f"{len(yes)} of {judges} judges say success, not {names}"
            return Drop(reason="not_unanimous", detail=detail)
    return None


def good_reasoning(judged: Judged, config: CorpusConfig) -> Drop | None:
    """The reasoning coefficient reaches the gate; an unjudged row cannot.

    Thinking that was written after the fact is no reasoning, so it is neither gated nor counted.
    """
    if config.coefficient <= 0 or judged.trajectory.salvaged:
        return None
    verdict = judged.verdicts.reasoning
    if verdict is None or verdict.coefficient is None:
        return Drop(reason="unjudged", detail=verdict.explanation if verdict else "no verdict")
    if verdict.coefficient >= config.coefficient:
        return None
    return Drop(reason="coefficient_low", detail=f"coefficient {verdict.coefficient:.4f}")


def true_to_record(judged: Judged, config: CorpusConfig) -> Drop | None:
    """The agent's account tells of no result and no call that its record does not have."""
    found = departure(judged.trajectory.differences) if config.claims else None
    return Drop(reason=found[0], detail=found[1][:200]) if found else None


def grounded(judged: Judged, config: CorpusConfig) -> Drop | None:
    """Every recommended id was told to the agent by an earlier tool result."""
    if config.grounding and (stray := ungrounded_ids(judged.trajectory)):
        return Drop(reason="ungrounded", detail=", ".join(stray[:5]))
    return None


def without_oracle(problems: Mapping[str, Problem]) -> Gate:
    """Gate on searches that use words of the target's title which nothing had told the agent."""

    def gate(judged: Judged, config: CorpusConfig) -> Drop | None:
        problem = problems.get(judged.trajectory.problem_id)
        if not config.oracle_search or problem is None:
            return None
        titles = tuple(title for reward in problem.rewards for title in reward.title)
        words = oracle_words(judged.trajectory.query, titles, observations(judged.trajectory))
        return Drop(reason="oracle_search", detail=", ".join(words[:5])) if words else None

    return gate


def good_format(judged: Judged, config: CorpusConfig) -> Drop | None:
    """The messages are a conversation that a model can be trained on."""
    return _malformed(judged, config) if config.format else None


def _malformed(judged: Judged, config: CorpusConfig) -> Drop | None:
    messages = judged.trajectory.messages
    assistant = [message for message in messages if message.role == "assistant"]
    roles = [message.role for message in messages if message.role != "system"]
    if roles[:1] != ["user"] or not assistant or "system" in [m.role for m in messages[1:]]:
        return Drop(reason="role_order", detail="not [system,] user, assistant, ...")
    for message in assistant:
        if not message.tool_calls and not (message.content or "").strip():
            return Drop(reason="empty_turn", detail="a turn without call or text")
        if tag := _TAGS.search(f"{message.content or ''}\n{message.reasoning_content or ''}"):
            return Drop(reason="tag_in_text", detail=tag.group())
    thinking = sum(1 for message in assistant if (message.reasoning_content or "").strip())
    if thinking / len(assistant) < config.thinking:
        return Drop(reason="no_thinking", detail=f"{thinking} of {len(assistant)} turns think")
    return _wrong_calls(judged)


def _wrong_calls(judged: Judged) -> Drop | None:
    calls = calls_of(judged.trajectory.messages)
    functions = [tool.get("function", tool) for tool in judged.trajectory.tools]
    if any(not isinstance(function, dict) for function in functions):
        return Drop(reason="malformed_tools", detail="a tool's function is no object")
    offered = {function.get("name") for function in functions}
    strange = [call.name for call in calls if offered and call.name not in offered]
    if strange:
        return Drop(reason="unknown_tool", detail=strange[0])
    asked = [ids_in(call.arguments) for call in calls if call.name == RECOMMEND]
    if asked != [product_ids(judged.trajectory.answer)]:
        return Drop(reason="answer_not_in_messages", detail="the model did not recommend it")
    return None


def row_steps(
    count: TokenCount | None = None, problems: Mapping[str, Problem] | None = None
) -> tuple[tuple[str, tuple[Gate, ...]], ...]:
    """(step, its gates) in the order in which they apply to one row.

    Args:
        count: exact tokens of a row, where bytes do not decide.
        problems: by id; their titles tell which searches nobody could have thought of.
    """
    hard = (paired_calls, one_recommendation, parsable_arguments, resolved_products, ends_well)
    return (
        ("scored", (scored,)),
        ("hard rejects", (*hard, within_budget(count))),
        ("axis", (let_in, on_axis)),
        ("outcome", (agreed, good_outcome)),
        ("reasoning", (good_reasoning,)),
        ("grounding", (true_to_record, grounded, without_oracle(problems or {}))),
        ("format", (good_format,)),
    )
