"""Records are immutable, keep every field through JSON, and equal records have equal digests."""

from __future__ import annotations

import json
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.records import (
    SCHEMA_VERSION,
    AgentRef,
    Blame,
    DispatchEvent,
    Ending,
    Fault,
    FaultCode,
    FunctionCall,
    InferenceEvent,
    InputError,
    Message,
    PriceRange,
    Problem,
    Product,
    Provenance,
    Reward,
    Suite,
    ToolCall,
    Trajectory,
    UpstreamError,
    Voucher,
    blame_of,
    canonical_json,
    digest,
    from_json,
    to_json,
    trajectory_key,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MONEY = st.floats(0, 1e6, allow_nan=False)


def problem(query: str = "a blue mug", budget: float = 90.0) -> Problem:
    return Problem(
        problem_id="p1",
        kind="voucher",
        query=query,
        rewards=(
            Reward(
                product_id="7",
                title=("Blue mug",),
                attributes=({"color": ("blue",)},),
                price=(PriceRange(mode="between", low=1.0, high=2.0),),
            ),
        ),
        voucher=Voucher(
            voucher_type="platform", threshold=50.0, discount_type="fixed", budget=budget
        ),
    )


def trajectory() -> Trajectory:
    call = ToolCall(id="c1", function=FunctionCall(name="find_product", arguments='{"q":"mug"}'))
    asked = Message(role="assistant", content="", reasoning_content="look", tool_calls=(call,))
    return Trajectory(
        trajectory_id="t",
        problem_id="p1",
        query="a blue mug",
        kind="product",
        agent=AgentRef(name="a"),
        events=(
            InferenceEvent(
                seq=0, at_ms=1.0, duration_ms=1.0, prefix=0, request=(), completion=asked
            ),
            DispatchEvent(
                seq=1,
                at_ms=2.0,
                duration_ms=1.0,
                tool="find_product",
                arguments='{"q":"mug"}',
                result="[]",
                call_id="c1",
                emitted_by=0,
            ),
        ),
        messages=(asked,),
        answer=["7"],
        ending=Ending.terminated,
    )


def test_records_are_immutable() -> None:
    with pytest.raises(AttributeError):
        problem().query = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "record",
    [problem(), trajectory(), Suite(suite_id="s", version="1", problems=(problem(),))],
    ids=["problem", "trajectory", "suite"],
)
def test_json_round_trip(record: object) -> None:
    assert from_json(to_json(record), type(record)) == record


@pytest.mark.parametrize("record", [trajectory(), Provenance(kind="corpus", tool_version="1")])
def test_schema_version_stands_in_the_json(record: object) -> None:
    assert json.loads(to_json(record))["schema_version"] == SCHEMA_VERSION


@given(TEXT, MONEY)
def test_equal_problems_have_equal_digests(query: str, budget: float) -> None:
    one, other = problem(query, budget), problem(query, budget)
    assert digest(one) == digest(other)
    assert digest(from_json(to_json(one), Problem)) == digest(one)


def stated(value: Any) -> Any:
    """Plain data of a record in which every default is stated, as another program may write it."""
    if isinstance(value, msgspec.Struct):
        plain = {name: stated(getattr(value, name)) for name in value.__struct_fields__}
        tag = value.__struct_config__.tag
        return {"type": tag, **plain} if tag else plain
    if isinstance(value, tuple):
        return [stated(each) for each in value]
    return value


@pytest.mark.parametrize(
    "record",
    [problem(), trajectory(), Suite(suite_id="s", version="1", problems=(problem(),))],
    ids=["problem", "trajectory", "suite"],
)
def test_equal_records_have_equal_bytes_though_one_was_read_with_its_defaults_stated(
    record: object,
) -> None:
    again = from_json(json.dumps(stated(record)), type(record))
    assert again == record
    assert to_json(again) == to_json(record)
    assert digest(again) == digest(record)


@given(TEXT, TEXT)
def test_different_queries_have_different_digests(one: str, other: str) -> None:
    assert (digest(problem(one)) == digest(problem(other))) == (one == other)


def test_canonical_form_sorts_keys_and_keeps_text() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "\ud800"])
def test_canonical_form_refuses_what_json_lacks(bad: object) -> None:
    with pytest.raises(InputError, match="canonical"):
        canonical_json({"x": bad})


def test_bad_json_names_the_place() -> None:
    with pytest.raises(InputError, match=r"suite.jsonl:3.*Product"):
        from_json(b'{"product_id": 5}', Product, where="suite.jsonl:3")
    with pytest.raises(InputError, match=r"run:1: not a valid .*DispatchEvent"):
        from_json(b'{"type": "no event"}', DispatchEvent | InferenceEvent, where="run:1")  # type: ignore[arg-type]


def test_public_view_hides_the_reward() -> None:
    assert set(problem().public()) == {"query", "category", "problem_id"}


def test_contents_follow_the_index_rule() -> None:
    product = Product(
        product_id="1",
        shop_id="2",
        title="Mug",
        price=3.0,
        sku_options={"1": {"size": "xl"}},
        attributes={"material": ("steel", "glass")},
        description="hidden",
    )
    assert product.contents() == "Mug\nxl\nsteel glass"


@pytest.mark.parametrize("code", list(FaultCode))
def test_every_fault_code_has_a_party(code: FaultCode) -> None:
    assert Fault(code=code, what="x").blame is blame_of(code)
    assert {1: Blame.agent, 2: Blame.validator, 3: Blame.platform}[code // 1000] is blame_of(code)


def test_trajectory_key_depends_on_each_part() -> None:
    base = {
        "agent": AgentRef(name="a"),
        "problem_id": "p",
        "catalogue_digest": "c",
        "seed": 0,
        "attempt": 0,
    }
    changed = [
        {"agent": AgentRef(name="b")},
        {"problem_id": "q"},
        {"catalogue_digest": "d"},
        {"seed": 1},
        {"attempt": 1},
    ]
    keys = {trajectory_key(**{**base, **change}) for change in [{}, *changed]}
    assert len(keys) == 6


def test_openai_form_keeps_null_empty_and_absent_apart() -> None:
    none = Message(role="assistant", content=None).to_openai()
    empty = Message(role="assistant", content="").to_openai()
    assert none["content"] is None
    assert empty["content"] == ""
    call = msgspec.to_builtins(trajectory().messages[0].tool_calls[0])
    assert call["type"] == "function"


def test_a_fault_of_a_model_server_crosses_to_another_process() -> None:
    error = UpstreamError("no", code=3002, retryable=True, where="here", remedy="wait")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (UpstreamError, str(error), error.__dict__)
