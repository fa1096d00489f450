"""Every body between an agent, the world and a model is on record before it is acted on.

Entries of one run, each an object in a line of the chain (see `palio.broker.chain`):

========== =========================================================================================
journal    first line of a file: version, and that of palio
source     an agent's file, once for all its runs: digest, text
open       run, and everything that the session was made with, the nonce key included
request    id, `prefix` + `messages`: the conversation is that many messages of the request before
           and these; `tools` if they changed; `asked`: the rest of what the agent sent; `params`:
           the rest of what the model server is sent. Written before it is sent
response   id of the request, `event`: seq in the record; `body`: the server's answer unchanged, or
           `error`; `expiry`: of the proofs minted for its calls
call       id, tool, arguments, call id and proof as received. Written before it is carried out
result     id of the call, and the record's event as a whole
close      ending, fault, what the agent returned, digest of the trajectory
========== =========================================================================================

`run` numbers the runs of a file; a run that was killed has no `close`. A request that was never
answered has no `response`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from palio import __version__
from palio.broker.chain import Chain, Line, read_chain
from palio.broker.wire import plain_json
from palio.records import InputError, bytes_digest

FILE = "journal.chain"
VERSION = "1"


class BodyJournal:
    """The journal of a run folder; `run` gives the writer of one run.

    Raises:
        ConfigError, IntegrityError: see `Chain`.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._chain = Chain(self.path)
        self._lock = threading.Lock()
        self._sources: set[str] = set()
        self._runs = 0
        try:
            self._read_back()
        except BaseException:
            self._chain.close()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        """What opening it had to mend."""
        if not self._chain.torn:
            return ()
        return (f"{self._chain.torn} bytes of a half-written journal entry were set aside",)

    def source(self, data: bytes) -> None:
        """Keep an agent's file, so that its runs can be replayed."""
        digest = bytes_digest(data)
        with self._lock:
            if digest in self._sources:
                return
            self._sources.add(digest)
        text = data.decode("utf-8", "replace")
        self._chain.append(packed({"kind": "source", "digest": digest, "text": text}))

    def run(self) -> RunJournal:
        """The writer of a run that begins."""
        with self._lock:
            number = self._runs
            self._runs += 1
        return RunJournal(self._chain, number)

    def close(self) -> None:
        """Put everything on disk and give the file free."""
        self._chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_back(self) -> None:
        if not self._chain.entries:
            head = {"kind": "journal", "version": VERSION, "tool_version": __version__}
            self._chain.append(packed(head))
            return
        for entry in read_entries(self.path):
            if entry["kind"] == "open":
                self._runs = max(self._runs, entry["run"] + 1)
            elif entry["kind"] == "source":
                self._sources.add(entry["digest"])


class Entries(Protocol):
    """Where the entries of a run go: a `Chain`, or a replay's memory."""

    def append(self, payload: bytes) -> str:
        """Add one entry; its digest."""

    def sync(self) -> None:
        """Wait until all are on disk."""


class RunJournal:
    """Writes the entries of one run; its session holds the lock."""

    def __init__(self, chain: Entries, number: int) -> None:
        self._chain = chain
        self._number = number
        self._next = 0
        self._messages: list[bytes] = []
        self._tools = b""

    def write(self, kind: str, **fields: Any) -> str:
        """Append one entry; its digest.

        Raises:
            OSError: it cannot be written.
        """
        entry = {"kind": kind, "run": self._number, **fields}
        try:
            payload = packed(entry)
        except InputError:  # nested too deeply for any writer: what else it says still counts
            payload = packed({key: _writable(value) for key, value in entry.items()})
        return self._chain.append(payload)

    def number(self) -> int:
        """The id of the next request or call."""
        self._next += 1
        return self._next - 1

    def request(
        self, number: int, at_ms: float, body: Mapping[str, Any], params: Mapping[str, Any]
    ) -> None:
        """Write the request `number`: the agent's `body` with ids unveiled, and what is sent on."""
        messages = [packed(message) for message in body.get("messages") or ()]
        prefix = 0
        while prefix < min(len(messages), len(self._messages)):
            if messages[prefix] != self._messages[prefix]:
                break
            prefix += 1
        self._messages = messages
        fields: dict[str, Any] = {
            "prefix": prefix,
            "messages": [msgspec.Raw(message) for message in messages[prefix:]],
            "asked": {k: v for k, v in body.items() if k not in ("messages", "tools")},
            "params": params,
        }
        if "tools" in body:
            tools = packed(body["tools"])
            if tools != self._tools:
                self._tools = tools
                fields["tools"] = msgspec.Raw(tools)
            fields["has_tools"] = True
        self.write("request", id=number, at_ms=at_ms, **fields)

    def finish(self, **fields: Any) -> str:
        """Write the last entry and wait until the run is on disk; its digest."""
        digest = self.write("close", **fields)
        self._chain.sync()
        return digest


def packed(value: Any) -> bytes:
    """Compact JSON of anything that an agent may pass, without line ends."""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except (TypeError, ValueError, RecursionError, OverflowError):
        try:
            return plain_json(_raw_free(value)).encode()
        except RecursionError as error:
            raise InputError("the value is nested too deeply") from error


def _writable(value: Any) -> Any:
    try:
        return msgspec.Raw(packed(value))
    except InputError as error:
        return {"unwritable": error.what}


def _raw_free(value: Any) -> Any:
    """The standard library's writer takes lone surrogates and huge numbers, but no raw JSON.

    It writes NaN and infinities, which no reader takes: as null, as msgspec does.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {str(key): _raw_free(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_raw_free(each) for each in value]
    return value


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a journal, each with its line's digest as `digest_of_line`.

    Raises:
        IntegrityError: the chain does not hold.
        InputError: the file is no journal, or one of another version.
    """
    for line in read_chain(path):
        entry = _entry(line, path)
        if line.number == 1 and entry.get("version") != VERSION:
            raise InputError("this is no journal of palio's", where=str(path))
        yield {**entry, "digest_of_line": line.digest}


def _entry(line: Line, path: Path) -> dict[str, Any]:
    try:
        entry = msgspec.json.decode(line.payload, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"this entry is no JSON object: {error}", where=f"{path}:{line.number}"
        ) from error
    if "kind" not in entry:
        raise InputError("this entry has no kind", where=f"{path}:{line.number}")
    return entry
