"""Trained weights become those of a checkpoint, and what rounding takes from them is told."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palio.records import Record, from_json, to_json
from palio.train.backends.carried import (
    Learned,
    Origin,
    Past,
    fresh,
    is_low,
    mark_of,
    own_weights,
    read_past,
    rounds,
    together,
    write_past,
)
from palio.train.backends.weights import load_model
from palio.train.disk import saving
from palio.train.recipe import PretrainedModel

LOG = logging.getLogger(__name__)
ROUNDING = "rounding.json"
MATERIAL = 0.25
"""Share of a stage's update beyond which its rounding is worth a warning. SFT at 3e-5 stays below
it; 200 updates of KTO at 5e-6 lose 0.46, 100 of GRPO at 1e-6 0.94 (width 2560, rank 32)."""


class Rounding(Record, frozen=True):
    """What the weights that a checkpoint is served with lack of its stage's update.

    Attributes:
        dtype: of those weights.
        kept: <change of the served weights, update> / <update, update>; 1 is right on average.
        error: |change of the served weights - update| / |update|, in Euclid's norm; 0 is exact.
        exact: whether `unmerged` has the update as it was trained.
    """

    dtype: str
    kept: float
    error: float
    exact: bool


class _Sums:
    """Inner products over all matrices."""

    def __init__(self) -> None:
        self.kept = self.wrong = self.whole = 0.0

    def add(self, change: Tensor, update: Tensor) -> None:
        self.kept += float((change * update).sum(dtype=torch.float64))
        self.whole += float(update.square().sum(dtype=torch.float64))
        self.wrong += float((change - update).square().sum(dtype=torch.float64))

    def told(self, dtype: str, *, exact: bool) -> Rounding:
        """A stage that learned nothing loses nothing."""
        whole = self.whole
        kept, error = (self.kept / whole, (self.wrong / whole) ** 0.5) if whole else (1.0, 0.0)
        return Rounding(dtype=dtype, kept=round(kept, 4), error=round(error, 4), exact=exact)


@torch.no_grad()
def merged(
    trained: Any, model: PretrainedModel, start: Path | None, seed: int, folder: Path, place: Path
) -> Any:
    """A plain model with the adapter merged; over 16-bit weights, `unmerged` is written as well.

    Args:
        trained: under PEFT; float32 weights are merged in place.
        model: the recipe's.
        start: checkpoint of the stage before.
        seed: that the stage began with.
        folder: where the checkpoint is written.
        place: where it will be.
    """
    if not rounds(model):
        return trained.merge_and_unload()
    past = read_past(start) if start is not None else None
    before, now = past.learned if past is not None else {}, fresh(trained)
    whole = together(before, now)
    weights = own_weights(trained)
    dtype = getattr(torch, model.dtype)
    if past is not None:
        base = past.origin.place(start) if start is not None else None
        seed, mark = past.origin.seed, past.origin.mark
    else:
        base = start
        mark = mark_of({name: weights[f"{name}.weight"] for name in whole}, dtype)
    named = os.path.relpath(base, place) if base is not None else ""
    sums = _Sums()
    served = {name: value.to("cpu") for name, value in _rounded(weights, before, now, dtype, sums)}
    with saving("the update", folder, half=folder):
        write_past(folder, Past(Origin(base=named, seed=seed, mark=mark), whole), model)
        _tell(sums.told(model.dtype, exact=True), folder)
    return _plain(trained.config, served, dtype)


def _rounded(
    weights: Mapping[str, Tensor], before: Learned, now: Learned, dtype: torch.dtype, sums: _Sums
) -> Iterator[tuple[str, Tensor]]:
    """Each weight with all updates, summed in float32 and rounded once."""
    for name, value in weights.items():
        of = name.removesuffix(".weight")
        if of not in now:
            yield name, value.to(dtype)
            continue
        base = value.to(dtype).float()
        update = now[of].delta(base.device)
        earlier = base + before[of].delta(base.device) if of in before else base
        served = (earlier + update).to(dtype)
        sums.add(served.float() - earlier.to(dtype).float(), update)
        yield name, served


@torch.no_grad()
def lowered(
    trained: Any, model: PretrainedModel, start: Path | None, seed: int, folder: Path
) -> Any:
    """Weights that were trained whole in float32, in the recipe's dtype; says what that costs."""
    dtype = getattr(torch, model.dtype)
    high = [name for name, value in trained.named_parameters() if value.dtype == torch.float32]
    if not is_low(model.dtype) or not high:
        return trained
    if all(torch.equal(held, held.to(dtype).float()) for held in map(trained.get_parameter, high)):
        return trained.to(dtype)
    sums = _Sums()
    began: Mapping[str, Tensor] = load_model(model, start, seed).state_dict()
    for name in high:
        value = trained.get_parameter(name).detach().cpu()
        first = began[name].to(dtype).float()
        sums.add(value.to(dtype).float() - first, value - first)
    with saving("the weights", folder, half=folder):
        folder.mkdir(parents=True, exist_ok=True)
        _tell(sums.told(model.dtype, exact=False), folder)
    return trained.to(dtype)


def rounding_counts(checkpoint: Path) -> dict[str, int]:
    """What the manifests of a checkpoint and its stage tell of `Rounding`, in per mille.

    Args:
        checkpoint: as it is written, or as it stands.
    """
    path = checkpoint / ROUNDING
    if not path.is_file():
        return {}
    told = from_json(path.read_bytes(), Rounding, where=str(path))
    return {
        "served_kept_permille": round(1000 * told.kept),
        "served_error_permille": round(1000 * told.error),
    }


def _tell(told: Rounding, folder: Path) -> None:
    (folder / ROUNDING).write_bytes(to_json(told))
    if told.error <= MATERIAL:
        return
    remedy = (
        "the next stage has all of it; serve `unmerged` over the weights that the run began with "
        '(vllm serve --enable-lora), or say dtype = "float32"'
        if told.exact
        else 'say dtype = "float32" in [model]; with `bf16` in [stage.trl] products stay as fast'
    )
    LOG.warning(
        "%s: %s weights keep %.0f%% of what this stage learned (error %.2f of it): %s",
        folder,
        told.dtype,
        100 * told.kept,
        told.error,
        remedy,
    )


def _plain(config: Any, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    made.load_state_dict(weights, assign=True)
    made.tie_weights()
    return made
