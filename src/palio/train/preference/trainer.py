"""TRL's KTO, trained on nothing but what the assistant wrote.

Stock KTO takes everything after the prompt for the completion: it trains on tool results and on
user headers of a conversation with several turns, and its KL estimate counts them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference, KTOTrainer
from trl.trainer.utils import pad

from palio.train.disk import WholeStates
from palio.train.preference.labels import Labelled
from palio.train.rows import plain_digest

_COLUMNS = ["completion_mask", "KL_completion_mask"]


@dataclass
class MaskedCollator(DataCollatorForUnpairedPreference):
    """TRL's collator, with the rows' own masks of the completion."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """A padded batch; `completion_mask` and `KL_completion_mask` are (B, T) of 0 and 1."""
        output: dict[str, Any] = super().torch_call(examples)
        for prefix in ("", "KL_"):
            masks = [
                torch.tensor([0] * len(row["prompt_ids"]) + list(row[f"{prefix}completion_mask"]))
                for row in examples
            ]
            padded = pad(masks, padding_value=0, padding_side="right")
            assert padded.shape == output[f"{prefix}input_ids"].shape
            output[f"{prefix}completion_mask"] = padded
        return output


class MaskedKtoTrainer(WholeStates, KTOTrainer):
    """`KTOTrainer` over rows that hold token ids and masks; see `kto_dataset`."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """Nothing: the rows are tokens already, and tokenising text again could change them."""
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[no-untyped-call]
        self._signature_columns = list(dict.fromkeys([*self._signature_columns, *_COLUMNS]))

    def ask_reference(self) -> None:
        """Ask the start once for all epochs: what it says does not change.

        TRL's own `precompute_ref_log_probs` does so before the trainer can be given other kernels,
        and keeps the answers in a file.
        """
        size = self.args.per_device_train_batch_size
        told: dict[str, list[float]] = {"ref_logps": [], "ref_KL_logps": []}
        for start in range(0, len(self.train_dataset), size):
            rows = self.train_dataset[start : start + size]
            batch = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
            padded = {
                name: value.to(self.accelerator.device)
                for name, value in self.data_collator(batch).items()
            }
            found = self.compute_ref_log_probs(self.ref_model or self.model, padded)  # type: ignore[no-untyped-call]
            for name, values in zip(told, found, strict=True):
                told[name] += values.tolist()
        for name, values in told.items():
            self.train_dataset = self.train_dataset.add_column(name, values)
        self.precompute_ref_logps = True


def kto_dataset(rows: Sequence[Labelled], batch: int) -> Dataset:
    """Rows in their order, each with another completion of its batch for the KL estimate.

    Args:
        rows: scored rows; each run of `batch` is one batch.
        batch: rows of a batch.
    """
    columns: dict[str, list[Any]] = {
        "prompt_ids": [list(row.prompt) for row in rows],
        "completion_ids": [list(row.completion) for row in rows],
        "completion_mask": [list(row.mask) for row in rows],
        "label": [bool(row.label) for row in rows],
    }
    for name in ("completion_ids", "completion_mask"):
        values = columns[name]
        columns[f"KL_{name}"] = [
            values[at - 1 if at % batch else min(at + batch, len(values)) - 1]
            for at in range(len(values))
        ]
    return Dataset.from_dict(columns)


def dataset_digest(dataset: Dataset) -> str:
    """Digest of what the rows of `kto_dataset` teach: ids, masks and labels, in order."""
    names = ("prompt_ids", "completion_ids", "completion_mask", "label")
    return plain_digest(zip(*(list(dataset[name]) for name in names), strict=True))
