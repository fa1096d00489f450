"""Up to its fork a run is its record, byte for byte; what cannot be forked is counted with why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.evaluate.counterfactual import Forker, Planner, Told, edited_tools, fork_runs
from palio.evaluate.counterfactual.forking import Forked
from palio.records import Ending, FaultCode, InferenceEvent, Trajectory, UpstreamError
from palio.sandbox.inline import InlineDriver
from palio.world.tools import Toolbox
from palio.world.world import World
from tests.counterfactual.small import forker, recorded, setting

replace: Callable[..., Any] = msgspec.structs.replace


class Counting:
    """The scripted models, and how often they were asked."""

    def __init__(self) -> None:
        self.asked = 0
        self._models = ScriptedUpstream()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        return self._models.complete(body)


class Unsteady(Counting):
    """A model that recommends something else each time."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = super().complete(body)
        for call in reply["choices"][0]["message"].get("tool_calls", ()):
            if call["function"]["name"] == "recommend_product":
                call["function"]["arguments"] = f'{{"product_ids":"{self.asked}"}}'
        return reply


class Dying(Counting):
    """A server that is gone after some answers."""

    def __init__(self, lives: int) -> None:
        super().__init__()
        self.lives = lives

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.asked >= self.lives:
            raise UpstreamError("gone", code=FaultCode.upstream_unreachable)
        return super().complete(body)


@pytest.mark.parametrize("name", ["careful", "narrator"])
def test_a_fork_is_the_record_up_to_the_changed_observation(name: str) -> None:
    world, _ = setting()
    for run in recorded(name)[::3]:
        for plan in Planner(world).plan(Told(run)):
            counting = Counting()
            forker = Forker(find_agent(name), counting, InlineDriver())
            made = forker.fork(run, plan.at, edited_tools(world, plan.changes), world)
            assert made.departed == ""
            seq = run.dispatches[plan.at].seq
            for old, new in zip(run.events[:seq], made.run.events[:seq], strict=True):
                if isinstance(old, InferenceEvent):
                    assert isinstance(new, InferenceEvent)
                    assert (new.request, new.completion) == (old.request, old.completion)
                else:
                    assert not isinstance(new, InferenceEvent)
                    assert (new.arguments, new.result) == (old.arguments, old.result)
            changed = made.run.dispatches[plan.at]
            assert changed.arguments == run.dispatches[plan.at].arguments
            assert changed.result != run.dispatches[plan.at].result
            before = sum(event.seq < seq for event in run.inferences)
            assert counting.asked == len(made.run.inferences) - before


@pytest.mark.parametrize("name", ["careful", "hasty", "classifier"])
def test_a_fork_without_a_change_is_the_whole_record(name: str) -> None:
    world, _ = setting()
    for run in recorded(name)[::2]:
        made = forker(name).fork(run, 0, Toolbox(world), world)
        assert made.departed == ""
        assert made.run.messages == run.messages
        assert made.run.answer == run.answer


def hot(run: Trajectory) -> Trajectory:
    events = [
        replace(event, params={**event.params, "temperature": 1.0})
        if isinstance(event, InferenceEvent)
        else event
        for event in run.events
    ]
    return replace(run, events=tuple(events))  # type: ignore[no-any-return]


def forged(run: Trajectory) -> Trajectory:
    events = list(run.events)
    place = run.dispatches[0].seq
    events[place] = replace(events[place], result="[]")
    return replace(run, events=tuple(events))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (hot, "decoded at a temperature above 0"),
        (forged, "a result is not this world's answer"),
        (lambda run: replace(run, answer=None), "nothing was recommended"),
        (lambda run: replace(run, ending=Ending.infra), "the run ended by a fault or the clock"),
        (lambda run: replace(run, source="import:x"), "not recorded by a broker"),
        (lambda run: replace(run, catalogue_digest="x"), "its catalogue is not at hand"),
        (
            lambda run: replace(run, agent=replace(run.agent, digest="x")),
            "the agent's file has changed since",
        ),
        (
            lambda run: replace(run, agent=replace(run.agent, name="stranger")),
            "the agent's file is not at hand",
        ),
    ],
)
def test_what_cannot_be_forked_says_why(
    change: Callable[[Trajectory], Trajectory], why: str
) -> None:
    world, _ = setting()
    (found,) = fork_runs([change(recorded("careful")[0])], {"careful": forker("careful")}, [world])
    assert (found.unforkable, found.forks) == (why, ())


def test_a_model_that_decides_otherwise_without_a_change_is_not_measured() -> None:
    world: World = setting()[0]
    unsteady = Forker(find_agent("careful"), Unsteady(), InlineDriver())
    (found,) = fork_runs(recorded("careful")[:1], {"careful": unsteady}, [world])
    assert found.unforkable == "decides otherwise without any change"


def test_a_server_that_dies_in_a_fork_flips_nothing() -> None:
    """Its empty answer differs from the record's; at every point it must be no decision."""
    world, run = setting()[0], recorded("careful")[0]
    counting = Counting()
    whole = Forker(find_agent("careful"), counting, InlineDriver())
    (expected,) = fork_runs([run], {"careful": whole}, [world])
    assert expected.forks
    for lives in range(counting.asked):
        dying = Forker(find_agent("careful"), Dying(lives), InlineDriver())
        (found,) = fork_runs([run], {"careful": dying}, [world])
        assert (found.unforkable, found.forks) == (
            "in a fork the run ended by a fault or the clock",
            (),
        )
    spared = Forker(find_agent("careful"), Dying(counting.asked), InlineDriver())
    assert fork_runs([run], {"careful": spared}, [world]) == (expected,)


def after_the_null_fork(change: Callable[[Forked], Forked]) -> Callable[..., Forked]:
    """`Forker.fork` whose results are changed, but for the first one, of the null fork."""
    fork, made = Forker.fork, []

    def changed(*args: Any) -> Forked:
        found = fork(*args)
        made.append(found)
        return change(found) if len(made) > 1 else found

    return changed


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda made: made._replace(run=replace(made.run, ending=Ending.timed_out)),
            "in a fork the run ended by a fault or the clock",
        ),
        (
            lambda made: made._replace(run=unanswered(made.run)),
            "in a fork a completion failed",
        ),
        (
            lambda made: made._replace(departed="elsewhere"),
            "departs from its record before the fork",
        ),
    ],
)
def test_a_fork_that_says_nothing_of_its_change_flips_nothing(
    change: Callable[[Forked], Forked], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forker, "fork", after_the_null_fork(change))
    (found,) = fork_runs(recorded("careful")[:1], {"careful": forker("careful")}, [setting()[0]])
    assert (found.unforkable, found.forks) == (why, ())


def unanswered(run: Trajectory) -> Trajectory:
    """The run with a last completion that failed, though the run itself got over it."""
    last = max(event.seq for event in run.inferences)
    events = [
        replace(event, completion=None) if event.seq == last else event for event in run.events
    ]
    return replace(run, events=tuple(events))  # type: ignore[no-any-return]


def test_forks_do_not_depend_on_threads() -> None:
    world, _ = setting()
    runs = recorded("careful")[:4]
    forkers = {"careful": forker("careful")}
    alone = fork_runs(runs, forkers, [world])
    assert fork_runs(runs, forkers, [world], threads=4) == alone
