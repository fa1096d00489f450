"""verl's multi-turn SFT over exported rows: tool schemas reach the template without nulls.

Parquet gives every schema the members of every other one as nulls, and a chat template prints them;
so the export keeps `tools` as JSON text, and this data set reads it back.
"""

from __future__ import annotations

import json
from typing import Any

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
