r"""An append-only file in which no byte can be changed, and no line torn, without being found.

One line an entry: ``<64 hex digits> <JSON>\n``. The digits are SHA-256 over the digest of the line
before (as 32 bytes) and the JSON's bytes; before the first line stands SHA-256 of `SEED`. An entry
is handed to the kernel before `append` returns, so that a killed process loses none; `sync` waits
until it is on disk, with one fsync for all that wait at that time.

What the chain alone cannot show is a tail cut off at a line end, or a file written anew from some
line on. Trajectories hold the digest of their run's last line (`Trajectory.journal`): both make
that digest disappear.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from palio.records import ConfigError, IntegrityError, Record

SEED = b"palio journal 1"
HEX = 64
SYNC_S = 0.05
"""Seconds between two fsyncs while nobody waits: what a power cut can take of unfinished runs."""
LIMIT = 64 * 1024**3
"""Bytes of one file; a race of 10,000 runs takes about 1 GB."""


class Line(NamedTuple):
    """One entry as it stands in the file."""

    number: int
    digest: str
    payload: bytes


class ChainReport(Record, frozen=True):
    """What checking a file gave.

    Attributes:
        entries: lines that hold.
        size: their bytes.
        head: digest of the last of them, that of `SEED` when there is none.
        torn: bytes of an unfinished last line.
        problem: what does not hold and where, "" when everything does.
    """

    entries: int
    size: int
    head: str
    torn: int = 0
    problem: str = ""


def start_digest() -> bytes:
    """What stands before the first line."""
    return hashlib.sha256(SEED).digest()


def read_chain(path: Path) -> Iterator[Line]:
    """The entries that hold, in order; stops at an unfinished last line.

    Raises:
        IntegrityError: a line does not follow from the one before it; names it.
    """
    before = start_digest()
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                return
            digest = hashlib.sha256(before + line[HEX + 1 : -1]).digest()
            if line[: HEX + 1] != digest.hex().encode() + b" ":
                raise IntegrityError(
                    "this line does not follow from the one before it: the file was changed",
                    where=f"{path}:{number}",
                    remedy="restore the file; what comes before this line still holds",
                )
            before = digest
            yield Line(number, digest.hex(), line[HEX + 1 : -1])


def verify_chain(path: Path) -> ChainReport:
    """Check every byte of a file; never raises for what it holds."""
    entries, size, head, problem = 0, 0, start_digest().hex(), ""
    try:
        for line in read_chain(path):
            entries, head = line.number, line.digest
            size += HEX + 2 + len(line.payload)
    except IntegrityError as error:
        problem = str(error)
    torn = 0 if problem else path.stat().st_size - size
    if torn:
        problem = f"{path}:{entries + 1}: {torn} bytes of an unfinished line"
    return ChainReport(entries=entries, size=size, head=head, torn=torn, problem=problem)


class Chain:
    """The writing end; one process at a time, any number of threads.

    Opening checks the whole file. An unfinished last line, as a killed process leaves it, is moved
    to ``NAME.torn-N`` beside it, and so is a tail that a power cut left unwritten (it holds NUL).

    Args:
        path: the file; made if missing, its folder too.
        sync_s: see `SYNC_S`.
        limit: see `LIMIT`.

    Raises:
        ConfigError: another process is writing to it.
        IntegrityError: it was changed.
    """

    def __init__(self, path: Path, *, sync_s: float = SYNC_S, limit: int = LIMIT) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.torn = 0
        self._limit = limit
        self._sync_s = sync_s
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            _lock(self._fd, path)
            report = self._recover()
        except BaseException:
            os.close(self._fd)
            raise
        self.entries = report.entries
        self._head = bytes.fromhex(report.head)
        self._size = report.size
        self._lock = threading.Lock()
        self._failed: OSError | None = None
        self._written = 0
        self._synced = 0
        self._waiting = 0
        self._open = True
        self._changed = threading.Condition()
        self._syncer = threading.Thread(target=self._sync_loop, name="palio-sync", daemon=True)
        self._syncer.start()

    @property
    def head(self) -> str:
        """Digest of the last entry."""
        return self._head.hex()

    def append(self, payload: bytes) -> str:
        """Add one entry; when this returns, a kill of this process cannot lose it.

        Args:
            payload: JSON without line ends.

        Returns:
            The entry's digest.

        Raises:
            OSError: it cannot be written; nothing can be written after that.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            digest = hashlib.sha256(self._head + payload).digest()
            line = b"%b %b\n" % (digest.hex().encode(), payload)
            try:
                self._write(line)
            except OSError as error:
                self._failed = error  # a part may stand there: no line can follow it
                raise
            self._head = digest
            self._size += len(line)
            self.entries += 1
            self._written += 1
        return digest.hex()

    def _write(self, line: bytes) -> None:
        if self._size + len(line) > self._limit:
            raise OSError(errno.EFBIG, f"the journal is over {self._limit} bytes", str(self.path))
        done = os.write(self._fd, line)
        while done < len(line):
            done += os.write(self._fd, line[done:])

    def sync(self) -> None:
        """Wait until everything appended before this call is on disk.

        Raises:
            OSError: the disk refused it.
        """
        with self._lock:
            wanted = self._written
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._synced >= wanted or self._failed is not None or not self._open
            )
            self._waiting -= 1
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Put everything on disk and give the file free."""
        with self._changed:
            if not self._open:
                return
            self._open = False
            self._changed.notify_all()
        self._syncer.join()
        try:
            os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sync_loop(self) -> None:
        while True:
            with self._changed:
                # Woken at once by who waits for the disk, and by the clock otherwise.
                self._changed.wait_for(self._urgent, self._sync_s)
                if not self._open:
                    return
            with self._lock:
                target = self._written
            if target > self._synced:
                try:
                    os.fsync(self._fd)
                except OSError as error:
                    self._failed = error
            with self._changed:
                self._synced = target
                self._changed.notify_all()

    def _urgent(self) -> bool:
        return not self._open or (self._waiting > 0 and self._synced < self._written)

    def _recover(self) -> ChainReport:
        report = verify_chain(self.path)
        if not report.problem:
            return report
        tail = self.path.stat().st_size - report.size
        if not report.torn and not self._holds_nul(report.size):
            raise IntegrityError(
                report.problem,
                remedy="restore the file, or run in a new folder; `palio replay --run` says more",
            )
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.torn-{number}")).exists():
            number += 1
        aside.write_bytes(os.pread(self._fd, tail, report.size))
        os.ftruncate(self._fd, report.size)
        os.fsync(self._fd)
        self.torn = tail
        return ChainReport(entries=report.entries, size=report.size, head=report.head)

    def _holds_nul(self, start: int) -> bool:
        """A page that was allocated and never written is zeros; a JSON line never holds one."""
        with self.path.open("rb") as stream:
            stream.seek(start)
            return any(b"\x00" in part for part in iter(lambda: stream.read(1 << 20), b""))


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(
            "another process is writing this journal",
            where=str(path),
            remedy="wait for it, or choose another folder",
        ) from error
