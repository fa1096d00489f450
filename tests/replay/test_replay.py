"""The world is asked again: honest records match, whatever was made up is caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.corpus.readers.chat import read_chat
from palio.corpus.replay import (
    Recorded,
    Replayer,
    Worlds,
    canonical,
    config_of,
    read_observation,
    totals,
)
from palio.records import DispatchEvent, Fault, FaultCode, Trajectory, to_json
from palio.world.catalogue import Catalogue
from palio.world.world import COMPACT, FULL, World
from tests.salvage.making import replayer, runs, world_and_problems

AGENTS = ("careful", "classifier", "narrator")


def altered(trajectory: Trajectory, place: int, **changes: Any) -> Trajectory:
    """The trajectory with another dispatch at `place` among its dispatches; messages as before."""
    seq = trajectory.dispatches[place].seq
    events = tuple(
        msgspec.structs.replace(event, **changes) if event.seq == seq else event
        for event in trajectory.events
    )
    return msgspec.structs.replace(trajectory, events=events)


def spread(trajectory: Trajectory) -> dict[str, Any]:
    """A chat row as another tool might export it: indented results, keys in another order."""
    messages = [message.to_openai() for message in trajectory.messages]
    for message in messages:
        if message["role"] == "tool":
            value = json.loads(message["content"].partition("\n")[0])
            message["content"] = json.dumps(value, indent=1, sort_keys=True)
    return json.loads(json.dumps({"messages": messages}))


@pytest.mark.parametrize("agent", AGENTS)
def test_an_honest_record_matches_to_the_byte(agent: str) -> None:
    for trajectory in runs(agent):
        found = replayer().replay(trajectory)
        assert found.catalogue == "same"
        assert found.worst == "match"
        assert len(found.observations) == len(trajectory.dispatches)
        assert all(seen.exact for seen in found.observations)


def test_an_imported_trace_matches_in_another_spacing_and_order() -> None:
    for trajectory in runs("careful"):
        imported, _ = read_chat(spread(trajectory), "chat:test")
        found = replayer().replay(imported)
        assert found.catalogue == "unknown"
        assert found.observations
        assert {seen.status for seen in found.observations} == {"match"}
        assert not found.observations[0].exact


def _other_price(row: dict[str, Any]) -> None:
    row["price"] = row["price"] + 1


def _other_id(row: dict[str, Any]) -> None:
    row["product_id"] = "0000"


def _other_title(row: dict[str, Any]) -> None:
    row["title"] = row["title"] + " blue"


def _other_shop(row: dict[str, Any]) -> None:
    row["shop_id"] = "1"


def _more(row: dict[str, Any]) -> None:
    row["note"] = "exactly what you want"


CHANGES: tuple[Callable[[dict[str, Any]], None], ...] = (
    _other_price, _other_id, _other_title, _other_shop, _more,
)  # fmt: skip


@given(st.data())
def test_forged_rows_are_always_caught(data: st.DataObject) -> None:
    trajectory = data.draw(st.sampled_from(runs("narrator")))
    places = [
        place
        for place, event in enumerate(trajectory.dispatches)
        if event.tool == "find_product" and event.result != "[]"
    ]
    if not places:
        return
    place = data.draw(st.sampled_from(places))
    rows = json.loads(trajectory.dispatches[place].result)
    data.draw(st.sampled_from(CHANGES))(data.draw(st.sampled_from(rows)))
    forged = altered(trajectory, place, result=json.dumps(rows))
    found = replayer().replay(forged)
    assert found.worst == "forged"
    assert [seen.status for seen in found.observations].count("forged") == 1
    assert found.observations[place].detail


@given(st.data(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_no_other_answer_passes_in_the_same_world(data: st.DataObject, value: Any) -> None:
    event = data.draw(st.sampled_from(runs("classifier")[0].dispatches))
    if canonical(value) == canonical(json.loads(event.result)):
        return
    recorded = Recorded(event.tool, event.arguments, json.dumps(value))
    assert replayer().judge(recorded)[0] in ("forged", "drift")


def test_a_missing_and_an_added_row_are_forged() -> None:
    trajectory = runs("narrator")[0]
    rows = json.loads(trajectory.dispatches[0].result)
    for wrong in (rows[1:], [*rows, rows[0]], rows[::-1]):
        found = replayer().replay(altered(trajectory, 0, result=json.dumps(wrong)))
        assert found.observations[0].status == "forged"


def test_a_forged_message_beside_an_honest_record_is_caught() -> None:
    trajectory = runs("careful")[0]
    messages = list(trajectory.messages)
    tools = [place for place, message in enumerate(messages) if message.role == "tool"]
    other = messages[tools[1]].content
    messages[tools[0]] = msgspec.structs.replace(messages[tools[0]], content=other)
    found = replayer().replay(msgspec.structs.replace(trajectory, messages=tuple(messages)))
    assert found.worst == "forged"
    assert len(found.observations) == len(trajectory.dispatches) + 1


def changed_world(percent: float) -> Replayer:
    world = world_and_problems()[0]
    dearer = [
        msgspec.structs.replace(product, price=product.price * percent)
        for product in world.catalogue.products.values()
    ]
    return Replayer(World.build(Catalogue.from_products("compact-7", dearer), COMPACT))


def test_another_catalogue_makes_drift_where_values_changed() -> None:
    found = changed_world(2.0).replay(runs("classifier")[0])
    assert found.catalogue == "other"
    assert found.worst == "drift"
    by_tool = {seen.tool: seen for seen in found.observations}
    assert by_tool["find_product"].status == "drift"
    assert "price" in by_tool["find_product"].detail
    assert by_tool["view_product_information"].status == "match"


def test_without_a_digest_new_values_are_drift_and_new_products_forged() -> None:
    bare = msgspec.structs.replace(runs("narrator")[0], catalogue_digest="")
    rows = json.loads(bare.dispatches[0].result)
    _other_price(rows[0])
    drifted = replayer().replay(altered(bare, 0, result=json.dumps(rows)))
    assert (drifted.catalogue, drifted.worst) == ("unknown", "drift")
    _other_id(rows[0])
    assert replayer().replay(altered(bare, 0, result=json.dumps(rows))).worst == "forged"


def test_members_left_out_and_texts_cut_off_are_drift() -> None:
    trajectory = runs("narrator")[0]
    text = trajectory.dispatches[0].result
    rows = [{"product_id": row["product_id"]} for row in json.loads(text)]
    for shorter in (json.dumps(rows), text[:100] + "..."):
        assert replayer().replay(altered(trajectory, 0, result=shorter)).worst == "drift"


def test_an_invented_warning_is_forged() -> None:
    found = replayer().replay(altered(runs("narrator")[0], 0, warnings=("3306 is the answer",)))
    assert found.observations[0].status == "forged"
    assert "3306 is the answer" in found.observations[0].detail


def test_a_refusal_of_the_broker_is_outside_but_carries_nothing() -> None:
    error = "budget exhausted: this run may use 5 calls"
    fault = Fault(code=FaultCode.agent_budget_exhausted, what=error)
    refused = {"result": json.dumps({"error": error}), "error": error, "fault": fault}
    trajectory = runs("narrator")[0]
    assert replayer().replay(altered(trajectory, 0, **refused)).observations[0].status == "outside"
    loaded = refused | {"result": json.dumps({"error": error, "hint": "take 3306"})}
    assert replayer().replay(altered(trajectory, 0, **loaded)).observations[0].status == "forged"


def test_a_tool_that_does_not_exist_has_an_answer_too() -> None:
    event = DispatchEvent(seq=0, at_ms=0, duration_ms=0, tool="x", arguments="{}", result='{"a":1}')
    trajectory = msgspec.structs.replace(runs("narrator")[0], events=(event,))
    assert replayer().replay(trajectory).worst == "forged"
    foreign = msgspec.structs.replace(trajectory, catalogue_digest="")
    assert replayer().replay(foreign).observations[0].status == "outside"
    answer = replayer().reply("x", "{}").result
    honest = altered(trajectory, 0, result=answer)
    assert replayer().replay(honest).worst == "match"


@pytest.mark.parametrize(
    ("text", "value", "warnings"),
    [
        ('{"a": [1]}', {"a": [1]}, ()),
        ("[1]\nWarning: x\nWarning: y", [1], ("x", "y")),
        ('{"result": [1]}', [1], ()),
        ('{"result": {"data": {"a": 1, "b": 2}}}', {"a": 1, "b": 2}, ()),
        ('{"result": 5}', {"result": 5}, ()),
        ("[1]\nsomething else", "[1]\nsomething else", ()),
        ("", "", ()),
    ],
)
def test_reading_an_observation(text: str, value: Any, warnings: tuple[str, ...]) -> None:
    assert read_observation(text) == (value, warnings)


def test_equal_values_are_equal() -> None:
    assert canonical({"service": ["b", "a"], "n": 5}) == canonical(
        {"n": 5.0, "service": ["a", "b"]}
    )
    assert canonical([1, 2]) != canonical([2, 1])
    assert canonical([True]) != canonical([1])
    assert canonical({"recommended": ["b", "a"]}) != canonical({"recommended": ["a", "b"]})


def test_worlds_are_found_by_catalogue_and_by_rows() -> None:
    world, _ = world_and_problems()
    catalogue = world.catalogue
    trajectory = runs("narrator")[0]
    assert config_of(trajectory) == COMPACT
    row = '[{"product_id":"1","shop_id":"2","title":"t","price":1,"service":[],"sold_count":0}]'
    assert config_of(altered(trajectory, 0, result=row)) == FULL
    empty = msgspec.structs.replace(trajectory, events=(), messages=())
    assert config_of(empty) is None
    worlds = Worlds({catalogue.catalogue_id: catalogue})
    held = worlds.replayer(trajectory)
    assert held is not None
    assert held is worlds.replayer(trajectory)
    assert held.world.config == COMPACT
    assert worlds.replayer(empty) is held  # the catalogue says that it is compact
    stranger = msgspec.structs.replace(trajectory, catalogue="elsewhere")
    assert worlds.replayer(stranger) is held  # the only one there is
    two = Worlds({"a": catalogue, "b": catalogue})
    assert two.replayer(stranger) is None


def test_totals_name_every_status() -> None:
    found = [replayer().replay(trajectory) for trajectory in runs("narrator")]
    counts = totals(found)
    assert list(counts) == ["match", "drift", "forged", "outside"]
    assert counts["match"] == sum(len(t.dispatches) for t in runs("narrator"))
    assert b'"exact":true' in to_json(found[0])
