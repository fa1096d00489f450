"""One member of a panel gives one opinion on one run, whatever its servers do.

An opinion is judged, or unjudged with a reason and the party to blame; it is never 0 for want of an
answer. Each try goes to the next server of the pool that is healthy, after a back-off with jitter,
or after what the server asked for, and only while the retry budget lasts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import NamedTuple

from palio.judging.evidence import BYTES_PER_TOKEN
from palio.judging.llm.answer import Answer, UnusableError, read_answer
from palio.judging.llm.config import Member
from palio.judging.llm.document import Prompt
from palio.judging.llm.pacing import Clock, RetryBudget, Sleep
from palio.judging.llm.refutation import Checked, checked
from palio.judging.llm.replies import ReplyCache
from palio.judging.llm.server import Ask, CallError, Reply, Server
from palio.judging.llm.spans import Trace
from palio.judging.llm.spend import Meter, cost_of
from palio.records.base import digest
from palio.records.trajectory import Fault, FaultCode
from palio.records.verdict import Opinion

BACKOFF_S = 1.0
MAX_WAIT_S = 120.0
"""A server that asks for more than this will not answer within the batch."""
GROWTH = 4
"""A cut-off reply is asked for again with twice the budget, up to this many times the first."""
CUT_FACTOR = 6
"""A server that counts fewer than bytes / 4 / 6 prompt tokens has read only a part of the prompt:
no tokenizer averages 24 bytes a token on text."""
NOTES = {
    "span_absent": "a quote did not occur in the thinking. Copy quotes word for word.",
    "datum_absent": "a datum did not occur in an earlier result. Copy data as they stand there.",
    "candidates_absent": "the candidates of gate 4 were not found. Copy ids or names from results.",
    "out_of_bin": "the value was none of 0.1, 0.3, 0.5, 0.7, 0.9.",
    "inconsistent": "the gates were not answered in order up to the first that failed.",
    "contradicts_record": "gate 1 was answered no, but `tokens=` of some step is 30 or more.",
}
"""What a model is told when it is asked again; ours alone, since its reply may quote the agent."""
OTHER_NOTE = "it was not one whole JSON object of the required form."


class Shared(NamedTuple):
    """What all members of a panel share; `concurrency` bounds the requests of each in flight."""

    cache: ReplyCache
    meter: Meter
    retries: RetryBudget
    concurrency: int
    clock: Clock
    sleep: Sleep
    jitter: random.Random


class _Got(NamedTuple):
    reply: Reply
    model: str
    budget: int


class Asker:
    """One member with its servers."""

    def __init__(
        self, member: Member, prompt: Prompt, servers: Sequence[Server], shared: Shared
    ) -> None:
        self.member = member
        self.judge_id = member.judge_id(prompt)
        self._prompt = prompt
        self._servers = servers
        self._shared = shared
        self._seats = asyncio.Semaphore(shared.concurrency)
        self._turn = 0

    async def opinion(self, text: str, trace: Trace) -> Opinion:
        """The opinion on the run whose document is `text`."""
        need = len((self._prompt.system + text).encode()) / BYTES_PER_TOKEN + self.member.budget
        if self.member.context is not None and need > self.member.context:
            what = f"the record needs about {need:.0f} tokens, the model has {self.member.context}"
            return self.unjudged("context_exceeded", what, FaultCode.scorer_unavailable)
        note = ""
        last: tuple[str, str, int] = ("", "", 0)
        fallback: Opinion | None = None
        budget = self.member.budget
        for attempt in range(self.member.attempts):
            if attempt and not self._may_retry():
                break
            try:
                got = await self._reply(self._ask(text, note, budget), attempt)
                opinion, again = self._read(got, trace)
                if not again or fallback is not None:
                    return opinion
                fallback, note = opinion, again  # one more try to quote word for word
            except CallError as error:
                last = (error.reason, error.what, error.code)
                if not error.retryable and not self._others(error):
                    break
            except UnusableError as error:
                last = (error.reason, error.what, FaultCode.upstream_garbage)
                note = NOTES.get(error.reason, OTHER_NOTE)
                if error.reason == "truncated_reply":
                    budget = min(2 * budget, GROWTH * self.member.budget)
                if error.reason in ("silently_cut", "wrong_model", "refused_reply"):
                    break
        return fallback or self.unjudged(*last)

    def unjudged(self, reason: str, what: str, code: int) -> Opinion:
        """An opinion without a verdict: why, and who is to blame."""
        return Opinion(
            judge=self.judge_id,
            status="unjudged",
            model=self.member.model,
            prompt=self._prompt.digest,
            decoding=self.member.decoding(),
            reason=reason,
            explanation=what[:500],
            fault=Fault(
                code=code,
                what=what[:500],
                remedy="see that the judge's servers run and fit the model, then judge again",
            ),
        )

    def _may_retry(self) -> bool:
        if not self._shared.retries.allow():
            return False
        self._shared.meter.retried(self.member.model)
        return True

    def _others(self, error: CallError) -> bool:
        """Whether another server of the pool may do what this one refuses: a key, a model name."""
        return error.reason == "refused" and len(self._servers) > 1

    def _ask(self, text: str, note: str, budget: int) -> Ask:
        messages = [
            {"role": "system", "content": self._prompt.system},
            {"role": "user", "content": text},
        ]
        if note:
            messages[1]["content"] += f"\nAn earlier answer of yours was refused: {note}"
        return Ask(messages, self._prompt.schema, budget)

    async def _reply(self, ask: Ask, attempt: int) -> _Got:
        """A kept reply, or one from the next server."""
        decoding = {**self.member.decoding(), "budget": ask.budget}
        keys = {
            model: digest([model, decoding, ask.schema, ask.messages])
            for model in self.member.models
        }
        for model, key in keys.items():
            kept = self._shared.cache.get(key)
            if kept is not None:
                self._shared.meter.reused(model)
                return _Got(kept, model, ask.budget)
        if not attempt:
            self._shared.retries.request()
        if attempt:
            most = BACKOFF_S * 2 ** (attempt - 1)
            await self._shared.sleep(most * (0.5 + self._shared.jitter.random() / 2))
        async with self._seats:
            server, entry = await self._next(ask)
            reply = await self._from(server, entry, ask)
        self._usable(reply, server, ask)
        self._shared.cache.put(keys[server.model], reply)
        return _Got(reply, server.model, ask.budget)

    async def _next(self, ask: Ask) -> tuple[Server, list[float]]:
        """The next server that may be asked now, and the entry in its pace.

        Raises:
            CallError: there is none worth waiting for.
        """
        size = len(self._servers)
        self._turn += 1
        order = [self._servers[(self._turn + at) % size] for at in range(size)]
        while True:
            best = min(order, key=lambda server: server.wait())  # the first of equals
            wait = best.wait()
            if wait <= 0:
                entry = await best.pace.take(_size(ask) / BYTES_PER_TOKEN + ask.budget)
                if best.wait() <= 0:  # it may have failed for others meanwhile
                    best.breaker.enter()
                    return best, entry
                best.pace.settle(entry, 0.0)
                continue
            if all(server.breaker.hopeless for server in order):
                what = f"{best.url} failed again and again and is not asked any more"
                raise CallError("circuit_open", what, FaultCode.upstream_unreachable)
            if wait > MAX_WAIT_S:
                what = f"{best.url} asks to wait for {wait:.0f} s"
                raise CallError("rate_limited", what, FaultCode.upstream_rate_limited)
            await self._shared.sleep(wait)

    async def _from(self, server: Server, entry: list[float], ask: Ask) -> Reply:
        """The reply of a server whose breaker was entered."""
        try:
            reply = await server.ask(ask)
        except CallError as error:
            if error.unhealthy:
                server.breaker.failure()
            else:
                server.breaker.leave()
            if error.retry_after is not None:
                until = self._shared.clock() + error.retry_after
                server.paused_until = max(server.paused_until, until)
            raise
        except BaseException:
            server.breaker.leave()
            raise
        server.breaker.success()
        self._shared.meter.paid(server.model, reply)
        if reply.prompt_tokens is not None and reply.completion_tokens is not None:
            server.pace.settle(entry, reply.prompt_tokens + reply.completion_tokens)
        return reply

    def _usable(self, reply: Reply, server: Server, ask: Ask) -> None:
        """Refuse what must not be read as an answer.

        Raises:
            UnusableError: the reply is another model's, cut off, withheld, or of a cut prompt.
        """
        if not _serves(reply.model, server.model, self.member.served_as):
            what = f"{server.url} was asked for {server.model!r} and answers as {reply.model!r}"
            raise UnusableError("wrong_model", what)
        size = _size(ask)
        seen = reply.prompt_tokens
        if seen and seen < size / BYTES_PER_TOKEN / CUT_FACTOR:
            raise UnusableError("silently_cut", f"{server.url} read {seen} tokens of {size} bytes")
        if reply.finish_reason == "length":
            what = f"the reply did not end within {ask.budget} tokens"
            raise UnusableError("truncated_reply", what)
        if reply.finish_reason == "content_filter":
            raise UnusableError("refused_reply", "the server withheld the reply")
        read_answer(reply.content)

    def _read(self, got: _Got, trace: Trace) -> tuple[Opinion, str]:
        """The opinion, and what to tell the model if asking again may help ("" if not).

        Raises:
            UnusableError: the answer contradicts a plain fact of the record.
        """
        answer = read_answer(got.reply.content)
        if not answer.gates[0].passed and trace.long is not None:
            what = f"gate 1 is answered no, but step {trace.long} has 30 tokens or more"
            raise UnusableError("contradicts_record", what)
        found = checked(answer, trace)
        note = NOTES.get(found.overruled[-1].reason, "") if found.misquoted else ""
        return self._opinion(got, answer, found), note

    def _opinion(self, got: _Got, answer: Answer, found: Checked) -> Opinion:
        return Opinion(
            judge=self.judge_id,
            status="judged",
            model=got.model,
            prompt=self._prompt.digest,
            decoding={**self.member.decoding(), "budget": got.budget},
            quality=found.quality,
            stated=answer.value,
            gates=found.gates,
            overruled=found.overruled,
            explanation=answer.explanation,
            notes=found.notes,
            prompt_tokens=got.reply.prompt_tokens,
            completion_tokens=got.reply.completion_tokens,
            cost=cost_of(got.reply, self._shared.meter.price(got.model)),
        )


def _size(ask: Ask) -> int:
    """Bytes of the prompt."""
    return sum(len(message["content"].encode()) for message in ask.messages)


def _serves(served: str, asked: str, known: Sequence[str]) -> bool:
    """Whether a server's name for its model fits the one asked for.

    Servers add a date or a folder, or leave the organisation out; none gives no name at all.
    """
    if not served or "*" in known or served in known:
        return True
    ours, theirs = (name.casefold().rsplit("/", 1)[-1] for name in (asked, served))
    return theirs == ours or (
        bool(ours) and theirs.startswith((f"{ours}-", f"{ours}:", f"{ours}."))
    )
