"""A pretrained model answers many conversations at once and reads nothing twice.

Each conversation has a slot: its tokens, and their keys and values. A conversation that comes back
longer finds its slot again and only the new tokens are read; a new one copies what it shares with
any slot, such as the tools and the system prompt. New prompts join while others are answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from palio.train.admission import Slot, Slots, common, tell
from palio.train.backends.attention import NAME
from palio.train.rl.sampler import Asked, QueuedSampler, TransformersSampler, add_next

_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__annotations__ else "past_key_values"
_GROWTH = 512
_CHUNK = 1024
"""Tokens of a prompt that are read at once: the scores of a whole long prompt need much memory."""


class SlotCache:
    """Keys and values of `slots` conversations, in the form that transformers' models ask for."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._length = 0
        self._held: list[list[Tensor]] = []
        self._rows = slice(0, 0)
        self._places = torch.empty(0)
        self._reach = 0

    def aim(self, rows: slice, places: Tensor, length: int) -> Tensor:
        """Say which rows are read next, and at which (B, T) places.

        Args:
            rows: neighbouring slots.
            places: of the tokens in their conversations.
            length: room that every slot needs.

        Returns:
            (B, 1, T, reach): which places each may look at.
        """
        if length > self._length:
            self._length = -(-length // _GROWTH) * _GROWTH
            self._held = [[self._grown(old) for old in pair] for pair in self._held]
        self._rows, self._places = rows, places
        self._reach = int(places.max()) + 1
        seen = torch.arange(self._reach, device=places.device)
        return (seen <= places[:, :, None])[:, None]

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep (B, groups, T, d) of a layer; returns all that its rows hold up to the reach."""
        if layer == len(self._held):
            shape = (self._slots, keys.shape[1], self._length, keys.shape[3])
            self._held.append([keys.new_zeros(shape), keys.new_zeros(shape)])
        which = torch.arange(len(keys), device=keys.device)[:, None]
        out = []
        for held, new in zip(self._held[layer], (keys, values), strict=True):
            rows = held[self._rows]
            rows[which, :, self._places] = new.transpose(1, 2)
            out.append(rows[:, :, : self._reach])
        return out[0], out[1]

    def get_seq_length(self, *_: Any) -> int:
        """Asked by models that number places themselves; ours are told them."""
        return 0

    def copy(self, source: int, target: int, count: int) -> None:
        """Give a slot the first `count` places of another."""
        for pair in self._held:
            for held in pair:
                held[target, :, :count] = held[source, :, :count]

    def _grown(self, old: Tensor) -> Tensor:
        made = old.new_zeros((*old.shape[:2], self._length, old.shape[3]))
        made[:, :, : old.shape[2]] = old
        return made


_Slot = Slot[Asked]


class SlotSampler(QueuedSampler):
    """`rl.sampler.Sampler` over a model that is not trained meanwhile; a context manager.

    In float32 a greedy answer is the same tokens whoever shares its step. In bfloat16 rounding
    depends on how many rows a product has, and two tokens may be equally likely: of 32 answers of
    12 tokens 30 to 32 were those of one by one (random models of two architectures, on a CPU).

    Args:
        model: a causal model of transformers with full attention, in evaluation mode.
        end: id of the token that ends a turn.
        slots: conversations that are kept.
    """

    def __init__(self, model: nn.Module, *, end: int, slots: int = 8) -> None:
        super().__init__("palio-slots")
        self._model, self._end = model, end
        self._device = next(model.parameters()).device
        self._cache = SlotCache(slots)
        self._slots = Slots(slots, self._inbox)
        self._worker.start()

    # ---- the worker thread

    @torch.no_grad()
    def _work(self) -> None:
        self._slots.refuse(self._slots.serve("sampler", self._read_in, self._step))
        self._cache = SlotCache(len(self._slots.all))  # 14,000 tokens of eight slots of a 4B: 17 GB

    def _read_in(self) -> None:
        """Give waiting prompts a slot and read what is new in them."""
        while self._slots.waiting and (free := self._slots.free()):
            job = self._slots.waiting.pop(0)
            slot, shared = self._placed(job.ids, free)
            slot.job, slot.ids = job, job.ids[:shared]
            for start in range(shared, len(job.ids), _CHUNK):
                part = job.ids[start : start + _CHUNK]
                places = torch.arange(start, start + len(part), device=self._device)[None]
                rows = slice(slot.row, slot.row + 1)
                logits = self._forward(rows, torch.tensor([part]), places)
            slot.ids = list(job.ids)
            self._choose([slot], logits)

    def _placed(self, ids: Sequence[int], free: Sequence[_Slot]) -> tuple[_Slot, int]:
        """A free slot, and how many of the ids it holds by now."""
        best = max(self._slots.all, key=lambda slot: (common(slot.ids, ids), slot.job is None))
        shared = common(best.ids, ids)
        whole = best.job is None and (shared == len(best.ids) or shared == len(ids) - 1)
        if whole:
            return best, shared
        # a conversation that may come back is worth more than one that was left long ago
        oldest = min(free, key=lambda slot: slot.used)
        if shared and oldest is not best:
            self._cache.copy(best.row, oldest.row, shared)
        return oldest, shared

    def _step(self, active: list[_Slot]) -> None:
        """One more token for every slot that has a job; what rows in between get is never read."""
        top = active[-1].row + 1
        last = [[slot.job.written.ids[-1] if slot.job else 0] for slot in self._slots.all[:top]]
        places = torch.tensor([[len(slot.ids)] for slot in self._slots.all[:top]])
        logits = self._forward(slice(0, top), torch.tensor(last), places.to(self._device))
        for slot in active:
            slot.ids.append(last[slot.row][0])
        self._choose(active, logits[[slot.row for slot in active]])

    def _forward(self, rows: slice, ids: Tensor, places: Tensor) -> Tensor:
        """Logits (B, vocabulary) after the last of the ids."""
        room = max(int(places.max()), *(len(slot.ids) for slot in self._slots.all)) + 1
        mask = self._cache.aim(rows, places, room)
        out = self._model(
            input_ids=ids.to(self._device),
            attention_mask=mask,
            position_ids=places,
            use_cache=True,
            logits_to_keep=1,
            **{_CACHE: self._cache},
        )
        scores: Tensor = out.logits[:, -1]
        return scores

    def _choose(self, slots: Sequence[_Slot], logits: Tensor) -> None:
        jobs = [slot.job for slot in slots if slot.job]
        add_next(logits, jobs)
        for slot, job in zip(slots, jobs, strict=True):
            written = job.written.ids
            if written[-1] == self._end or len(written) >= job.decoding.max_tokens:
                self._slots.release(slot)
                tell(job.done, job.written)


_MASKED = ("sdpa", NAME)
"""Attentions that take a mask of ours as it is meant: eager ones add it to the scores, in which
True is 1, and flash ones take none."""


def sampler_of(model: Any, *, end: int, slots: int = 8) -> SlotSampler | TransformersSampler:
    """Slots for models in which every layer looks at all places; others are read anew each turn.

    So are those with an attention that does not know the slots' masks.
    """
    config = model.config
    if config._attn_implementation in _MASKED and not _has_windows(config):
        return SlotSampler(model, end=end, slots=slots)
    return TransformersSampler(model, end=end, most=slots)


def _has_windows(config: Any) -> bool:
    """Whether a layer looks at the last places only; older kinds tell no `layer_types`."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return not set(kinds) <= {"full_attention"}
    window = getattr(config, "sliding_window", None)
    return bool(window) and bool(getattr(config, "use_sliding_window", True))
