"""TRL's trainer, scoring only the places that are trained on where TRL would score every place.

On a GPU TRL's fused head already does so. On a CPU it multiplies every position with the whole
vocabulary, which for a small model with 49,152 tokens costs more than half of all other products,
while a seventh of the positions is trained on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from palio.train.disk import WholeStates

IGNORED = -100


def sft_trainer() -> type[Any]:
    """The trainer class for this machine: TRL's own on a GPU, else TRL's with our loss."""
    import trl

    SFTTrainer: Any = trl.SFTTrainer  # type: ignore[attr-defined]  # noqa: N806 - a class

    class StockTrainer(WholeStates, SFTTrainer):  # type: ignore[misc]
        pass

    if torch.cuda.is_available():
        return StockTrainer

    class PlacesTrainer(StockTrainer):
        def compute_loss(
            self,
            model: Any,
            inputs: dict[str, Any],
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            if return_outputs or self.label_smoother or self.compute_loss_func:
                return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            total, hits, count = scored(model, inputs)
            spread = num_items_in_batch is not None and self.args.average_tokens_across_devices
            share = count if num_items_in_batch is None else num_items_in_batch
            self._metrics["train"]["mean_token_accuracy"].append(hits / max(1, count))
            loss = total / torch.as_tensor(share).clamp(min=1)
            return loss * self.accelerator.num_processes if spread else loss

    return PlacesTrainer


def scored(model: Any, inputs: dict[str, Any]) -> tuple[Tensor, int, int]:
    """Summed loss, places predicted rightly, places: of the labels of (B, T) rows."""
    labels = inputs["labels"][:, 1:]
    keep = (labels != IGNORED).any(0).nonzero().flatten()
    told = {
        key: inputs[key]
        for key in ("input_ids", "attention_mask", "position_ids")
        if inputs.get(key) is not None
    }
    mask = told.get("attention_mask")
    if mask is not None and bool(mask.all()):
        del told["attention_mask"]
    logits = model(**told, use_cache=False, logits_to_keep=keep).logits.flatten(0, 1).float()
    wanted = labels[:, keep].flatten()
    total = cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum")
    trained = wanted != IGNORED
    with torch.no_grad():
        hits = int(((logits.argmax(-1) == wanted) & trained).sum())
    return total, hits, int(trained.sum())
