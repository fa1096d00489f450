"""A reply that was paid for is kept: the same question is never asked twice of the same model."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from palio.judging.llm.server import Reply
from palio.records.base import Record, to_json
from palio.world.lines import read_lines

MAX_LINE = 16 * 1024 * 1024


class Kept(Record, frozen=True):
    """One line of the file: the digest of the whole request, and the reply."""

    key: str
    reply: Reply


class ReplyCache:
    """Replies by request digest, in memory and, given a path, in an append-only file.

    Each reply reaches the operating system in one write before it is used, so a killed process
    loses none; a line that breaks off is passed over.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._held: dict[str, Reply] = {}
        self._file: int | None = None
        if path is None:
            return
        torn = False
        if path.is_file():
            decoder = msgspec.json.Decoder(Kept)
            for line in read_lines(path, max_bytes=MAX_LINE):
                try:
                    kept = decoder.decode(line.data)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                self._held[kept.key] = kept.reply
            torn = path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if torn:
            os.write(self._file, b"\n")

    def get(self, key: str) -> Reply | None:
        """The reply to a request that was made before."""
        return self._held.get(key)

    def put(self, key: str, reply: Reply) -> None:
        """Keep a usable reply."""
        self._held[key] = reply
        if self._file is not None:
            os.write(self._file, to_json(Kept(key=key, reply=reply)) + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
