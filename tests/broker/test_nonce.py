"""Only the call that the model asked for, unchanged, once and in time, proves that it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.broker.nonce import NONCES_FIELD, Mint, NoncePolicy
from palio.broker.server import BrokerServer
from palio.broker.session import Session
from palio.judging.richness import richness_verdict
from palio.records import FunctionCall, ToolCall
from tests.broker.conftest import Clock, Replies, completion
from tests.broker.test_server import Client

Open = Callable[..., Session]
FIND = '{"q":"red mug"}'
ASK: list[dict[str, Any]] = [{"role": "user", "content": "a red mug"}]


def asked(session: Session, messages: Any = None) -> list[dict[str, Any]]:
    body = {"messages": messages or ASK}
    calls: list[dict[str, Any]] = session.complete(body)["choices"][0]["message"]["tool_calls"]
    return calls


def call(name: str, arguments: str, call_id: str = "c1") -> ToolCall:
    return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))


def forged(token: str) -> str:
    return token[:-1] + ("A" if token[-1] != "A" else "B")


def test_the_id_alone_is_the_proof(open_session: Open) -> None:
    upstream = Replies(completion("", ("c1", "find_product", FIND)), completion("done"))
    session = open_session(upstream)
    (made,) = asked(session)
    assert made["id"] != "c1"
    reply = session.dispatch("find_product", FIND, made["id"])
    said = {"role": "assistant", "content": "", "tool_calls": [made]}
    tool = {"role": "tool", "tool_call_id": made["id"], "content": reply.result}
    session.complete({"messages": [*ASK, said, tool]})
    # The model server and the record know only the model's own id.
    assert upstream.bodies[1]["messages"][1]["tool_calls"][0]["id"] == "c1"
    assert upstream.bodies[1]["messages"][2]["tool_call_id"] == "c1"
    run = session.close()
    assert (run.dispatches[0].nonce, run.dispatches[0].call_id) == ("valid", "c1")
    assert run.inferences[1].prefix == 2
    assert made["id"] not in json.dumps([str(event) for event in run.events])
    assert richness_verdict(run).evidence == "verified"


CASES = [
    ("valid", "find_product", FIND, "{id}", ""),
    ("valid", "find_product", '{ "query": "red mug", "page": 1 }', "{id}", ""),
    ("valid", "find_product", FIND, "", "{id}"),
    ("valid", "find_product", FIND, "c1", "{id}"),
    ("missing", "find_product", FIND, "", ""),
    ("missing", "find_product", FIND, "c1", ""),
    ("mismatch", "find_product", FIND, "c2", "{id}"),
    ("mismatch", "find_product", FIND, "{other}", "{id}"),
    ("mismatch", "find_product", '{"q":"blue mug"}', "{id}", ""),
    ("mismatch", "find_product", "{}", "{id}", ""),
    ("mismatch", "find_product", "", "{id}", ""),
    ("mismatch", "view_product_information", FIND, "{id}", ""),
    ("mismatch", "find_product", FIND, "{forged}", ""),
    ("mismatch", "find_product", FIND, "{elsewhere}", ""),
    ("malformed", "find_product", FIND, "", "rubbish"),
    ("malformed", "find_product", FIND, "call_0-0-short", ""),
    ("malformed", "find_product", FIND, "", "{id}A"),
    ("malformed", "find_product", FIND, "", "{id}\n"),
]


@pytest.mark.parametrize(("status", "tool", "arguments", "call_id", "nonce"), CASES)
def test_status(
    open_session: Open, status: str, tool: str, arguments: str, call_id: str, nonce: str
) -> None:
    calls = (("c1", "find_product", FIND), ("c2", "terminate", "{}"))
    session = open_session(Replies(completion("", *calls)))
    first, second = asked(session)
    names = {
        "{id}": first["id"],
        "{other}": second["id"],
        "{forged}": forged(first["id"]),
        "{elsewhere}": first["id"].replace("call_0-0", "call_7-0"),
    }
    for name, value in names.items():
        call_id, nonce = call_id.replace(name, value), nonce.replace(name, value)
    session.dispatch(tool, arguments, call_id, nonce)
    assert session.close().dispatches[0].nonce == status


def test_empty_arguments_are_bound_like_any(open_session: Open) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", "{}"))))
    (made,) = asked(session)
    session.dispatch("find_product", FIND, made["id"])
    session.dispatch("find_product", {"q": "anything"}, made["id"])
    session.dispatch("find_product", "{}", made["id"])
    statuses = [event.nonce for event in session.close().dispatches]
    assert statuses == ["mismatch", "mismatch", "valid"]


def test_a_proof_is_good_once(open_session: Open) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))))
    (made,) = asked(session)
    for _ in range(3):
        session.dispatch("find_product", FIND, made["id"])
    run = session.close()
    assert [event.nonce for event in run.dispatches] == ["valid", "replayed", "replayed"]
    assert [event.emitted_by for event in run.dispatches] == [0, None, None]


def test_a_call_is_the_model_s_once_with_a_proof_or_without(open_session: Open) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))))
    (made,) = asked(session)
    session.dispatch("find_product", FIND)
    session.dispatch("find_product", FIND, made["id"])
    run = session.close()
    assert [(event.nonce, event.emitted_by) for event in run.dispatches] == [
        ("missing", 0),
        ("valid", None),
    ]
    assert richness_verdict(run).richness == 0.5


@pytest.mark.parametrize(("waited", "status"), [(59.9, "valid"), (60.1, "expired")])
def test_a_proof_is_good_for_a_minute(
    open_session: Open, clock: Clock, waited: float, status: str
) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))))
    (made,) = asked(session)
    clock.now += waited
    session.dispatch("find_product", FIND, made["id"])
    assert session.close().dispatches[0].nonce == status


def test_proofs_of_another_run_are_worth_nothing(open_session: Open) -> None:
    one, other = (open_session(Replies(completion("", ("c1", "find_product", FIND)))) for _ in "ab")
    (made,), (theirs,) = asked(one), asked(other)
    assert made["id"] != theirs["id"]
    one.dispatch("find_product", FIND, theirs["id"])
    assert one.close().dispatches[0].nonce == "mismatch"


def test_bytes_may_be_bound_exactly(open_session: Open) -> None:
    policy = NoncePolicy(arguments="bytes")
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))), nonces=policy)
    (made,) = asked(session)
    session.dispatch("find_product", '{"q": "red mug"}', made["id"])
    session.dispatch("find_product", FIND, made["id"])
    assert [event.nonce for event in session.close().dispatches] == ["mismatch", "valid"]


def test_strict_refuses_as_an_observation(open_session: Open) -> None:
    policy = NoncePolicy(mode="strict")
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))), nonces=policy)
    (made,) = asked(session)
    refused = session.dispatch("find_product", FIND)
    assert json.loads(refused.result)["error"].startswith("refused: this call has no valid proof")
    assert "red mug" in session.dispatch("find_product", FIND, made["id"]).result
    assert session.dispatch("find_product", FIND, made["id"]).error
    run = session.close()
    seen = [(event.nonce, bool(event.error), event.emitted_by) for event in run.dispatches]
    assert seen == [("missing", True, None), ("valid", False, 0), ("replayed", True, None)]
    (shown,) = [message for message in run.messages if message.role == "tool"]
    assert "red mug" in (shown.content or "")  # what the model asked for, not what was refused


def test_a_result_stands_below_the_turn_that_is_proven_to_have_asked(open_session: Open) -> None:
    text = f'<tool_call>{{"name":"find_product","arguments":{FIND}}}</tool_call>'
    session = open_session(Replies(completion(text)))
    session.complete({"messages": ASK})
    again = session.complete({"messages": [*ASK, {"role": "user", "content": "again"}]})
    session.dispatch("find_product", FIND, "", again[NONCES_FIELD][0]["nonce"])
    run = session.close()
    assert run.dispatches[0].emitted_by == 1
    assert run.messages[-1].tool_call_id == run.messages[-2].tool_calls[0].id == "call-1-0"


def test_off_leaves_ids_alone(open_session: Open) -> None:
    policy = NoncePolicy(mode="off")
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))), nonces=policy)
    assert asked(session)[0]["id"] == "c1"
    session.dispatch("find_product", FIND, "c1")
    run = session.close()
    assert run.dispatches[0].nonce == ""
    assert richness_verdict(run).evidence == "heuristic"


def test_calls_written_as_text_have_their_proofs_beside(open_session: Open) -> None:
    text = f'<tool_call>{{"name":"find_product","arguments":{FIND}}}</tool_call>'
    session = open_session(Replies(completion(text)))
    answer = session.complete({"messages": ASK})
    (proof,) = answer[NONCES_FIELD]
    session.dispatch("find_product", FIND, "an-id-of-the-harness", proof["nonce"])
    assert session.close().dispatches[0].nonce == "valid"


@pytest.mark.parametrize("header", ["X-Palio-Nonce", "X-Tool-Nonce"])
def test_headers_carry_it_too(server: BrokerServer, open_session: Open, header: str) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))))
    with Client(server.register(session)) as client:
        _, body, _ = client("POST", "/v1/chat/completions", {"messages": ASK})
        token = body["choices"][0]["message"]["tool_calls"][0]["id"]
        named = {header.replace("-", "_"): token, "X_Tool_Call_Id": "c1"}
        client("POST", "/search/find_product", FIND.encode(), **named)
    assert session.close().dispatches[0].nonce == "valid"


names = st.sampled_from(["find_product", "view_product_information", "terminate"])
texts = st.sampled_from(["", "{}", FIND, '{"q":"a"}', "not json"])


@given(st.lists(st.tuples(names, texts), min_size=1, max_size=4), names, texts, st.integers(0, 3))
def test_a_proof_fits_only_what_it_was_minted_for(
    calls: list[tuple[str, str]], tool: str, arguments: str, at: int
) -> None:
    from palio.broker.ledger import argument_key

    mint = Mint(NoncePolicy(), "run")
    minted = mint.mint(0, [call(name, text) for name, text in calls], 0.0)
    at %= len(calls)
    name, text = calls[at]
    fits = name == tool and argument_key(name, text) == argument_key(tool, arguments)
    proof = mint.check(tool, arguments, minted[at].token, "", 1.0)
    assert proof.status == ("valid" if fits else "mismatch")


ECHOES = [
    (f"Call find_product with {FIND} now.", FIND, True),
    ("Reply with this call: find_product {'q': 'green bowl of tin'}", FIND.replace("red mug", "green bowl of tin"), True),  # noqa: E501
    ('"{\\"q\\": \\"red mug\\"}"', FIND, True),
    ("Search for GREEN BOWL of tin and nothing else.", '{"q":"green bowl of tin"}', True),
    ("You are a shopping assistant. Search, view, recommend.", FIND, False),
    ('Example: find_product {"q":"wool socks"}', FIND, False),
    ("Use sort priceasc when asked for the cheapest.", '{"q":"mug","sort":"asc"}', False),
]  # fmt: skip


@pytest.mark.parametrize(("system", "arguments", "echoed"), ECHOES)
def test_a_call_that_the_prompt_dictates_is_an_echo(
    open_session: Open, system: str, arguments: str, echoed: bool
) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", arguments))))
    (made,) = asked(session, [{"role": "system", "content": system}, *ASK])
    session.dispatch("find_product", arguments, made["id"])
    run = session.close()
    assert (run.dispatches[0].nonce, run.dispatches[0].echoed) == ("valid", echoed)
    assert richness_verdict(run).richness == (0.0 if echoed else 1.0)


def test_what_the_model_can_have_from_elsewhere_is_no_echo(open_session: Open) -> None:
    """The query, tool results and earlier completions may stand in a folded prompt."""
    view = '{"product_ids":"1001"}'
    upstream = Replies(
        completion("I shall look for a stone bowl", ("c1", "find_product", '{"q":"stone bowl"}')),
        completion("", ("c2", "find_product", '{"q":"stone bowl","page":2}')),
        completion("", ("c3", "find_product", '{"q":"stone bowl"}')),
        completion("", ("c4", "view_product_information", view)),
    )
    session = open_session(upstream)
    asked(session)
    folded = [{"role": "user", "content": 'a red mug\nSo far: find_product {"q":"stone bowl"}'}]
    for _ in range(2):
        for made in asked(session, folded):
            session.dispatch("find_product", made["function"]["arguments"], made["id"])
    (made,) = asked(session, [*ASK, {"role": "user", "content": "now view 1001"}])
    session.dispatch("view_product_information", view, made["id"])
    assert [event.echoed for event in session.close().dispatches] == [False, False, True]


def test_forged_history_is_the_agent_s_own_text(open_session: Open) -> None:
    fake = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "x", "type": "function", "function": {"name": "find_product", "arguments": FIND}}
    ]}  # fmt: skip
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))))
    (made,) = asked(session, [*ASK, fake, {"role": "user", "content": "do that"}])
    session.dispatch("find_product", FIND, made["id"])
    assert session.close().dispatches[0].echoed


def test_a_run_with_unproven_calls_is_only_heuristic(open_session: Open) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", FIND))))
    asked(session)
    session.dispatch("find_product", FIND)
    session.dispatch("find_product", {"q": "own"})
    verdict = richness_verdict(session.close())
    assert (verdict.evidence, verdict.emitted, verdict.dispatched) == ("heuristic", 1, 2)


def test_a_harness_without_a_model_is_proven_to_be_one(open_session: Open) -> None:
    session = open_session()
    session.dispatch("find_product", {"q": "own"})
    verdict = richness_verdict(session.close())
    assert (verdict.evidence, verdict.richness) == ("verified", 0.0)
