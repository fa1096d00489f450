"""A salvaged row replays to the byte, hides nothing, and never passes for anything else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.agents.harness import harness_settings
from palio.broker.conversation import build_messages
from palio.corpus.gates import Drop
from palio.corpus.replay import Worlds
from palio.corpus.salvage import salvaged_from
from palio.corpus.salvage.moment import Moment
from palio.corpus.salvage.narrator import Narrator
from palio.corpus.salvage.rewrite import SalvageConfig, salvage_one
from palio.corpus.salvage.run import ROWS, salvage
from palio.judging import EvidenceJudge, richness_verdict
from palio.records import (
    Ending,
    Fault,
    FaultCode,
    InputError,
    Reject,
    Trajectory,
    from_json,
    to_json,
)
from palio.rollout import read_trajectories
from tests.salvage.making import replayer, runs, table_runs, world_and_problems

CONFIG = SalvageConfig()
SUBTASK = ("narrator", "classifier")


def salvaged(trajectory: Trajectory) -> Trajectory:
    made = salvage_one(trajectory, replayer(), Narrator(), CONFIG)
    assert isinstance(made, Trajectory), made
    return made


def honest(agent: str) -> list[Trajectory]:
    """Runs whose own record does not speak against the choice; the others are dropped for that."""
    kept = []
    for trajectory in runs(agent):
        made = salvage_one(trajectory, replayer(), Narrator(), CONFIG)
        if isinstance(made, Drop):
            assert made.reason == "unfounded", made
        else:
            kept.append(trajectory)
    assert len(kept) > len(runs(agent)) / 2
    return kept


def dropped(trajectory: Trajectory, config: SalvageConfig = CONFIG) -> Drop:
    made = salvage_one(trajectory, replayer(), Narrator(), config)
    assert isinstance(made, Drop)
    return made


@pytest.mark.parametrize("agent", SUBTASK)
def test_an_honest_trace_becomes_an_agentic_one_that_replays_to_the_byte(agent: str) -> None:
    for source in honest(agent):
        made = salvaged(source)
        replay = replayer().replay(made)
        assert all(seen.exact and seen.status == "match" for seen in replay.observations)
        calls = [event for event in source.dispatches if event.tool not in ("terminate",)]
        assert [(e.tool, e.result) for e in made.dispatches[:-1]] == [
            (e.tool, e.result) for e in calls
        ]
        assert made.answer == source.answer
        assert made.ending is Ending.terminated
        assert richness_verdict(source).axis == "subtask"
        assert richness_verdict(made).richness == 1.0


def test_one_call_a_turn_and_the_answer_at_the_end() -> None:
    made = salvaged(honest("classifier")[0])
    assistant = [message for message in made.messages if message.role == "assistant"]
    names = [[call.function.name for call in message.tool_calls] for message in assistant]
    assert names[-1] == ["recommend_product", "terminate"]
    assert all(len(each) == 1 for each in names[:-1])
    assert made.messages[0].role == "user"  # the compact world has no system message
    assert made.tools == harness_settings(replayer().world.config).tools
    assert list(made.messages) == list(build_messages(made.query, made.events))
    assert from_json(to_json(made), Trajectory) == made


def test_the_mark_travels() -> None:
    source = runs("narrator")[0]
    made = salvaged(source)
    assert made.salvaged
    assert not source.salvaged
    assert salvaged_from(made.source) == source.trajectory_id
    assert made.agent.name == "narrator+salvage"
    assert not made.eligible
    assert made.trajectory_id != source.trajectory_id
    thinking = [message for message in made.messages if message.reasoning_content]
    assert thinking
    assert all(message.rationalised for message in thinking)
    assert salvaged(source) == made
    assert dropped(made, SalvageConfig(axes=("agentic",))).reason == "already_salvaged"


def test_the_reasoning_judge_does_not_count_the_thinking() -> None:
    for source in runs("narrator")[:6]:
        verdict = EvidenceJudge().verdict(salvaged(source))
        assert (verdict.status, verdict.quality, verdict.coefficient) == ("unjudged", None, None)
        assert "after the fact" in verdict.explanation


def test_a_table_of_answers_is_underivable(tmp_path: Path) -> None:
    found = [dropped(trajectory) for trajectory in table_runs(tmp_path)]
    assert {drop.reason for drop in found} == {"underivable"}
    assert "product_ids:" in found[0].detail


def test_words_from_a_table_are_underivable() -> None:
    """A shortcut that hides its table: it searches by the target's title, and so finds the id."""
    world, problems = world_and_problems()
    reasons: Counter[str] = Counter()
    for problem, run in zip(problems, runs("narrator"), strict=True):
        target = world.catalogue.products[problem.rewards[0].product_id]
        arguments = json.dumps({"q": target.title, "price": f"{target.price:g}-{target.price:g}"})
        event = msgspec.structs.replace(
            run.dispatches[0], tool="find_product", arguments=arguments,
            result=replayer().reply("find_product", arguments).result, warnings=(), error="",
        )  # fmt: skip
        ids = json.dumps({"product_ids": target.product_id})
        last = msgspec.structs.replace(event, tool="recommend_product", arguments=ids, seq=99)
        made = salvage_one(
            msgspec.structs.replace(run, events=(event, last), answer=target.product_id),
            *(replayer(), Narrator(), CONFIG),
        )
        reasons[made.reason if isinstance(made, Drop) else "salvaged"] += 1
    assert reasons["underivable"] >= 0.9 * len(problems), reasons


