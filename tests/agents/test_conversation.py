from __future__ import annotations

import json

import pytest

from palio.agents.scripted.conversation import Conversation, call_key, read_rows
from palio.records import InputError


def test_calls_that_ask_the_same_have_one_key():
    key = call_key("find_product", '{"q":"red mug","page":2}')
    assert call_key("find_product", {"page": "2", "query": "red mug", "shop_id": ""}) == key
    assert call_key("find_product", '{"q":"red mug"}') == call_key(
        "find_product", '{"q":"red mug","page":1,"sort":"default"}'
    )
    assert call_key("find_product", '{"q":"red mug"}') != call_key("find_product", '{"q":"mug"}')
    listed = call_key("view_product_information", {"product_ids": ["1", "2"]})
    assert listed == call_key("view_product_information", '{"product_id":"1,2"}')


def test_results_are_tied_to_calls_by_id_not_by_position():
    calls = [
        {"id": "b", "function": {"name": "find_product", "arguments": '{"q":"two"}'}},
        {"id": "a", "function": {"name": "find_product", "arguments": '{"q":"one"}'}},
    ]
    conversation = Conversation(
        [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "[1]"},
            {"role": "tool", "tool_call_id": "b", "content": "[2]"},
            {"role": "tool", "tool_call_id": "orphan", "content": "[3]"},
        ]
    )
    assert conversation.results[call_key("find_product", {"q": "one"})] == "[1]"
    assert conversation.results[call_key("find_product", {"q": "two"})] == "[2]"
    assert (conversation.turns, conversation.calls, conversation.finished) == (1, 2, False)


def test_warnings_after_the_result_are_no_rows():
    rows = [{"product_id": "1"}]
    assert read_rows(json.dumps(rows) + "\nWarning: price filter ignored") == rows
    assert read_rows('{"total_after":5}') == [{"total_after": 5}]
    assert read_rows("nonsense") == read_rows("null") == read_rows('["text"]') == []


def test_a_conversation_without_a_user_message_is_refused():
    with pytest.raises(InputError):
        Conversation([{"role": "system", "content": "x"}])
    with pytest.raises(InputError):
        Conversation(["text"])  # type: ignore[list-item]


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "find "}, {"type": "text", "text": "a mug"}]
    assert Conversation([{"role": "user", "content": parts}]).request == "find a mug"
