"""A step earns what the teacher's step would have earned; cheap and wrong earns nothing.

Two modes. `prefix`: the teacher's own conversation up to a turn, and the student's next turn is
scored by ShoppingBench's formula against the teacher's. `on_policy`: the teacher is asked what it
would do on the student's own history, and any call that is equivalent earns the credit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from palio.broker.upstream import RejectedError, Upstream
from palio.judging.format import step_reward
from palio.records import (
    FaultCode,
    Message,
    OutcomeVerdict,
    PalioError,
    ToolCall,
    Trajectory,
    UpstreamError,
)
from palio.train.rl.naming import grounded, named_ids
from palio.world.arguments import UNPARSED
from palio.world.tools import Toolbox, canonical_arguments

_TELLS_NOTHING = frozenset({"", "[]", "{}", "null"})
"""Two searches that find nothing are not the same search."""
_VIEW = "view_product_information"


def equivalent(
    one: ToolCall,
    other: ToolCall,
    toolbox: Toolbox | None = None,
    *,
    history: Sequence[Message] | None = None,
) -> bool:
    """Whether two calls ask the same: the same tool, and equal arguments or equal results.

    Arguments are compared in canonical form. Results are compared where a world is given and the
    call found something without an error; answers (`recommend_product`) have only their arguments.
    An id that one of the calls names and the other does not must be of the world, and shown before:
    tools leave out what they do not know, so a guess beside the right id finds the same.

    Args:
        one: a call.
        other: another one.
        toolbox: of the world; None: only arguments are compared.
        history: the conversation that both calls go on from; None: ids are held to the world alone.
    """
    name = one.function.name
    if name != other.function.name:
        return False
    first = canonical_arguments(name, one.function.arguments)
    second = canonical_arguments(name, other.function.arguments)
    if UNPARSED in first or UNPARSED in second:
        return False
    between = named_ids(one) ^ named_ids(other)
    if not grounded(between, None if toolbox is None else toolbox.world, history):
        return False
    if first == second:
        return True
    if toolbox is None or name in ("recommend_product", "terminate"):
        return False
    if name == _VIEW and first.get("product_ids") != second.get("product_ids"):
        return False  # a list of which a tool looks at the head only is another list
    found, wanted = toolbox.call(name, first), toolbox.call(name, second)
    told = found.result not in _TELLS_NOTHING and not found.error and not wanted.error
    return told and found.result == wanted.result


def step_credit(
    student: Sequence[ToolCall],
    teacher: Sequence[ToolCall],
    toolbox: Toolbox | None = None,
    *,
    history: Sequence[Message] | None = None,
) -> float:
    """Matched calls over the longer of the two turns, in [0, 1]; each call matches at most once.

    A turn without a call earns nothing, whatever the teacher does. See `equivalent`.
    """
    left = list(teacher)
    matched = 0
    for call in student:
        for place, wanted in enumerate(left):
            if equivalent(call, wanted, toolbox, history=history):
                del left[place]
                matched += 1
                break
    return matched / max(len(student), len(teacher)) if student and teacher else 0.0


class TeacherPolicy:
    """A teacher that can be asked what it would do next in any conversation.

    Args:
        upstream: scripted or any OpenAI-compatible endpoint.
        model: its name there.
        sampling: what each request carries beside it.
        where: its address, for errors.
    """

    def __init__(
        self,
        upstream: Upstream,
        model: str,
        sampling: Mapping[str, Any] | None = None,
        *,
        where: str = "",
    ) -> None:
        self._upstream, self._model, self._where = upstream, model, where or model
        self._sampling = {"temperature": 0.0, **(sampling or {})}

    def next_calls(self, messages: Sequence[Message], tools: Sequence[Any]) -> list[ToolCall]:
        """The calls of the teacher's next turn; [] when it makes none.

        Raises:
            UpstreamError: the teacher cannot be asked, or its answer is no completion.
            RejectedError: the teacher refuses this conversation.
        """
        body = {
            **self._sampling,
            "model": self._model,
            "messages": [message.to_openai() for message in messages],
            "tools": list(tools),
        }
        reply = self._upstream.complete(body)
        try:
            plain = reply["choices"][0]["message"].get("tool_calls") or ()
            return [msgspec.convert(call, ToolCall) for call in plain]
        except (KeyError, IndexError, AttributeError, TypeError, msgspec.ValidationError) as error:
            raise UpstreamError(
                f"the teacher's answer is no completion: {error}",
                code=FaultCode.upstream_garbage,
                where=self._where,
            ) from error


class Credits(NamedTuple):
    """What the turns of a rollout earned.

    Attributes:
        earned: of each turn, in [0, 1]; None where the teacher did not answer.
        asked: turns that make a call, for which the teacher has to be asked.
        fault: why it did not answer; None: it did, for every turn.
    """

    earned: tuple[float | None, ...]
    asked: int
    fault: PalioError | None = None


def on_policy_credits(trajectory: Trajectory, teacher: TeacherPolicy, toolbox: Toolbox) -> Credits:
    """One credit for each assistant turn of a rollout, on the student's own history.

    A turn without a call earns 0 without asking. A teacher that fails once is not asked about the
    rest of the rollout: a server that is down would cost its time-outs again for every turn.
    """
    earned: list[float | None] = []
    asked = 0
    fault: PalioError | None = None
    for at, message in enumerate(trajectory.messages):
        if message.role != "assistant":
            continue
        if not message.tool_calls:
            earned.append(0.0)
            continue
        asked += 1
        credit = None
        if fault is None:
            try:
                history = trajectory.messages[:at]
                wanted = teacher.next_calls(history, trajectory.tools)
                credit = step_credit(message.tool_calls, wanted, toolbox, history=history)
            except (UpstreamError, RejectedError) as error:
                fault = error
        earned.append(credit)
    return Credits(tuple(earned), asked, fault)


def prefix_reward(written: Message, teacher: Message) -> float:
    """Format {0, 1} + correctness [-3, 3] of a turn against the teacher's (judging.format).

    Source: ShoppingBench's GRPO reward.
    """
    form, correctness = step_reward(upstream_text(written), upstream_text(teacher))
    return form + correctness


def upstream_text(message: Message) -> str:
    """A turn in the upstream text format; a call that could not be read stays as it was written."""
    parts = []
    if message.reasoning_content is not None:
        parts.append(f"<think>{message.reasoning_content}</think>")
    content = message.content or ""
    if "<tool_call>" in content:
        return "".join([*parts, content])
    raw = "<think>" in content  # a second thought, or one without an end; its calls are read
    if raw:
        parts.append(content)
    if message.tool_calls:
        calls = [_plain(call) for call in message.tool_calls]
        text = json.dumps(calls, ensure_ascii=False, separators=(",", ":"))
        parts.append(f"<tool_call>{text}</tool_call>")
    if raw:
        return "".join(parts)
    if content or not message.tool_calls:
        parts.append(f"<response>{content}</response>")
    return "".join(parts)


def _plain(call: ToolCall) -> dict[str, Any]:
    try:
        parameters: Any = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        parameters = call.function.arguments
    return {"name": call.function.name, "parameters": parameters}


def outcome_reward(verdict: OutcomeVerdict, *, turns: int, brevity: float = 0.0) -> float | None:
    """1 for a strict success and up to `brevity` more for a short one; 0 for anything else.

    A short wrong run earns as little as a long one. None: unscored, no statement about the policy.

    Args:
        verdict: of the outcome scorer.
        turns: assistant turns of the rollout.
        brevity: bonus of a success in one turn; with n turns brevity / n.
    """
    if verdict.status != "scored":
        return None
    return 1.0 + brevity / max(1, turns) if verdict.success else 0.0
