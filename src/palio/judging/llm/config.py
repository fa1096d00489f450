"""A judge is one TOML file; everything in it that decides a verdict is part of its identity."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from palio.judging.llm.document import Prompt, packaged_prompt, prompt_of
from palio.records.base import Record, digest
from palio.records.faults import ConfigError
from palio.records.verdict import QUALITY_BINS, JudgeId

VERSION = "1"
SLOWEST = 10.0
"""Tokens a second: time-outs leave room for a server that decodes no faster, 32 B on two GPUs under
full load. A time-out below the tail turns slow verdicts into missing ones."""
SETUP_S = 60.0
"""Seconds for queueing and reading the prompt."""
Structure = Literal["auto", "json_schema", "json_object", "text"]


class Endpoint(Record, frozen=True, forbid_unknown_fields=True):
    """One server of a pool.

    Attributes:
        url: base URL with the version, e.g. http://127.0.0.1:8000/v1.
        model: what the server calls the model; "": as the member does.
        key: name of the environment variable that holds the API key, "" for none.
        requests_per_minute: None: no limit of ours.
        tokens_per_minute: prompt and completion; None: no limit of ours.
    """

    url: str
    model: str = ""
    key: str = ""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


class Price(Record, frozen=True, forbid_unknown_fields=True):
    """US dollars a million tokens."""

    input: float
    output: float


class Member(Record, frozen=True, forbid_unknown_fields=True):
    """One judge of a panel.

    Attributes:
        model: the model; "evidence" is the evidence judge, which asks none.
        endpoints: the pool, asked in turn. Endpoints with another `model` make a pool of models:
            which of them answered stands in each opinion.
        answer_tokens: budget of the answer itself.
        thinking_tokens: budget of a thinking model before it; 0 for others.
        budget_field: name of the request's token limit, "max_completion_tokens" for some servers.
        context: tokens that the model can read and write together; None: the server decides.
        structure: form asked of the answer. "auto" asks for a schema and steps down once to
            json_object and then to text where the endpoint refuses.
        timeout_s: seconds for one try; 0: 60 + budget / 10 tokens a second.
        attempts: tries for one verdict, the first included.
        served_as: further names under which the server may say that it serves the model; "*" any.
        extra: further fields of the request body, e.g. chat_template_kwargs.
    """

    model: str
    endpoints: tuple[Endpoint, ...] = ()
    name: str = ""
    temperature: float | None = 0.0
    top_p: float | None = None
    seed: int | None = 0
    answer_tokens: int = 1500
    thinking_tokens: int = 0
    budget_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    context: int | None = None
    structure: Structure = "auto"
    timeout_s: float = 0.0
    attempts: int = 4
    served_as: tuple[str, ...] = ()
    extra: dict[str, Any] = {}

    @property
    def budget(self) -> int:
        """Tokens that a completion may have."""
        return self.answer_tokens + self.thinking_tokens

    @property
    def patience(self) -> float:
        """Seconds for one try."""
        return self.timeout_s or SETUP_S + self.budget / SLOWEST

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that may answer, in order."""
        named = [endpoint.model or self.model for endpoint in self.endpoints]
        return tuple(dict.fromkeys(named)) or (self.model,)

    def decoding(self) -> dict[str, Any]:
        """What decides a completion besides model and prompt; absent settings are left out."""
        settings = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "budget": self.budget,
            "structure": self.structure,
            **({"extra": self.extra} if self.extra else {}),
        }
        return {name: value for name, value in settings.items() if value is not None}

    def judge_id(self, prompt: Prompt) -> JudgeId:
        """Identity: model names, prompt digest and decoding; neither servers nor prices."""
        decides = [list(self.models), prompt.digest, self.decoding(), list(QUALITY_BINS)]
        name = self.name or f"llm:{self.model}"
        return JudgeId(name=name, version=VERSION, config_digest=digest(decides))


class JudgeConfig(Record, frozen=True, forbid_unknown_fields=True):
    """A judge or a panel.

    Attributes:
        quorum: opinions needed for a verdict; 0: more than half of the members.
        concurrency: requests in flight, of each member.
        retry_ratio: retries allowed a request, over all requests so far, beside the first ten.
        prompt: file with another instruction, relative to the configuration; "": the shipped one.
        prices: model -> price; a model without one has an unknown cost.
    """

    members: tuple[Member, ...]
    name: str = ""
    quorum: int = 0
    concurrency: int = 16
    retry_ratio: float = 0.5
    prompt: str = ""
    prices: dict[str, Price] = {}

    @property
    def needed(self) -> int:
        """Opinions that make a verdict."""
        return self.quorum or len(self.members) // 2 + 1


def read_config(path: Path) -> tuple[JudgeConfig, Prompt]:
    """The judge of a TOML file, and its prompt.

    Raises:
        ConfigError: the file is no such configuration; names the key.
    """
    try:
        config = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), JudgeConfig)
    except OSError as error:
        remedy = "write one: docs/judging.md shows a whole one"
        what = f"no judge here: {error.strerror}"
        raise ConfigError(what, where=str(path), remedy=remedy) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        remedy = "docs/judging.md shows a whole one"
        raise ConfigError(f"not a judge: {error}", where=str(path), remedy=remedy) from error
    _check(config, str(path))
    if not config.prompt:
        return config, packaged_prompt()
    return config, prompt_of((path.parent / config.prompt).read_text(encoding="utf-8"))


def endpoint_config(url: str, model: str, key: str = "", **settings: Any) -> JudgeConfig:
    """The judge of one model behind one endpoint.

    Raises:
        ConfigError: it makes no sense.
    """
    member = Member(model=model, endpoints=(Endpoint(url=url, key=key),), **settings)
    config = JudgeConfig(members=(member,))
    _check(config, "")
    return config


def _check(config: JudgeConfig, where: str) -> None:
    wrong = list(_wrong(config))
    if wrong:
        raise ConfigError("; ".join(wrong), where=where)


def _wrong(config: JudgeConfig) -> list[str]:
    found = []
    if not config.members:
        found.append("a judge needs a member")
    if not 0 <= config.quorum <= len(config.members):
        found.append(f"quorum {config.quorum} of {len(config.members)} members")
    if config.concurrency < 1 or config.retry_ratio < 0:
        found.append("concurrency must be at least 1 and retry_ratio at least 0")
    for member in config.members:
        if member.model != "evidence" and not member.endpoints:
            found.append(f"member {member.model} has no endpoint")
        if min(member.answer_tokens, member.attempts) < 1 or member.thinking_tokens < 0:
            found.append(f"member {member.model}: budgets and attempts must be positive")
        for endpoint in member.endpoints:
            if urlsplit(endpoint.url).scheme not in ("http", "https"):
                found.append(f"{endpoint.url!r} is no URL of a model server")
            if endpoint.key and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", endpoint.key):
                found.append("`key` names an environment variable and never holds the key itself")
    twice = len({one.name or one.model for one in config.members}) < len(config.members)
    if twice:
        found.append("two members have the same name")
    return found
