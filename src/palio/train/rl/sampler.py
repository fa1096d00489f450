"""Tokens in, tokens out, with the log-probability of each: samplers behind one method.

None of them ever samples with dropout: our engine's model has none, and `TransformersSampler`
switches the live model to evaluation while it samples.
"""

from __future__ import annotations

import queue
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from palio.broker.hangup import client_gone
from palio.train.admission import Listening, answered, broken, tell, unwanted
from palio.train.drawing import draw
from palio.train.engine import Engine, Sampled

_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__annotations__ else "past_key_values"
"""Transformers 5.24 renamed it; older ones of the range that palio takes have the old name."""
_GATHER_S = 0.01
"""How long the batcher waits for further prompts; a turn of a rollout takes longer than that."""


class Decoding(NamedTuple):
    """How one completion is sampled; equal prompts and seeds give equal tokens.

    Attributes:
        temperature: 0: the likeliest token every time.
    """

    max_tokens: int
    temperature: float
    top_p: float
    seed: int


class Sampler(Protocol):
    """Gives a completion of a prompt; called from many threads."""

    def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
        """The tokens after `ids`, up to the end of the turn or the limit.

        Raises:
            RejectedError: the prompt is longer than the model's context.
            UpstreamError: the sampler broke or is closed.
        """


class EngineSampler:
    """Our engine: continuous batching of models of ours; several engines share the rollouts out.

    A rollout asks from one thread, and its thread stays with one engine, which still holds what the
    rollout has read. What is sampled does not depend on how many engines there are.
    """

    def __init__(self, *engines: Engine) -> None:
        self._engines = engines
        self._seats: dict[int, int] = {}
        self._lock = threading.Lock()

    def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
        """See `Sampler`."""
        with self._lock:
            seat = self._seats.setdefault(threading.get_ident(), len(self._seats))
        engine = self._engines[seat % len(self._engines)]
        return engine.sample(ids, **decoding._asdict())


Hear = Callable[[Sampled], bool]
"""Is given all that was sampled so far, each time there is more; False: that is enough."""


class Asked:
    """One completion that somebody waits for, with random numbers of its own."""

    def __init__(self, ids: Sequence[int], decoding: Decoding, hear: Hear | None = None) -> None:
        self.ids, self.decoding = list(ids), decoding
        self.rng = random.Random(decoding.seed)
        self.written = Sampled([], [])
        self.done: Future[Sampled] = Future()
        self.gone = client_gone()
        self.heard = Listening(partial(hear, self.written)) if hear else None

    def add(self, token: int, logprob: float) -> None:
        """Another token."""
        self.written.ids.append(token)
        self.written.logprobs.append(logprob)
        if self.heard is not None:
            self.heard.told()


class QueuedSampler(ABC):
    """A `Sampler` whose one thread takes what is asked from a queue; a context manager.

    Args:
        name: of the thread, which a subclass starts when it is ready.
    """

    def __init__(self, name: str) -> None:
        self._inbox: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name=name, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._inbox.put(None)
        self._worker.join()

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return self._worker.is_alive()

    def sample(self, ids: Sequence[int], decoding: Decoding, hear: Hear | None = None) -> Sampled:
        """See `Sampler`; with `hear`, which is called in this thread, up to where that ends it."""
        if not self._worker.is_alive():
            raise broken("the sampler is closed")
        asked = Asked(ids, decoding, hear)
        self._inbox.put(asked)
        if asked.heard is None:
            return answered(asked.done, self._worker, "sampler")
        asked.heard.until(asked.done, self._worker, "sampler")
        return Sampled(list(asked.written.ids), list(asked.written.logprobs))

    @abstractmethod
    def _work(self) -> None:
        """Answer what is in the queue until a None is; every `Asked` gets a result or a fault."""


class TransformersSampler(QueuedSampler):
    """Any causal language model of `transformers`, batched over the prompts that wait.

    The model is used as it is, so it must not be trained meanwhile. A request's random numbers are
    its own; the last bits of the logits depend on which prompts shared its batch.

    Args:
        model: with or without an adapter, on any device.
        end: id of the token that ends a turn.
        most: prompts of one batch.
    """

    def __init__(self, model: nn.Module, *, end: int, most: int = 32) -> None:
        super().__init__("palio-sampler")
        self._model, self._end, self._most = model, end, most
        self._last = {"logits_to_keep": 1} if _can_keep_last(model) else {}
        self._worker.start()

    def _work(self) -> None:
        closing = False
        while not closing:
            rows, closing = self._waiting()
            rows = [row for row in rows if not unwanted(row)]
            if not rows:
                continue
            try:
                with sampling_mode(self._model):
                    self._complete(rows)
            except Exception as error:  # noqa: BLE001 - the callers must hear of it
                fault = broken(f"the sampler broke: {type(error).__name__}: {error}")
                for row in rows:
                    if row.done.set_running_or_notify_cancel():
                        row.done.set_exception(fault)
            else:
                for row in rows:
                    tell(row.done, row.written)

    def _waiting(self) -> tuple[list[Asked], bool]:
        """The prompts of the next batch, and whether to stop after them."""
        rows: list[Asked] = []
        first = self._inbox.get()
        while first is not None:
            rows.append(first)
            if len(rows) >= self._most:
                return rows, False
            try:
                first = self._inbox.get(timeout=_GATHER_S)
            except queue.Empty:
                return rows, False
        return rows, True

    @torch.no_grad()
    def _complete(self, rows: Sequence[Asked]) -> None:
        device = next(self._model.parameters()).device
        width = max(len(row.ids) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for at, row in enumerate(rows):
            ids[at, width - len(row.ids) :] = torch.tensor(row.ids)
            mask[at, width - len(row.ids) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        past: Any = None
        open_rows = True
        while open_rows:
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            out = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=places,
                use_cache=True,
                **{_CACHE: past},
                **self._last,
            )
            past = out[_CACHE]
            going = [at for at, row in enumerate(rows) if not self._is_done(row)]
            add_next(out.logits[going, -1], [rows[at] for at in going])
            open_rows = not all(self._is_done(row) for row in rows)
            ids = torch.tensor([row.written.ids[-1] for row in rows], device=device)[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], 1)

    def _is_done(self, row: Asked) -> bool:
        written = row.written.ids
        return bool(written) and (
            written[-1] == self._end or len(written) >= row.decoding.max_tokens or unwanted(row)
        )


def add_next(logits: Tensor, rows: Sequence[Asked]) -> None:
    """Draw each row's next token from its (rows, vocabulary) logits."""
    drawn = draw(logits, [row.decoding for row in rows], [row.rng for row in rows])
    for row, token, logprob in zip(rows, drawn.tokens, drawn.logprobs, strict=True):
        row.add(token, logprob)


def _can_keep_last(model: nn.Module) -> bool:
    """Whether it can leave out the logits of all but the last place.

    With 151,936 entries those of 32 prompts of 14,000 tokens would be 136 GB.
    """
    whole: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return "logits_to_keep" in signature(whole.forward).parameters


@contextmanager
def sampling_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, dropout off, and back to what each part was in before."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
