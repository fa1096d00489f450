"""The same agent file in this process, for trusted agents in bulk: thousands of runs, no start-up.

Nothing is isolated and a time-out can only be noticed when the agent calls the broker, so only
bundled agents run this way and nothing that they do is ranked.
"""

from __future__ import annotations

import builtins
import contextvars
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from urllib.parse import parse_qsl

import orjson

from palio.broker.refusals import RunOver
from palio.broker.routes import (
    INFERENCE_PATHS,
    Reply,
    call_proof,
    failure_reply,
    read_reply,
    tool_reply,
)
from palio.broker.session import Session
from palio.records import Fault, FaultCode, PalioError
from palio.sandbox.guest import runner
from palio.sandbox.guestfiles import GUEST
from palio.sandbox.report import (
    Report,
    bad_source,
    checked_claim,
    crashed,
    read_report,
    timed_out,
    too_much,
)
from palio.sandbox.spec import Capabilities, SandboxOutcome, SandboxSpec, SandboxUsage

_COUNTER = itertools.count()
_SESSION: contextvars.ContextVar[Session | None] = contextvars.ContextVar("palio_session")


class InlineClient:
    """`ProxyClient` without the network: the same methods, answered by the current session."""

    def __init__(
        self,
        proxy_url: str | None = None,
        timeout: float = 300,
        max_retries: int = 3,
        retry_delay: float = 1.0,
        rate_limit_retry_delay: float = 5.0,
        api_key: str | None = None,
    ) -> None:
        del proxy_url, timeout, max_retries, retry_delay, rate_limit_retry_delay, api_key
        # A thread that the agent starts has no context of its own: fall back on who made it.
        self._session = _SESSION.get(None)
        self._local = threading.local()

    @property
    def last_headers(self) -> dict[str, str]:
        """Headers of this thread's last answer, names in lower case."""
        return dict(getattr(self._local, "headers", {}))

    def get(
        self,
        path: str,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Parsed JSON of a GET, None when it failed."""
        path, _, query = path.strip("/").partition("?")
        given = dict(parse_qsl(query))
        given |= {str(k): query_text(v) for k, v in (params or {}).items() if v is not None}
        session = self._current()
        if path.startswith("search/"):
            return self._answer(tool_reply(session, path[7:], given, *call_proof(headers or {})))
        return self._answer(read_reply(session, path))

    def post(
        self, path: str, json_data: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Parsed JSON of a POST, None when it failed."""
        path = path.strip("/")
        value = {} if json_data is None else json_data
        session = self._current()
        if path.startswith("search/"):
            return self._answer(tool_reply(session, path[7:], value, *call_proof(headers or {})))
        if path not in INFERENCE_PATHS:
            return None
        try:
            return session.complete(value)
        except PalioError as error:
            return self._answer(failure_reply(error))

    def _current(self) -> Session:
        session = _SESSION.get(None) or self._session
        if session is None:
            raise RuntimeError("no run is going on in this thread")
        return session

    def _answer(self, reply: Reply) -> Any:
        self._local.headers = {name.lower(): value for name, value in reply.headers.items()}
        return orjson.loads(reply.body) if reply.status == 200 else None


class InlineDriver:
    """Trusted agents in this process; the file is loaded once, its module state is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[str, int, int], tuple[ModuleType | None, Report]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Encloses nothing."""
        return Capabilities(isolation="inline")

    def run(
        self, spec: SandboxSpec, session: Session | None, stop: threading.Event | None = None
    ) -> SandboxOutcome:
        """See `Driver.run`; `stop` only keeps a run from starting."""
        started = time.perf_counter()
        if stop is not None and stop.is_set():
            fault = Fault(code=FaultCode.run_interrupted, what="the run was stopped from outside")
            return SandboxOutcome(reason="killed", fault=fault, usage=SandboxUsage(wall_s=0.0))
        module, report = self._module(spec.agent)
        late = False
        if module is not None:
            report, late = contextvars.copy_context().run(_call, module, spec, session)
        return SandboxOutcome(
            reason="timeout" if late else "exited",
            usage=SandboxUsage(wall_s=time.perf_counter() - started),
            claim=report.claim,
            fault=report.fault,
        )

    def _module(self, path: str) -> tuple[ModuleType | None, Report]:
        try:
            stat = Path(path).stat()
        except OSError as error:
            return None, bad_source(f"the agent file cannot be read: {error.strerror}")
        key = (path, stat.st_mtime_ns, stat.st_size)
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = _load(path)
            return self._loaded[key]


def _load(path: str) -> tuple[ModuleType | None, Report]:
    """The agent module with its own copy of the contract modules, and what is wrong with it."""
    name = f"palio_agent_{next(_COUNTER)}"
    client = ModuleType("src.agent.proxy_client")
    client.__dict__["ProxyClient"] = InlineClient
    modules = {"src": ModuleType("src"), "src.agent": ModuleType("src.agent")}
    modules["src.agent.proxy_client"] = client
    modules["src"].__dict__["agent"] = modules["src.agent"]
    modules["src.agent"].__dict__["proxy_client"] = client
    hooks = {"__builtins__": {**vars(builtins), "__import__": _importer(modules)}}
    interface = ModuleType("src.agent.agent_interface")
    interface.__dict__.update(hooks)
    exec(_interface_code(), interface.__dict__)  # noqa: S102 - our own file
    modules["src.agent.agent_interface"] = interface
    modules["src.agent"].__dict__["agent_interface"] = interface
    module, failure = runner.load(path, name, hooks)
    if failure is not None:
        return None, read_report(orjson.dumps(failure))
    return module, Report()


def _importer(modules: Mapping[str, ModuleType]) -> Callable[..., Any]:
    """An ``__import__`` that knows the `src` package of the contract, without sys.modules."""

    def load(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        if level == 0 and name.partition(".")[0] == "src":
            if name not in modules:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return modules[name] if fromlist else modules["src"]
        return builtins.__import__(name, globals, locals, fromlist, level)

    return load


@cache
def _interface_code() -> CodeType:
    path = GUEST / "src" / "agent" / "agent_interface.py"
    return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)


def _call(module: ModuleType, spec: SandboxSpec, session: Session | None) -> tuple[Report, bool]:
    _SESSION.set(session)
    seconds = spec.limits.seconds
    try:
        claim = module.agent_main(dict(spec.problem))
    except RunOver:
        return timed_out(seconds), True
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit too is the agent's
        if _is_late(session):
            return timed_out(seconds), True
        return crashed(runner.last_line(error, module.__name__)), False
    if _is_late(session):
        return timed_out(seconds), True
    return _serialised(claim, spec.limits.result_bytes), False


def _is_late(session: Session | None) -> bool:
    return session is not None and session.remaining_s <= 0


def _serialised(claim: Any, limit: int) -> Report:
    """The claim as it would come through a pipe: over the cap or no JSON is the agent's fault."""
    report = checked_claim(claim)
    if report.claim is None:
        return report
    try:
        size = len(orjson.dumps(claim))
    except TypeError:
        text, report = _slowly(claim)
        size = len(text)
    return too_much(limit) if size > limit else report


def _slowly(claim: list[Any]) -> tuple[str, Report]:
    """The same by the standard library, which takes more: integer keys, tuples, huge integers."""
    try:
        text = json.dumps(claim)
    except (TypeError, ValueError, RecursionError) as error:
        what = f"agent_main returned what JSON cannot hold: {error}"
        return "", read_report(orjson.dumps({"status": "bad_return", "what": what[:400]}))
    return text, checked_claim(json.loads(text))


def query_text(value: Any) -> str:
    """A query parameter as the guest's client writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)
