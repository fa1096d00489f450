"""Small hand-made products, problems and records for the judging tests."""

from __future__ import annotations

import json
from typing import Any

from palio.records import (
    AgentRef,
    DispatchEvent,
    Ending,
    Event,
    Fault,
    FunctionCall,
    InferenceEvent,
    Message,
    PriceRange,
    Problem,
    Product,
    Reward,
    ToolCall,
    Trajectory,
    Voucher,
)

QUERY = "I want a blue wool scarf under 200 pesos."
ROWS = [
    {"product_id": "6093", "shop_id": "771", "title": "Vilo Nord Scarf", "price": 150},
    {"product_id": "4821", "shop_id": "772", "title": "Vilo Breeze Scarf", "price": 180.5},
]
VIEWS = [
    {
        "product_id": "6093",
        "attributes": {"material": ["cotton"]},
        "sku_options": {"1": {"color": "beige"}},
    },
    {
        "product_id": "4821",
        "attributes": {"material": ["wool"]},
        "sku_options": {"1": {"color": "blue"}},
    },
]
PADDING = "I will now go through this task step by step and with the greatest possible care. " * 3


def product(product_id: str = "4821", **fields: Any) -> Product:
    plain: dict[str, Any] = {"shop_id": "s1", "title": "Vilo Breeze Scarf", "price": 100.0}
    return Product(product_id=product_id, **{**plain, **fields})


def reward(product_id: str = "truth", **fields: Any) -> Reward:
    return Reward(product_id=product_id, **{"title": ("Vilo Breeze Scarf",), **fields})


def ranged(mode: str, low: float | None, high: float | None) -> PriceRange:
    return PriceRange(mode=mode, low=low, high=high)  # type: ignore[arg-type]


def problem(kind: str = "product", *rewards: Reward, **fields: Any) -> Problem:
    return Problem(
        problem_id=fields.pop("problem_id", "p1"),
        kind=kind,  # type: ignore[arg-type]
        query=QUERY,
        rewards=rewards or (reward(),),
        **fields,
    )


def voucher(**fields: Any) -> Voucher:
    plain: dict[str, Any] = {
        "voucher_type": "platform",
        "threshold": 100.0,
        "discount_type": "fixed",
        "budget": 150.0,
        "face_value": 50.0,
    }
    return Voucher(**{**plain, **fields})


def dispatch(tool: str, arguments: Any, result: Any, **fields: Any) -> DispatchEvent:
    return DispatchEvent(
        seq=0,
        at_ms=0,
        duration_ms=1,
        tool=tool,
        arguments=json.dumps(arguments),
        result=result if isinstance(result, str) else json.dumps(result),
        **fields,
    )


def think(
    text: str, *, prompt: str = "", content: str | None = None, **fields: Any
) -> InferenceEvent:
    """An inference whose completion also makes a call long enough for gate 1."""
    call = ToolCall(id="c", function=FunctionCall(name="find_product", arguments="x" * 120))
    completion = Message(
        role="assistant",
        content=content,
        reasoning_content=text or None,
        tool_calls=fields.pop("tool_calls", (call,)),
        rationalised=fields.pop("rationalised", False),
    )
    request = (Message(role="user", content=prompt),) if prompt else ()
    return InferenceEvent(
        seq=0, at_ms=0, duration_ms=1, prefix=0, request=request, completion=completion, **fields
    )


SEARCH = dispatch("find_product", {"q": "vilo scarf"}, ROWS)
VIEW = dispatch("view_product_information", {"product_ids": "6093,4821"}, VIEWS)


def trajectory(*events: Event, **fields: Any) -> Trajectory:
    import msgspec

    placed = tuple(msgspec.structs.replace(event, seq=place) for place, event in enumerate(events))
    plain: dict[str, Any] = {
        "trajectory_id": "t1",
        "problem_id": "p1",
        "query": QUERY,
        "kind": "product",
        "agent": AgentRef(name="someone"),
        "events": placed,
        "messages": (),
        "ending": Ending.terminated,
    }
    return Trajectory(**{**plain, **fields})


def answered(answer: Any, *events: Event, **fields: Any) -> Trajectory:
    """A run that ends with a recommendation."""
    last = dispatch("recommend_product", {"product_ids": answer}, {"recommended": answer})
    return trajectory(*events, last, answer=answer, **fields)


def fault(code: int) -> Fault:
    return Fault(code=code, what="it broke")
