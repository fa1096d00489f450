"""One endpoint through the official client: a reply, or one typed failure that says what to do."""

from __future__ import annotations

import asyncio
import email.utils
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from palio.judging.llm.config import Endpoint, Member, Structure
from palio.judging.llm.pacing import Breaker, Clock, Pace, Sleep
from palio.records.base import Record
from palio.records.faults import MissingDependencyError
from palio.records.trajectory import FaultCode

if TYPE_CHECKING:
    import openai

_CONTEXT = re.compile(
    r"context|too (?:long|many tokens)|maximum.{0,30}(?:length|tokens)|input is too large", re.I
)
_FORM = re.compile(r"response_?format|json_?(?:schema|object)|grammar|guided|structured", re.I)


class Reply(Record, frozen=True):
    """What a model answered, as the server sent it."""

    content: str | None
    finish_reason: str = ""
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class CallError(Exception):
    """A request that brought no completion.

    Attributes:
        reason: short name, e.g. "rate_limited".
        code: the fault code; its thousands say who is to blame.
        retryable: whether this or another server may answer the same request.
        unhealthy: whether it speaks against the server.
        retry_after: seconds that the server asks to wait, None if it does not say.
    """

    def __init__(
        self,
        reason: str,
        what: str,
        code: int,
        *,
        retryable: bool = False,
        unhealthy: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(what)
        self.reason, self.what, self.code = reason, what, code
        self.retryable, self.unhealthy, self.retry_after = retryable, unhealthy, retry_after


class Ask(NamedTuple):
    """One request."""

    messages: list[dict[str, str]]
    schema: dict[str, Any]
    budget: int


def load_client() -> Any:
    """The module of the official client.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import openai
    except ImportError as error:
        raise MissingDependencyError(
            "a judge that asks a model needs the package `openai`",
            remedy="pip install 'palio[judge]', or judge with --judge evidence",
        ) from error
    return openai


class Server:
    """One endpoint of a member; all of it runs on one event loop.

    Args:
        endpoint: where.
        member: what is asked and how.
        key: API key, "" for none.
        clock: seconds.
        sleep: waits for seconds.
    """

    def __init__(
        self, endpoint: Endpoint, member: Member, key: str, clock: Clock, sleep: Sleep
    ) -> None:
        self.model = endpoint.model or member.model
        self.url = endpoint.url.rstrip("/")
        self.breaker = Breaker(clock)
        self.pace = Pace(endpoint.requests_per_minute, endpoint.tokens_per_minute, clock, sleep)
        self.paused_until = 0.0
        self._clock = clock
        self._member = member
        self._key = key
        self._structure: Structure = (
            "json_schema" if member.structure == "auto" else (member.structure)
        )
        self._steps_down = member.structure == "auto"
        module = load_client()
        self._openai = module
        self._client: openai.AsyncOpenAI = module.AsyncOpenAI(
            base_url=self.url, api_key=key or "none", max_retries=0, timeout=member.patience
        )

    def wait(self) -> float:
        """Seconds until the server may be asked."""
        return max(self.breaker.wait(), self.paused_until - self._clock(), 0.0)

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()

    async def ask(self, ask: Ask) -> Reply:
        """One completion.

        Raises:
            CallError: there is none.
        """
        while True:
            structure = self._structure
            try:
                return await self._try(ask, structure)
            except CallError as error:
                if error.reason != "form_refused" or not self._steps_down:
                    raise
                if structure == self._structure:  # no other request has stepped down already
                    self._structure = "json_object" if structure == "json_schema" else "text"
                if structure == "text":
                    raise

    async def _try(self, ask: Ask, structure: Structure) -> Reply:
        try:
            async with asyncio.timeout(self._member.patience):
                response = await self._client.chat.completions.create(**self._body(ask, structure))
        except TimeoutError as error:
            raise self._late() from error
        except self._openai.APITimeoutError as error:
            raise self._late() from error
        except self._openai.APIStatusError as error:
            raise self._refusal(error) from error
        except self._openai.APIConnectionError as error:
            cause = error.__cause__ or error
            what = f"cannot talk to {self.url}: {type(cause).__name__} {cause}"[:300]
            code = FaultCode.upstream_unreachable
            raise CallError("unreachable", what, code, retryable=True, unhealthy=True) from error
        except (self._openai.OpenAIError, ValueError) as error:
            raise self._garbage(f"{type(error).__name__} {error}") from error
        return self._reply(response)

    def _body(self, ask: Ask, structure: Structure) -> dict[str, Any]:
        member = self._member
        optional = {"temperature": member.temperature, "top_p": member.top_p, "seed": member.seed}
        body: dict[str, Any] = {
            "model": self.model,
            "messages": ask.messages,
            member.budget_field: ask.budget,
            **{name: value for name, value in optional.items() if value is not None},
        }
        # as `extra_body`, since the client would walk the schema for each request: 0.3 ms
        further = {**self._member.extra}
        if structure == "json_schema":
            form = {"name": "verdict", "strict": True, "schema": ask.schema}
            further["response_format"] = {"type": "json_schema", "json_schema": form}
        elif structure == "json_object":
            further["response_format"] = {"type": "json_object"}
        return {**body, "extra_body": further} if further else body

    def _reply(self, response: Any) -> Reply:
        choices = getattr(response, "choices", None)
        message = getattr(choices[0], "message", None) if choices else None
        if choices is None or message is None:
            start = " ".join(str(response).split())[:120]
            raise self._garbage(f"no completion, but {start!r}")
        usage = response.usage
        content = message.content
        return Reply(
            content=content if content is None or isinstance(content, str) else str(content),
            finish_reason=str(choices[0].finish_reason or ""),
            model=str(response.model or ""),
            prompt_tokens=_count(getattr(usage, "prompt_tokens", None)),
            completion_tokens=_count(getattr(usage, "completion_tokens", None)),
        )

    def _late(self) -> CallError:
        what = f"no answer of {self.url} within {self._member.patience:g} s"
        code = FaultCode.upstream_timed_out
        return CallError("timed_out", what, code, retryable=True, unhealthy=True)

    def _garbage(self, what: str) -> CallError:
        code = FaultCode.upstream_garbage
        text = f"{self.url} answers with {what}"[:300]
        return CallError("garbage", text, code, retryable=True, unhealthy=True)

    def _refusal(self, error: Any) -> CallError:
        status, text = error.status_code, " ".join(str(error).split())[:300]
        if len(self._key) > 7:  # a shorter one is a placeholder, and may be part of any word
            text = text.replace(self._key, "[the key]")
        asked = f"asked for the model {self.model!r}, answers {status}"
        what = f"{_bare(self.url)}, {asked}: {text}{_REMEDIES.get(status, '')}"
        server_error = FaultCode.upstream_server_error
        if status == 429:
            after = retry_after(error.response.headers)
            code = FaultCode.upstream_rate_limited
            return CallError("rate_limited", what, code, retryable=True, retry_after=after)
        if status >= 500 or status in (408, 409, 425):
            after = retry_after(error.response.headers)
            return CallError(
                "server_error", what, server_error,
                retryable=True, unhealthy=True, retry_after=after,
            )  # fmt: skip
        if status in (400, 413, 422) and _FORM.search(text):
            return CallError("form_refused", what, server_error)
        if status in (400, 413, 422) and (status == 413 or _CONTEXT.search(text)):
            return CallError("context_exceeded", what, FaultCode.scorer_unavailable)
        return CallError("refused", what, server_error)


_REMEDIES = {
    401: " (check the key)",
    403: " (check the key and what it may use)",
    404: " (check the URL, mostly .../v1, and the name of the model)",
}


def _bare(url: str) -> str:
    """A URL without user, password and query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def retry_after(headers: Any) -> float | None:
    """Seconds of retry-after-ms or Retry-After (a number or a date), None if there is none."""
    try:
        if headers.get("retry-after-ms"):
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after")
        return None if not value else max(0.0, float(value))
    except ValueError:
        pass
    try:
        then = email.utils.parsedate_to_datetime(value)
        now = email.utils.parsedate_to_datetime(headers["date"])
    except (KeyError, TypeError, ValueError):
        return None
    return max(0.0, (then - now).total_seconds())
