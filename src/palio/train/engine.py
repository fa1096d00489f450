"""A checkpoint answers many conversations at once, and each gets what it would get alone.

Any number of threads call `complete`; one worker thread batches them: prompts that wait are read in
together, then every conversation steps by one token at a time. A conversation that comes back with
a longer prompt finds its slot again and only the new tokens are read.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from palio.broker.hangup import client_gone
from palio.broker.streaming import Tell
from palio.broker.upstream import RejectedError
from palio.train.admission import Listening, Slot, Slots, answered, broken, common, tell
from palio.train.cache import Decoder
from palio.train.checkpoint import checkpoint_name, load_checkpoint
from palio.train.drawing import draw
from palio.train.model import Qwen3
from palio.train.requests import Wish, Written, completion, read_request
from palio.train.streamed import Stream
from palio.train.tokenizer import ChatTokenizer
from palio.train.transcript import Transcript

_PATIENCE = 6
"""Steps that a prompt waits for others to be read in with; reading alone costs a step of all."""


class Sampled(NamedTuple):
    """Tokens of one completion, its end token included, and the log-probability of each.

    Attributes:
        logprobs: in nats, of the distribution that was sampled from: logits divided by the
            temperature (by 1 where it is 0), before `top_p`.
    """

    ids: list[int]
    logprobs: list[float]


class _Job:
    """A completion on its way; `logprobs` is None where nobody wants them, `heard` nobody hears."""

    def __init__(
        self, wish: Wish, ids: list[int], *, scored: bool = False, stream: Stream | None = None
    ) -> None:
        self.wish = wish
        self.ids = ids
        self.rng = random.Random(wish.seed)
        self.written: list[int] = []
        self.logprobs: list[float] | None = [] if scored else None
        self.waited = 0
        self.done: Future[list[int]] = Future()
        self.gone = client_gone()
        self.heard = Listening(partial(self._hear, stream)) if stream else None

    def _hear(self, stream: Stream) -> bool:
        return stream.hear(self.written, self.logprobs or ())


_Slot = Slot[_Job]


class Engine:
    """One model behind `complete`; use it as a context manager, or `close` it.

    Args:
        checkpoint: a checkpoint folder.
        slots: conversations that are kept ready; more may ask, they wait.
        max_tokens: of a completion whose request names no limit.
        device: of the weights and the cache, as torch names it.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        slots: int = 64,
        max_tokens: int = 256,
        threads: int = 1,
        device: str = "cpu",
    ) -> None:
        loaded = load_checkpoint(checkpoint)
        model = loaded.model.to(device)
        self._start(
            model, loaded.tokenizer, checkpoint_name(checkpoint), slots, max_tokens, threads
        )

    @classmethod
    def of(
        cls,
        model: Qwen3,
        tokenizer: ChatTokenizer,
        *,
        name: str = "palio",
        slots: int = 64,
        max_tokens: int = 256,
        threads: int = 1,
    ) -> Engine:
        """An engine over a model in memory."""
        engine = cls.__new__(cls)
        engine._start(model, tokenizer, name, slots, max_tokens, threads)
        return engine

    def _start(
        self,
        model: Qwen3,
        tokenizer: ChatTokenizer,
        name: str,
        slots: int,
        max_tokens: int,
        threads: int,
    ) -> None:
        self.name = name
        self.max_tokens = max_tokens
        self._tokenizer = tokenizer
        self._transcript = Transcript(tokenizer)
        self._lock = threading.Lock()
        self._decoder = Decoder(model, slots)
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._slots = Slots(slots, self._inbox)
        self._count = 0
        self._closed = False
        self._threads = threads
        self._worker = threading.Thread(target=self._work, name="palio-engine", daemon=True)
        self._worker.start()

    @property
    def models(self) -> tuple[str, ...]:
        """The names under which the model can be asked."""
        return (self.name,)

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return not self._closed and self._worker.is_alive()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One OpenAI chat completion; thread-safe. Offered tools are not shown to the model.

        Raises:
            RejectedError: the request is malformed or longer than the model's context.
            UpstreamError: the engine is closed or broke.
        """
        return self._answer(body)

    def stream(self, body: dict[str, Any], tell: Tell) -> None:
        """The same as chunks, told while it is written; see `StreamingUpstream`."""
        self._answer(body, tell)

    def _answer(self, body: dict[str, Any], tell: Tell | None = None) -> dict[str, Any]:
        wish = read_request(body, self.max_tokens)
        with self._lock:
            ids = self._transcript.prompt(wish.messages)
            self._count += 1
            of_it: dict[str, Any] = {"name": self.name, "number": self._count}
        decode = self._tokenizer.decode
        stream = Stream(body, wish, ids, decode, tell=tell, **of_it) if tell else None
        job = self._finished(wish, ids, scored=wish.logprobs, stream=stream)
        written = list(job.written)  # what a stop string ended may get a token more
        with self._lock:
            self._transcript.remember(ids, written)
        known = Written(ids, written, job.logprobs or ())
        answer = completion(body, wish, known, decode, end=self._tokenizer.end, **of_it)
        if stream:
            stream.end(answer)
        return answer

    def sample(
        self, ids: Sequence[int], *, max_tokens: int, temperature: float, top_p: float, seed: int
    ) -> Sampled:
        """Tokens in, tokens out; thread-safe.

        Raises:
            RejectedError: the prompt is longer than the model's context.
            UpstreamError: the engine is closed or broke.
        """
        job = self._finished(Wish((), max_tokens, temperature, top_p, seed), list(ids), scored=True)
        return Sampled(job.written, job.logprobs or [])

    def _finished(
        self, wish: Wish, ids: list[int], *, scored: bool, stream: Stream | None = None
    ) -> _Job:
        """The job of a prompt, when it is done, or enough of it heard."""
        room = self._decoder.model.config.max_positions - len(ids)
        if room < 1:
            raise RejectedError(
                f"the prompt has {len(ids)} tokens, and the model's maximum context length is "
                f"{self._decoder.model.config.max_positions}",
                remedy="end the conversation earlier",
            )
        wish = wish._replace(max_tokens=min(wish.max_tokens, room))
        job = _Job(wish, ids, scored=scored, stream=stream)
        if self._closed:
            raise broken("the engine is closed")
        self._inbox.put(job)
        wait = job.heard.until if job.heard else answered
        wait(job.done, self._worker, "engine")
        return job

    def close(self) -> None:
        """Stop the worker; waiting requests fail."""
        self._closed = True
        self._inbox.put(None)
        self._worker.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the worker thread

    def _work(self) -> None:
        torch.set_num_threads(self._threads)
        why = self._slots.serve("engine", self._read_in, self._step)
        self._closed = True
        self._slots.refuse(why)

    def _read_in(self) -> None:
        """Give waiting jobs a slot and read their prompts, several at once where that pays."""
        free, waiting = self._slots.free(), self._slots.waiting
        active = len(self._slots.all) - len(free)
        for job in waiting:
            job.waited += 1
        ripe = len(waiting) >= max(1, active // 6) or any(job.waited > _PATIENCE for job in waiting)
        if not free or not waiting or not ripe:
            return
        taken: list[tuple[_Slot, int]] = []
        for job in waiting[: len(free)]:
            slot, shared = _best_slot(free, job.ids)
            free.remove(slot)
            slot.job, slot.ids = job, slot.ids[:shared]
            taken.append((slot, shared))
        del waiting[: len(taken)]
        taken.sort(key=lambda pair: len(pair[0].job.ids) - pair[1] if pair[0].job else 0)
        while taken:
            part, taken = _similar(taken)
            rest = [slot.job.ids[shared:] for slot, shared in part if slot.job]
            logits = self._decoder.advance(
                [slot.row for slot, _ in part], rest, [shared for _, shared in part]
            )
            for (slot, _), ids in zip(part, rest, strict=True):
                slot.ids = slot.ids + ids
            self._choose([slot for slot, _ in part], logits)

    def _step(self, active: list[_Slot]) -> None:
        """One more token for every conversation that has a job."""
        last = [[slot.job.written[-1]] for slot in active if slot.job]
        logits = self._decoder.advance(
            [slot.row for slot in active], last, [len(slot.ids) for slot in active]
        )
        for slot, ids in zip(active, last, strict=True):
            slot.ids.append(ids[0])
        self._choose(active, logits)

    def _choose(self, slots: Sequence[_Slot], logits: Tensor) -> None:
        """Pick the next token of each conversation and finish those that are done."""
        jobs = [slot.job for slot in slots if slot.job]
        scored = any(job.logprobs is not None for job in jobs)
        wishes, rngs = [job.wish for job in jobs], [job.rng for job in jobs]
        drawn = draw(logits, wishes, rngs, scored=scored)
        for place, (slot, job) in enumerate(zip(slots, jobs, strict=True)):
            token = drawn.tokens[place]
            job.written.append(token)
            if job.logprobs is not None:
                job.logprobs.append(drawn.logprobs[place])
            if job.heard is not None:
                job.heard.told()
            if token == self._tokenizer.end or len(job.written) >= job.wish.max_tokens:
                self._slots.release(slot)
                tell(job.done, job.written)


def _best_slot(free: Sequence[_Slot], ids: Sequence[int]) -> tuple[_Slot, int]:
    """The slot that holds the longest prefix of the ids, the longest unused one on a tie."""
    best = max(free, key=lambda slot: (common(slot.ids, ids), -slot.used))
    return best, common(best.ids, ids)


def _similar(
    taken: list[tuple[_Slot, int]],
) -> tuple[list[tuple[_Slot, int]], list[tuple[_Slot, int]]]:
    """The shortest prompts up to twice the first one's length, and the rest."""
    lengths = [len(slot.job.ids) - shared for slot, shared in taken if slot.job]
    cut = next((at for at, n in enumerate(lengths) if n > 2 * lengths[0] + 8), len(taken))
    return taken[:cut], taken[cut:]
