"""Oracles that hold under every driver would also speak: each is shown an enclosure with a hole."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import pytest

from palio.sandbox import bwrap
from palio.sandbox.spec import SandboxLimits
from tests.redteam.attacks import ATTACKS, SMALL, Attack
from tests.redteam.conftest import strike
from tests.redteam.host import Host
from tests.redteam.oracles import settled
from tests.sandbox.conftest import driver_or_skip

TIMES = 4
LIMITED = (
    "fork bomb",
    "thread bomb",
    "memory, one process",
    "memory as files",
    "disk bomb",
    "inode bomb",
    "descriptors",
    "flood of output",
)
ALLOW_ALL = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
"""A system call filter of one instruction: everything is allowed."""


def attack_called(name: str, **limits: Any) -> Attack:
    (attack,) = (each for each in ATTACKS if each.name == name)
    return dataclasses.replace(attack, limits={**attack.limits, **limits})


@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_that_is_four_times_too_wide_is_seen(name: str, host: Host, tmp_path: Path) -> None:
    attack = attack_called(name)
    limits = {**SMALL, **attack.limits}
    wide = {key: each * TIMES for key, each in limits.items() if isinstance(each, int)}
    seen = strike(driver_or_skip("bwrap"), attack_called(name, **wide), host, tmp_path)
    settled(seen)
    with pytest.raises(AssertionError):
        attack.oracle(seen._replace(limits=SandboxLimits(**limits)))
    attack.oracle(seen)


def with_options(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    real = bwrap._options

    def options(*given: Any) -> list[str]:
        made = real(*given)
        at = made.index("--remount-ro")
        return [*made[:at], *more, *made[at:]]

    monkeypatch.setattr(bwrap, "_options", options)


@pytest.mark.parametrize("name", ["memory of no process", "system calls"])
def test_a_filter_that_lets_all_through_is_seen(
    name: str, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_or_skip("bwrap")
    monkeypatch.setattr(bwrap, "filter_bytes", lambda: ALLOW_ALL)
    attack = attack_called(name, seconds=5.0)
    seen = strike(driver, attack, host, tmp_path)
    assert seen.outcome.fault is None, seen.outcome
    with pytest.raises(AssertionError):
        attack.oracle(seen)


@pytest.mark.parametrize("name", ["the host's loopback", "sockets of the host"])
def test_the_host_s_network_is_seen(
    name: str, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_or_skip("bwrap")
    with_options(monkeypatch, "--share-net")
    attack = attack_called(name)
    seen = strike(driver, attack, host, tmp_path)
    assert seen.outcome.fault is None, seen.outcome
    with pytest.raises(AssertionError):
        attack.oracle(seen)


@pytest.mark.parametrize("name", ["suite and other miners' code", "secrets in /proc"])
def test_a_folder_of_the_host_is_seen(
    name: str, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_or_skip("bwrap")
    with_options(monkeypatch, "--ro-bind", str(host.folder), "/opt")
    attack = attack_called(name)
    seen = strike(driver, attack, host, tmp_path)
    assert seen.outcome.fault is None, seen.outcome
    with pytest.raises(AssertionError):
        attack.oracle(seen)


def test_a_third_writable_folder_is_seen(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_or_skip("bwrap")
    with_options(monkeypatch, "--size", "1000000", "--tmpfs", "/srv")
    attack = attack_called("disk bomb")
    seen = strike(driver, attack, host, tmp_path)
    assert seen.outcome.fault is None, seen.outcome
    with pytest.raises(AssertionError):
        attack.oracle(seen)
