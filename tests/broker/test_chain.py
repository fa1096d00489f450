"""No byte of a journal can be changed unseen, and a torn end is the only thing that is mended."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palio.broker.chain import HEX, SEED, Chain, read_chain, start_digest, verify_chain
from palio.records import ConfigError, IntegrityError

PAYLOADS = [json.dumps({"n": n, "text": "x" * n}).encode() for n in range(12)]


def made(path: Path) -> bytes:
    with Chain(path) as chain:
        for payload in PAYLOADS:
            chain.append(payload)
    return path.read_bytes()


def test_the_format_is_what_the_docs_say(tmp_path: Path) -> None:
    path = tmp_path / "j"
    lines = made(path).splitlines()
    before = hashlib.sha256(SEED).digest()
    for line, payload in zip(lines, PAYLOADS, strict=True):
        before = hashlib.sha256(before + payload).digest()
        assert line == before.hex().encode() + b" " + payload
    report = verify_chain(path)
    assert (report.entries, report.head, report.torn, report.problem) == (12, before.hex(), 0, "")
    assert [line.payload for line in read_chain(path)] == PAYLOADS


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_any_changed_byte_is_found(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "j"
    whole = (tmp_path / "kept").read_bytes() if path.exists() else made(path)
    (tmp_path / "kept").write_bytes(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda each: each != whole[at]))
    path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
    assert verify_chain(path).problem


@pytest.mark.parametrize("change", ["removed", "swapped", "doubled", "inserted"])
def test_moved_lines_are_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "j"
    lines = made(path).splitlines(keepends=True)
    other = hashlib.sha256(start_digest() + b"{}").hexdigest().encode() + b" {}\n"
    changed = {
        "removed": [*lines[:4], *lines[5:]],
        "swapped": [*lines[:4], lines[5], lines[4], *lines[6:]],
        "doubled": [*lines[:5], *lines[4:]],
        "inserted": [other, *lines],
    }[change]
    path.write_bytes(b"".join(changed))
    assert "does not follow" in verify_chain(path).problem
    with pytest.raises(IntegrityError, match="restore the file"):
        Chain(path)


@pytest.mark.parametrize("cut", [1, 2, 30, HEX, HEX + 1, HEX + 8])
def test_a_torn_end_is_set_aside_and_the_chain_goes_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    whole = made(path)
    path.write_bytes(whole[:-cut])
    assert verify_chain(path).torn > 0
    with Chain(path) as chain:
        assert (chain.entries, chain.torn > 0) == (11, True)
        chain.append(PAYLOADS[-1])
    assert path.read_bytes() == whole
    assert whole.endswith((tmp_path / "j.torn-1").read_bytes() + whole[-cut:])


def test_a_tail_of_zeros_after_a_power_cut_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = made(path)
    path.write_bytes(whole + b"\x00" * 4000 + b"\n" + PAYLOADS[0] + b"\n")
    with Chain(path) as chain:
        assert chain.entries == len(PAYLOADS)
    assert path.read_bytes() == whole


def test_two_processes_cannot_write_one_journal(tmp_path: Path) -> None:
    with Chain(tmp_path / "j"), pytest.raises(ConfigError, match="another process"):
        Chain(tmp_path / "j")


def test_many_threads_share_one_chain_and_few_fsyncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), fsync(fd))[1])
    with Chain(tmp_path / "j", sync_s=60) as chain:
        gate = threading.Barrier(16)

        def write(number: int) -> None:
            gate.wait()
            for _ in range(20):
                chain.append(json.dumps({"n": number}).encode())
            chain.sync()

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(write, range(16)))
        assert chain.entries == 320
        assert 1 <= len(synced) <= 16
    assert verify_chain(tmp_path / "j").entries == 320


def test_a_full_journal_refuses_and_stays_whole(tmp_path: Path) -> None:
    with Chain(tmp_path / "j", limit=500) as chain:
        for payload in PAYLOADS[:3]:
            chain.append(payload)
        with pytest.raises(OSError, match="over 500 bytes"):
            chain.append(b"1" * 400)
        with pytest.raises(OSError, match="over 500 bytes"):
            chain.append(b"{}")
    assert verify_chain(tmp_path / "j").problem == ""