def test_a_forged_observation_is_a_replay_mismatch() -> None:
    source = runs("narrator")[0]
    rows = json.loads(source.dispatches[0].result)
    rows[0]["price"] += 1
    first = source.dispatches[0].seq
    events = tuple(
        msgspec.structs.replace(e, result=json.dumps(rows)) if e.seq == first else e
        for e in source.events
    )
    drop = dropped(msgspec.structs.replace(source, events=events))
    assert drop.reason == "replay_mismatch"
    assert "[0].price" in drop.detail


def test_every_other_reason() -> None:
    source = runs("narrator")[0]
    fault = Fault(code=FaultCode.upstream_unreachable, what="gone")
    assert dropped(runs("careful")[0]).reason == "axis_agentic"
    assert dropped(msgspec.structs.replace(source, answer=None)).reason == "no_answer"
    assert dropped(msgspec.structs.replace(source, fault=fault)).reason == "unscored"
    searches = [event for event in source.dispatches if event.tool == "find_product"] * 12
    again = tuple(msgspec.structs.replace(e, seq=n) for n, e in enumerate(searches))
    long = msgspec.structs.replace(source, events=again)
    assert dropped(long).reason == "over_steps"
    bad = (msgspec.structs.replace(again[0], arguments="no object"), *again[1:])
    assert dropped(msgspec.structs.replace(source, events=bad)).reason == "bad_arguments"


def test_what_came_after_the_answer_is_left_out() -> None:
    source = runs("narrator")[0]
    late = msgspec.structs.replace(source.dispatches[0], seq=999)
    made = salvaged(msgspec.structs.replace(source, events=(*source.events, late)))
    assert made.dispatches == salvaged(source).dispatches


class Watching:
    """A rewriter that keeps what it was shown."""

    rewriter_id = "watching"

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def thinking(self, moment: Moment) -> str:
        self.moments.append(moment)
        return "so."


def test_a_rewriter_sees_nothing_that_comes_later() -> None:
    watching = Watching()
    source = runs("classifier")[0]
    made = salvage_one(source, replayer(), watching, CONFIG)
    assert isinstance(made, Trajectory)
    for number, moment in enumerate(watching.moments):
        assert len(moment.steps) == number
        told = to_json(moment.steps).decode()
        for event in made.dispatches[number:-2]:
            assert json.dumps(event.result)[1:-1] not in told


def reject_counts(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_bytes())["counts"]


def test_a_folder_of_traces_is_counted_and_ordered(tmp_path: Path) -> None:
    world, _ = world_and_problems()
    sources = [*runs("narrator"), *runs("careful")[:3], *table_runs(tmp_path)[:2]]
    worlds = Worlds({world.catalogue.catalogue_id: world.catalogue})
    unread = [Reject(file="x", line=1, reason="json", detail="")]
    one, two = tmp_path / "one", tmp_path / "two"
    report = salvage(sources, worlds, Narrator(), one, unread=unread)
    assert report.taken == len(sources) + 1
    assert report.rejected == {"axis_agentic": 3, "underivable": 2, "unreadable_json": 1}
    assert report.agents["narrator"].salvaged == len(runs("narrator"))
    made = list(read_trajectories(one / ROWS))
    assert [salvaged_from(row.source) for row in made] == [
        source.trajectory_id for source in runs("narrator")
    ]
    assert reject_counts(one)["kept"] == len(made)
    salvage(sources, worlds, Narrator(), two, workers=3, unread=unread)
    for name in (ROWS, "rejects.jsonl.zst"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_a_missing_catalogue_and_a_failed_outcome_are_reasons(tmp_path: Path) -> None:
    report = salvage(runs("narrator")[:2], Worlds({}), Narrator(), tmp_path)
    assert report.rejected == {"catalogue_missing": 2}
    world, _ = world_and_problems()
    worlds = Worlds({world.catalogue.catalogue_id: world.catalogue})

    def refuse(_: Trajectory) -> Drop | None:
        return Drop(reason="outcome_failed")

    report = salvage(runs("narrator")[:2], worlds, Narrator(), tmp_path, accept=refuse)
    assert report.rejected == {"outcome_failed": 2}
    with pytest.raises(InputError, match="workers"):
        salvage((), worlds, Narrator(), tmp_path, workers=0)
