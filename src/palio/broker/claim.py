"""What an agent returns is a claim: every departure from the record is named in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from palio.broker.ledger import argument_key
from palio.broker.record import given_answer
from palio.broker.wire import clean_text, load_json, plain_json
from palio.records import DispatchEvent, Event, FunctionCall, InputError, Message
from palio.world.tools import SEVEN_TOOLS

MAX_SENTENCES = 20
"""A forged dialogue of 10,000 steps must not fill the record; the rest is counted."""


class ClaimReport(NamedTuple):
    """A claim beside the record.

    Attributes:
        answer: the record's answer; the claim's when no recommend_product call was recorded.
        terminated: whether the claim says so.
        differences: one sentence each, at most `MAX_SENTENCES` and a count of the rest.
    """

    answer: Any
    terminated: bool
    differences: tuple[str, ...]


class _ClaimedCall(NamedTuple):
    step: int
    tool: str
    arguments: Any
    result: Any

    def name(self) -> str:
        return f"{self.tool}({_short(plain_json(self.arguments))})"


def compare_claim(claim: Any, events: Sequence[Event], answer: Any) -> ClaimReport:
    """Compare a returned dialogue with the record.

    Agents of the existing arena may give recommend_product and terminate only as steps of what
    they return. That is accepted, and noted: the answer is then the claim's.

    Args:
        claim: list of dialogue steps (`completion.message.tool_call` holds the calls), or None
            when the run returned nothing: then nothing is compared.
        events: the record.
        answer: the record's answer, None if no recommend_product call was recorded.
    """
    if not isinstance(claim, list):
        return ClaimReport(answer, False, ())
    dispatches = [event for event in events if isinstance(event, DispatchEvent)]
    calls = list(_claimed_calls(claim))
    if not claim and dispatches:
        note = f"the returned dialogue is empty, the record holds {len(dispatches)} calls"
        return ClaimReport(answer, False, (note,))
    sentences, unclaimed = _match(calls, dispatches)
    sentences += [f"the dialogue leaves out {_event_name(event)}" for event in unclaimed]
    claimed = [call for call in calls if call.tool == "recommend_product"]
    if claimed:
        theirs = given_answer(claimed[-1].arguments)
        if answer is None and theirs is not None:
            answer = theirs
        elif theirs is not None and plain_json(theirs) != plain_json(answer):
            sentences.append(
                f"the dialogue answers {_short(plain_json(theirs))}, "
                f"the last recorded answer is {_short(plain_json(answer))}"
            )
    return ClaimReport(answer, any(call.tool == "terminate" for call in calls), _capped(sentences))


def _match(
    calls: Sequence[_ClaimedCall], dispatches: Sequence[DispatchEvent]
) -> tuple[list[str], list[DispatchEvent]]:
    waiting: dict[tuple[str, str], list[DispatchEvent]] = {}
    for event in dispatches:
        key = (event.tool, argument_key(event.tool, event.arguments))
        waiting.setdefault(key, []).append(event)
    sentences = []
    for call in calls:
        taken = _taken(call, waiting)
        if taken is None:
            sentences.append(_never_happened(call))
        elif call.result is not None and not _same_result(call.result, taken.result):
            sentences.append(
                f"step {call.step} claims another result of {call.name()} than event {taken.seq} "
                "holds"
            )
    # A call that failed is worth no complaint when it is left out: nothing was learned from it.
    left = [event for queue in waiting.values() for event in queue if not event.error]
    return sentences, sorted(left, key=lambda event: event.seq)


def _taken(
    call: _ClaimedCall, waiting: dict[tuple[str, str], list[DispatchEvent]]
) -> DispatchEvent | None:
    """The earliest recorded call that the claimed one may mean, now used up."""
    forms = [plain_json(call.arguments)]
    if isinstance(call.arguments, Mapping) and len(call.arguments) == 1:
        # What a model wrote as arguments and is no JSON can only be claimed as text.
        forms += [text for text in call.arguments.values() if isinstance(text, str)]
    for form in forms:
        queue = waiting.get((call.tool, argument_key(call.tool, form)))
        if queue:
            return queue.pop(0)
    return None


def record_differences(events: Sequence[Event], answer: Any) -> tuple[str, ...]:
    """Where the record alone shows that something was made up.

    Tool results that the model was shown and no tool gave, and answered products that no tool
    result had shown when they were answered: an answer from a table, or a guess.
    """
    return _capped([*shown_differences(events), *_unseen(events, answer)])


def _unseen(events: Sequence[Event], answer: Any) -> list[str]:
    results: list[str] = []
    before = results  # what had been shown when the answer was given; all, if only the claim has it
    for event in events:
        if not isinstance(event, DispatchEvent) or event.error:
            continue
        if event.tool == "recommend_product":
            before = list(results)
        elif event.tool != "terminate":
            results.append(event.result)
    return [
        f"the answer {_short(plain_json(each))} stands in no recorded tool result before it"
        if any(f'"{each}"' in result for result in results)
        else f"the answer {_short(plain_json(each))} stands in no recorded tool result"
        for each in _answered(answer)
        # Ids stand in results as JSON strings; a bare number may be a price.
        if not any(f'"{each}"' in result for result in before)
    ]


def _answered(answer: Any) -> list[str]:
    if isinstance(answer, str):
        answer = answer.split(",")
    if not isinstance(answer, list | tuple):
        return []
    ids = (str(each).strip() for each in answer if isinstance(each, str | int))
    return list(dict.fromkeys(each for each in ids if each))


def shown_differences(events: Sequence[Event]) -> tuple[str, ...]:
    """Where the tool results that the model was shown are not those that the tools gave.

    Compared are messages of role "tool" whose id names one recorded call, or a call of a world's
    tool that was never made; text that an agent puts into user messages is its own.
    """
    given: dict[str, list[DispatchEvent]] = {}
    asked: dict[str, list[FunctionCall]] = {}
    made: list[DispatchEvent] = []
    sentences = []
    for event in events:
        if isinstance(event, DispatchEvent):
            made.append(event)
            if event.call_id:
                given.setdefault(event.call_id, []).append(event)
            continue
        for message in event.request:
            _note_calls(message, asked)
            if message.role != "tool":
                continue
            call_id = message.tool_call_id or ""
            named = given.get(call_id, ())
            if named and not any(_shows(message, each) for each in named):
                sentences.append(
                    f"event {event.seq} shows the model another result of "
                    f"{_event_name(named[-1])} than the tool gave"
                )
            elif not named and _never_made(message, asked.get(call_id, ()), made):
                call = asked[call_id][-1]
                sentences.append(
                    f"event {event.seq} shows the model a result of "
                    f"{call.name}({_short(call.arguments)}), a call that never happened"
                )
        if event.completion is not None:
            _note_calls(event.completion, asked)
    return _capped(sentences)


def _note_calls(message: Message, asked: dict[str, list[FunctionCall]]) -> None:
    for call in message.tool_calls:
        if call.id:
            asked.setdefault(call.id, []).append(call.function)


def _never_made(
    message: Message, asked: Sequence[FunctionCall], made: Sequence[DispatchEvent]
) -> bool:
    """Whether a message gives a result of a world's tool that nobody called.

    Not so where the call was made without its id or with mended arguments and its result is shown,
    where its arguments are no JSON object, which is the harness's to say, and of an agent's own
    tools.
    """
    calls = [call for call in asked if call.name in SEVEN_TOOLS and _is_object(call.arguments)]
    if not calls or len(calls) < len(asked):
        return False
    wanted = {(call.name, argument_key(call.name, call.arguments)) for call in calls}
    names = {call.name for call in calls}
    return not any(
        (each.tool, argument_key(each.tool, each.arguments)) in wanted
        or (each.tool in names and _shows(message, each))
        for each in made
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(load_json(text or "{}"), dict)
    except InputError:
        return False


def _shows(message: Message, event: DispatchEvent) -> bool:
    text = message.content or ""
    if _same_result(text, event.result):
        return True
    try:
        return bool(load_json(text) == load_json(event.result))
    except (InputError, RecursionError):
        return False


def _never_happened(call: _ClaimedCall) -> str:
    if call.tool in ("recommend_product", "terminate"):
        return f"{call.name()} stands only in the returned dialogue (step {call.step})"
    return f"step {call.step} claims {call.name()}, a call that never happened"


def _claimed_calls(claim: Sequence[Any]) -> Iterator[_ClaimedCall]:
    for number, step in enumerate(claim, start=1):
        completion = step.get("completion") if isinstance(step, Mapping) else None
        message = completion.get("message") if isinstance(completion, Mapping) else None
        calls = message.get("tool_call") if isinstance(message, Mapping) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping) and isinstance(call.get("name"), str):
                arguments = call.get("parameters", call.get("arguments"))
                arguments = {} if arguments is None else arguments
                name = clean_text(call["name"][:200])
                yield _ClaimedCall(number, name, arguments, call.get("result"))


def _same_result(claimed: Any, recorded: str) -> bool:
    """Equal as JSON; a claimed text may also be the recorded text, with or without warnings."""
    if isinstance(claimed, str) and (claimed == recorded or claimed.startswith(recorded + "\n")):
        return True
    try:
        return bool(claimed == load_json(recorded))
    except (InputError, RecursionError):
        return False


def _event_name(event: DispatchEvent) -> str:
    return f"{event.tool}({_short(event.arguments)}) of event {event.seq}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _capped(sentences: list[str]) -> tuple[str, ...]:
    if len(sentences) <= MAX_SENTENCES:
        return tuple(sentences)
    rest = len(sentences) - MAX_SENTENCES
    return (*sentences[:MAX_SENTENCES], f"and {rest} more differences")
