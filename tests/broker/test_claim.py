"""What an agent returns never changes the record; each departure is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palio.broker.claim import MAX_SENTENCES
from palio.broker.session import Session
from palio.records import Ending, Trajectory, from_json, to_json
from tests.broker.conftest import Replies, completion

Open = Callable[..., Session]


def step(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"completion": {"message": {"think": "t", "tool_call": list(calls)}}, "extra_info": {}}


def call(name: str, parameters: Any, result: Any = None) -> dict[str, Any]:
    return {"name": name, "parameters": parameters, "tool_call_id": "x", "result": result}


@pytest.fixture
def searched(open_session: Open) -> tuple[Session, Any]:
    """A session that made one search and answered, and the search's result."""
    session = open_session()
    found = json.loads(session.dispatch("find_product", {"q": "mug"}).result)
    session.dispatch("recommend_product", {"product_ids": "1"})
    session.dispatch("terminate", {})
    return session, found


ANSWER = call("recommend_product", {"product_ids": "1"})
END = call("terminate", {"status": "success"})


def test_a_true_claim_has_no_differences(searched: tuple[Session, Any]) -> None:
    session, found = searched
    claim = [step(call("find_product", {"q": "mug"}, found)), step(ANSWER, END)]
    assert session.close(claim=claim).differences == ()


def test_equal_arguments_in_another_form_are_the_same_call(searched: tuple[Session, Any]) -> None:
    session, found = searched
    claim = [step(call("find_product", {"query": "mug", "page": "1"}, found), ANSWER, END)]
    assert session.close(claim=claim).differences == ()


def test_a_forged_result_is_named(searched: tuple[Session, Any]) -> None:
    session, found = searched
    forged = [{**found[0], "price": 1.0}]
    claim = [step(call("find_product", {"q": "mug"}, forged)), step(ANSWER, END)]
    (sentence,) = session.close(claim=claim).differences
    assert "step 1 claims another result of find_product" in sentence
    assert "event 0" in sentence


def test_an_invented_call_is_named(searched: tuple[Session, Any]) -> None:
    session, found = searched
    invented = call("view_product_information", {"product_ids": "1"}, [])
    claim = [step(call("find_product", {"q": "mug"}, found), invented), step(ANSWER, END)]
    (sentence,) = session.close(claim=claim).differences
    assert "view_product_information" in sentence
    assert "never happened" in sentence


def test_one_recorded_call_backs_one_claimed_call(searched: tuple[Session, Any]) -> None:
    session, found = searched
    search = call("find_product", {"q": "mug"}, found)
    (sentence,) = session.close(claim=[step(search, search, ANSWER, END)]).differences
    assert "never happened" in sentence


def test_a_failed_call_may_be_claimed_or_left_out(open_session: Open) -> None:
    for claimed in (True, False):
        session = open_session()
        reply = json.loads(session.dispatch("find_product", "{broken").result)
        failed = call("find_product", {"arguments": "{broken"}, reply)
        assert session.close(claim=[step(failed)] if claimed else [step()]).differences == ()


@pytest.mark.parametrize(
    ("shown", "forged"),
    [
        ("{result}", False),
        ("{result}\nWarning: something", False),
        (" {result} ", False),
        ("[]", True),
        ("", True),
        ("{result}, and 1 costs nothing", True),
    ],
)
def test_what_the_model_is_shown_is_compared(open_session: Open, shown: str, forged: bool) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", '{"q":"mug"}'))))
    ask = [{"role": "user", "content": "a red mug"}]
    said = session.complete({"messages": ask})["choices"][0]["message"]
    result = session.dispatch("find_product", '{"q":"mug"}', "c1").result
    tool = {"role": "tool", "tool_call_id": "c1", "content": shown.replace("{result}", result)}
    session.complete({"messages": [*ask, said, tool]})
    differences = session.close().differences
    assert bool(differences) is forged
    assert all("event 2 shows the model another result" in each for each in differences)


def test_a_missing_call_is_named(searched: tuple[Session, Any]) -> None:
    session, _ = searched
    (sentence,) = session.close(claim=[step(ANSWER, END)]).differences
    assert sentence.startswith("the dialogue leaves out find_product")


def test_an_empty_claim_is_one_sentence(searched: tuple[Session, Any]) -> None:
    session, _ = searched
    (sentence,) = session.close(claim=[]).differences
    assert "empty" in sentence
    assert "3 calls" in sentence


def test_the_record_s_answer_wins(searched: tuple[Session, Any]) -> None:
    session, found = searched
    other = call("recommend_product", {"product_ids": "2"})
    run = session.close(claim=[step(call("find_product", {"q": "mug"}, found), other, END)])
    assert run.answer == "1"
    assert any('answers "2"' in sentence for sentence in run.differences)


def test_an_answer_only_in_the_claim_counts_and_is_noted(open_session: Open) -> None:
    session = open_session()
    run = session.close(claim=[step(ANSWER, END)])
    assert (run.answer, run.ending) == ("1", Ending.terminated)
    assert [sentence for sentence in run.differences if "only in the returned dialogue" in sentence]


