"""verl's multi-turn SFT over exported rows: tool schemas reach the template without nulls.

Parquet gives every schema the members of every other one as nulls, and a chat template prints them;
so the export keeps `tools` as JSON text, and this data set reads it back. verl renders each message
by itself and refuses a row whose whole is another text: with Qwen3's template every row that thinks
(a turn without a request before it loses its thinking), with any other every one that has several
results in a row, which are one turn. So a message is what it adds to the conversation before it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from palio.records import MissingDependencyError

try:
    from verl.utils.dataset.multiturn_sft_dataset import (  # type: ignore[import-not-found]
        MultiTurnSFTDataset,
    )
except ImportError as failed:
    raise MissingDependencyError(
        f"palio's data set for verl needs verl 0.9: {failed}",
        remedy="pip install 'verl>=0.9' where you train",
    ) from failed


class ShopSFTDataset(MultiTurnSFTDataset):  # type: ignore[misc]
    """What `data.custom_cls` of verl's SFT trainer names; see `sft_dataset.py` of an export."""

    def _read_files_and_process(self) -> None:
        super()._read_files_and_process()
        held: Any = self
        held.messages = [_without_nulls(each) for each in held.messages]
        held.tools = [json.loads(text) for text in held.tools]

    def _build_messages(self, example: dict[str, Any]) -> list[dict[str, Any]]:
        return _without_nulls(super()._build_messages(example))

    def _process_single_message(
        self,
        index: int,
        message: dict[str, Any],
        full_message: list[dict[str, Any]],
        tools: Any = None,
        enable_thinking: bool | None = None,
    ) -> Any:
        """Ids, loss mask and attention mask of a message; a turn of results stands in its first."""
        held: Any = self
        if index and _is_result(message) and _is_result(full_message[index - 1]):
            return *(torch.zeros(0, dtype=torch.long) for _ in range(3)), {}
        end = index + 1
        while _is_result(message) and end < len(full_message) and _is_result(full_message[end]):
            end += 1
        told = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        before = self._text(full_message[:index], None, told) if index else ""
        text = self._text(full_message[:end], tools, told)
        if not text.startswith(before):  # it rewrites what was before: verl's own check says so
            return super()._process_single_message(
                index, message, full_message, tools, enable_thinking
            )
        added = held.tokenizer(text[len(before) :], add_special_tokens=False, return_tensors="pt")
        ids = added["input_ids"][0]
        mask = torch.full_like(ids, int(message["role"] == "assistant"))
        mask[: len(held.generation_prompt)] = 0
        return ids, mask, torch.ones_like(ids), {}

    def _text(self, messages: Sequence[Any], tools: Any, told: dict[str, Any]) -> str:
        held: Any = self
        text: str = held.tokenizer.apply_chat_template(
            list(messages),
            tools=tools,
            tokenize=False,
            **{**held.apply_chat_template_kwargs, **told},
        )
        return text


def _is_result(message: dict[str, Any]) -> bool:
    return bool(message["role"] == "tool")


def _without_nulls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with the members that they had before Parquet made columns of them."""
    return [
        {
            key: value
            for key, value in message.items()
            if key == "content" or (value is not None and value != [])
        }
        for message in messages
    ]
