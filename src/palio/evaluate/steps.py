"""Step by step against a teacher: on the teacher's own history, what would a policy do next?

Every turn of a teacher's conversation is one question: the policy reads all that stands before it
and its answer is compared with the teacher's. Unlike a rollout, every policy answers the same
questions, so two policies can be paired turn by turn. A turn is valid when it makes calls, all of
offered tools, with arguments that the tools take; it matches when its calls are the teacher's, or
searches that bring the same page.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from palio.broker.first_request import FirstRequest
from palio.broker.pin import ModelPin
from palio.broker.upstream import RejectedError, Upstream
from palio.broker.wire import read_completion
from palio.corpus.rows import CorpusRow
from palio.evaluate.behaviour import is_valid_turn
from palio.evaluate.diagnosis import INVALID, NO_CALL, Call, asked_by, difference
from palio.evaluate.statistics import Estimate, Proportion, cluster_mean, wilson
from palio.records import InputError, Message, Record
from palio.world.tools import Toolbox

MEASURES = ("valid", "same_tools", "match")
"""What is counted of every turn."""
REFUSED = "request refused"


class StepAnswer(Record, frozen=True, omit_defaults=False):
    """What a policy did at one turn of a teacher.

    Attributes:
        turn: the teacher's turn, from 0.
        kind: tools of the teacher's turn, joined by " + ".
        valid, match: see the module.
        same_tools: whether the turn calls the teacher's tools in the teacher's order.
        difference: what the first differing call does otherwise; "" where the turns match.
        asked, expected: calls of the policy and of the teacher.
        tokens: completion tokens as the server reports them.
        text: the beginning of a turn that is not valid, for reading.
    """

    problem_id: str
    problem_kind: str
    turn: int
    kind: str
    valid: bool
    match: bool
    same_tools: bool
    difference: str
    asked: tuple[Call, ...] = ()
    expected: tuple[Call, ...] = ()
    tokens: int = 0
    text: str = ""


class Share(Record, frozen=True, omit_defaults=False):
    """A share of turns, as independent trials (Wilson) and with problems as the units."""

    turns: Proportion
    problems: Estimate


class StepKind(Record, frozen=True, omit_defaults=False):
    """Turns of one kind."""

    kind: str
    n: int
    valid: Proportion
    same_tools: Proportion
    match: Proportion


class StepScore(Record, frozen=True, omit_defaults=False):
    """How a policy answered a teacher's turns.

    Attributes:
        problems: conversations of the teacher.
        kinds: by the teacher's tools, most frequent first.
        differences: difference -> turns, most frequent first.
        tokens: mean completion tokens of a turn.
        model: which weights answered; None for programs.
    """

    policy: str
    problems: int
    turns: int
    valid: Share
    same_tools: Share
    match: Share
    kinds: tuple[StepKind, ...]
    differences: dict[str, int]
    tokens: float
    model: ModelPin | None = None


class PairedShare(Record, frozen=True, omit_defaults=False):
    """Policy `b` minus policy `a` on the same turns.

    Attributes:
        gained, lost: turns right in b alone, in a alone.
        difference: of the shares, with problems as the units of its interval; in [-1, 1].
    """

    what: str
    gained: int
    lost: int
    difference: Estimate


class StepComparison(Record, frozen=True, omit_defaults=False):
    """Two policies on the turns that both answered; which weights each had, where that is kept."""

    a: str
    b: str
    turns: int
    shares: tuple[PairedShare, ...]
    model_a: ModelPin | None = None
    model_b: ModelPin | None = None


class Question(NamedTuple):
    """One turn of a teacher: what stands before it, and what the teacher did."""

    row: CorpusRow
    turn: int
    before: tuple[Message, ...]
    expected: Message


def questions(row: CorpusRow) -> Iterator[Question]:
    """The turns of a teacher's conversation that make calls."""
    messages = row.typed()
    turn = 0
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        if message.tool_calls:
            yield Question(row, turn, messages[:place], message)
        turn += 1


def answer_steps(
    rows: Sequence[CorpusRow],
    policy: Upstream,
    model: str,
    toolbox: Callable[[str], Toolbox],
    kinds: Mapping[str, str],
    *,
    max_tokens: int = 512,
    threads: int = 8,
    skip: Iterable[tuple[str, int]] = (),
) -> Iterator[StepAnswer]:
    """Ask the policy about every turn; answers come as they are ready, greedy.

    Args:
        rows: the teacher's conversations, one a problem.
        policy: answers chat completions.
        model: its name.
        toolbox: tools of the world of a problem id, for searches that are one.
        kinds: problem id -> kind.
        max_tokens: of one answer; a turn that is cut off makes no valid call.
        threads: conversations in flight; the turns of one are asked in order.
        skip: (problem id, turn) that are answered already.

    Raises:
        InputError: two rows have the same problem.
        UpstreamError: the model cannot be asked, or its server refuses a teacher's first turn,
            before which there is nothing but the request and the tools.
    """
    twice = [name for name, n in Counter(row.problem_id for row in rows).items() if n > 1]
    if twice:
        raise InputError(f"problem {twice[0]!r} has two conversations", remedy="keep one a problem")
    done = set(skip)
    policy = FirstRequest(policy)

    def one(row: CorpusRow) -> list[StepAnswer]:
        tools = toolbox(row.problem_id)
        kind = kinds.get(row.problem_id, "")
        found = []
        for question in questions(row):
            if (row.problem_id, question.turn) in done:
                continue
            try:
                answer = _judged(question, _asked(question, policy, model, max_tokens), tools, kind)
            except RejectedError as error:
                answer = _refused(question, kind, error)
            found.append(answer)
        return found

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(one, row) for row in rows]
        try:
            yield from _as_they_end(running)
        finally:
            for future in running:
                future.cancel()