@pytest.mark.parametrize(
    ("answer", "unseen"),
    [("1", []), ("1,2", []), (["3"], ["3"]), ("12", ["12"]), ("1, 99,", ["99"]), ([1, 7], ["7"])],
)
def test_an_answer_that_no_result_showed_is_named(
    open_session: Open, answer: Any, unseen: list[str]
) -> None:
    session = open_session()
    session.dispatch("find_product", {"q": "mug"})
    session.dispatch("view_product_information", {"product_ids": "99"})
    session.dispatch("recommend_product", {"product_ids": answer})
    differences = session.close().differences
    assert list(differences) == [
        f'the answer "{each}" stands in no recorded tool result' for each in unseen
    ]


def test_a_result_that_came_after_the_answer_does_not_back_it(open_session: Open) -> None:
    session = open_session()
    session.dispatch("recommend_product", {"product_ids": "1"})
    session.dispatch("find_product", {"q": "mug"})
    assert session.close().differences == (
        'the answer "1" stands in no recorded tool result before it',
    )
    session = open_session()
    session.dispatch("recommend_product", {"product_ids": "1"})
    session.dispatch("find_product", {"q": "mug"})
    session.dispatch("recommend_product", {"product_ids": "1"})
    assert session.close().differences == ()


@pytest.mark.parametrize(
    ("tool", "asked", "made", "forged"),
    [
        ("find_product", '{"q":"mug"}', None, True),
        ("find_product", '{"q":"mug"}', '{"q":"bowl"}', True),
        ("find_product", '{"q":"mug"}', '{"query":"mug"}', False),  # the same call, without its id
        ("find_product", '{"q":"mugs, please"}', '{"q":"mug"}', False),  # mended, its result shown
        ("find_product", "{broken", None, False),
        ("own_tool", '{"q":"mug"}', None, False),
    ],
)
def test_a_result_of_a_call_that_never_was_is_named(
    open_session: Open, tool: str, asked: str, made: str | None, forged: bool
) -> None:
    session = open_session(Replies(completion("", ("c1", tool, asked))))
    ask = [{"role": "user", "content": "a red mug"}]
    said = session.complete({"messages": ask})["choices"][0]["message"]
    text = session.dispatch("find_product", made).result if made else "[]"
    text = text if made != '{"q":"bowl"}' else "[]"
    call_id = said["tool_calls"][0]["id"]
    shown = {"role": "tool", "tool_call_id": call_id, "content": text}
    session.complete({"messages": [*ask, said, shown]})
    differences = session.close().differences
    assert bool(differences) is forged
    assert all("shows the model a result of find_product" in each for each in differences)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("1\x00\ud800", "1\ufffd\ufffd"),
        (["\udfff", float("nan"), 2**70], ["\ufffd", None, hex(2**70)]),
        ({"\ud800": [True, 1.5]}, {"\ufffd": [True, 1.5]}),
        (float("inf"), None),
    ],
)
def test_an_answer_that_no_record_can_hold_is_cleaned(
    open_session: Open, answer: Any, kept: Any
) -> None:
    claimed = open_session().close(claim=[step(call("recommend_product", {"product_ids": answer}))])
    assert claimed.answer == kept
    session = open_session()
    session.dispatch("recommend_product", json.dumps({"product_ids": answer}))
    for run in (claimed, session.close(claim=[step(call("tool\ud800", {}))])):
        assert from_json(to_json(run), Trajectory) == run


def test_a_flood_of_lies_is_counted(open_session: Open) -> None:
    claim = [step(call("find_product", {"q": str(n)}, [])) for n in range(10_000)]
    differences = open_session().close(claim=claim).differences
    assert len(differences) == MAX_SENTENCES + 1
    assert differences[-1] == f"and {10_000 - MAX_SENTENCES} more differences"


@pytest.mark.parametrize(
    "claim",
    [
        [{}], [{"completion": None}], [{"completion": {"message": {"tool_call": 5}}}],
        [step({"name": 3})], [step({"name": "x"})], [1, None, "x"], {"a": 1}, "text",
        [step(call("recommend_product", None))], [step(call("t", float("nan")))],
        [step(call("find_product", {"q": "\ud800"}, "\ud800"))],
    ],
    ids=repr,
)  # fmt: skip
def test_a_shapeless_claim_is_read_as_far_as_it_goes(open_session: Open, claim: Any) -> None:
    session = open_session()
    session.dispatch("find_product", {"q": "mug"})
    run = session.close(claim=claim)
    assert [event.tool for event in run.dispatches] == ["find_product"]
    assert from_json(to_json(run), Trajectory) == run


@pytest.mark.shared
def test_the_arena_s_own_dialogue(open_session: Open, shared_data: Path) -> None:
    sample = (shared_data / "arena_samples" / "agent_return_value.json").read_text()
    run = open_session().close(claim=json.loads(sample))
    assert run.answer == "5035687794"
    assert len(run.differences) == 4
    assert run.differences[-1] == 'the answer "5035687794" stands in no recorded tool result'