def _as_they_end(running: Sequence[Future[list[StepAnswer]]]) -> Iterator[StepAnswer]:
    """The answers; an error is raised when those that had ended by then are out."""
    failed: BaseException | None = None
    for future in as_completed(running):
        if future.cancelled():
            continue
        error = future.exception()
        if error is None:
            yield from future.result()
        elif failed is None:
            failed = error
            for other in running:
                other.cancel()
    if failed is not None:
        raise failed


def _asked(
    question: Question, policy: Upstream, model: str, max_tokens: int
) -> tuple[Message, int]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [message.to_openai() for message in question.before],
        "tools": list(question.row.offered),
        "temperature": 0.0,
        "max_tokens": max_tokens,
    }
    message, _, usage = read_completion(policy.complete(body))  # as a rollout's are read
    return message, usage.completion_tokens or 0


def _judged(
    question: Question, answer: tuple[Message, int], toolbox: Toolbox, kind: str
) -> StepAnswer:
    message, tokens = answer
    offered = {str(tool.get("function", {}).get("name")) for tool in question.row.offered}
    expected, asked = asked_by(question.expected), asked_by(message)
    valid = is_valid_turn(message, offered) and not any(
        toolbox.call(call.function.name, call.function.arguments).error
        for call in message.tool_calls
    )
    failed = INVALID if asked else NO_CALL
    other = difference(asked, expected, toolbox) if valid else failed
    return StepAnswer(
        problem_id=question.row.problem_id,
        problem_kind=kind,
        turn=question.turn,
        kind=" + ".join(tool for tool, _ in expected),
        valid=valid,
        match=valid and not other,
        same_tools=valid and [tool for tool, _ in asked] == [tool for tool, _ in expected],
        difference=other,
        asked=tuple(asked),
        expected=tuple(expected),
        tokens=tokens,
        text="" if valid else (message.content or "")[:400],
    )


def _refused(question: Question, kind: str, error: RejectedError) -> StepAnswer:
    """A turn that the policy could not take, e.g. with more history than it can read."""
    return StepAnswer(
        problem_id=question.row.problem_id,
        problem_kind=kind,
        turn=question.turn,
        kind=" + ".join(tool for tool, _ in asked_by(question.expected)),
        valid=False,
        match=False,
        same_tools=False,
        difference=REFUSED,
        expected=tuple(asked_by(question.expected)),
        text=str(error)[:400],
    )


def step_score(
    answers: Sequence[StepAnswer], policy: str, model: ModelPin | None = None
) -> StepScore:
    """Shares of turns, in all and by the teacher's tools."""
    by_kind: defaultdict[str, list[StepAnswer]] = defaultdict(list)
    for answer in answers:
        by_kind[answer.kind].append(answer)
    ordered = sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[0]))
    different = Counter(answer.difference for answer in answers if answer.difference)
    return StepScore(
        policy=policy,
        problems=len({answer.problem_id for answer in answers}),
        turns=len(answers),
        valid=_share(answers, "valid"),
        same_tools=_share(answers, "same_tools"),
        match=_share(answers, "match"),
        kinds=tuple(
            StepKind(
                kind=kind,
                n=len(group),
                **{what: _proportion(group, what) for what in MEASURES},
            )
            for kind, group in ordered
        ),
        differences=dict(sorted(different.items(), key=lambda item: (-item[1], item[0]))),
        tokens=sum(answer.tokens for answer in answers) / max(1, len(answers)),
        model=model,
    )


def compare_steps(
    a: Sequence[StepAnswer],
    b: Sequence[StepAnswer],
    names: tuple[str, str],
    models: tuple[ModelPin | None, ModelPin | None] = (None, None),
) -> StepComparison:
    """Pair two policies turn by turn.

    Raises:
        InputError: they have no turn in common.
    """
    first = {(answer.problem_id, answer.turn): answer for answer in a}
    pairs = [
        (first[answer.problem_id, answer.turn], answer)
        for answer in b
        if (answer.problem_id, answer.turn) in first
    ]
    if not pairs:
        raise InputError("the two policies answered no turn in common")
    return StepComparison(
        a=names[0],
        b=names[1],
        turns=len(pairs),
        shares=tuple(_paired(pairs, what) for what in MEASURES),
        model_a=models[0],
        model_b=models[1],
    )


def _paired(pairs: Sequence[tuple[StepAnswer, StepAnswer]], what: str) -> PairedShare:
    moved = [int(getattr(new, what)) - int(getattr(old, what)) for old, new in pairs]
    return PairedShare(
        what=what,
        gained=moved.count(1),
        lost=moved.count(-1),
        difference=cluster_mean(
            [float(each) for each in moved],
            [old.problem_id for old, _ in pairs],
            bounds=(-1.0, 1.0),
        ),
    )


def _proportion(answers: Sequence[StepAnswer], what: str) -> Proportion:
    return wilson(sum(bool(getattr(answer, what)) for answer in answers), len(answers))


def _share(answers: Sequence[StepAnswer], what: str) -> Share:
    values = [float(getattr(answer, what)) for answer in answers]
    problems = [answer.problem_id for answer in answers]
    return Share(turns=_proportion(answers, what), problems=cluster_mean(values, problems))
