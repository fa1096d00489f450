"""The filter is read back by an interpreter of its own: what it refuses, and that it is no more."""

from __future__ import annotations

import errno
import platform
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.records import MissingDependencyError
from palio.sandbox.seccomp import (
    ALLOW,
    ARCHITECTURES,
    ERRNO,
    JUMP_EQ,
    JUMP_GE,
    JUMP_SET,
    KILL,
    LOAD,
    RETURN,
    Architecture,
    architecture,
    filter_bytes,
    oci_profile,
    rules,
)

MACHINES = sorted(ARCHITECTURES)


def verdict(arch: Architecture, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the kernel would answer: an independent reading of classic BPF."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    seen = audit if audit is not None else arch.audit
    data = struct.pack("=IIQ6Q", number, seen, 0, *(a & 2**64 - 1 for a in padded))
    program = list(struct.iter_unpack("=HBBI", filter_bytes(arch.name)))
    at, held = 0, 0
    while True:
        code, then, otherwise, operand = program[at]
        at += 1
        if code == RETURN:
            return operand
        if code == LOAD:
            assert operand % 4 == 0
            (held,) = struct.unpack_from("=I", data, operand)
            continue
        tests = {JUMP_EQ: held == operand, JUMP_GE: held >= operand, JUMP_SET: held & operand}
        at += then if tests[code] else otherwise


def number(arch: Architecture, name: str) -> int:
    return int(rules()["calls"][name][arch.column])


@pytest.mark.parametrize("machine", MACHINES)
def test_every_listed_call_fails(machine: str) -> None:
    arch = architecture(machine)
    for names, error in ((rules()["denied"], errno.EPERM), (rules()["absent"], errno.ENOSYS)):
        for name in names:
            if number(arch, name) >= 0:
                assert verdict(arch, number(arch, name)) == ERRNO | error, name


@pytest.mark.parametrize("machine", MACHINES)
@given(call=st.integers(0, 500), argument=st.integers(0, 2**64 - 1))
def test_everything_else_is_allowed(machine: str, call: int, argument: int) -> None:
    arch = architecture(machine)
    listed = {numbers[arch.column] for numbers in rules()["calls"].values()}
    if call not in listed:
        assert verdict(arch, call, argument) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_clone_makes_threads_and_no_namespaces(machine: str) -> None:
    arch = architecture(machine)
    clone = number(arch, "clone")
    assert verdict(arch, clone, 0x3D0F00) == ALLOW  # a thread, as glibc makes it
    assert verdict(arch, clone, 0x1200011) == ALLOW  # a fork
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(arch, clone, bit | 17) == ERRNO | errno.EPERM
        assert verdict(arch, clone, bit | 17 | 1 << 40) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
@given(family=st.integers(0, 2**32 - 1))
def test_only_three_socket_families(machine: str, family: int) -> None:
    arch = architecture(machine)
    wanted = ALLOW if family in (1, 2, 10) else ERRNO | errno.EAFNOSUPPORT
    for name in ("socket", "socketpair"):
        assert verdict(arch, number(arch, name), family) == wanted
        assert verdict(arch, number(arch, name), 2) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_terminals_cannot_be_typed_into(machine: str) -> None:
    arch = architecture(machine)
    ioctl = number(arch, "ioctl")
    for request in (0x5412, 0x541C, 0x5412 | 1 << 32):
        assert verdict(arch, ioctl, 1, request) == ERRNO | errno.EPERM
    assert verdict(arch, ioctl, 0x5412, 0x5401) == ALLOW


def test_another_architecture_s_calls_kill() -> None:
    for machine in MACHINES:
        arch = architecture(machine)
        assert verdict(arch, 1, audit=0x40000003) == KILL
    assert verdict(architecture("x86_64"), 0x40000000 | 1) == KILL  # x32


def test_a_machine_without_a_table_gets_no_sandbox() -> None:
    with pytest.raises(MissingDependencyError, match="riscv64"):
        filter_bytes("riscv64")


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_the_kernel_s(machine: str) -> None:
    header = HEADERS[machine]
    if not header.is_file():
        pytest.skip("needs linux-libc-dev")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    known = {name: int(value) for name, value in found}
    arch = architecture(machine)
    compared = [name for name in rules()["calls"] if name in known]
    assert len(compared) > 80
    assert {name: number(arch, name) for name in compared} == {n: known[n] for n in compared}


def test_the_oci_profile_names_the_same_calls() -> None:
    for machine in MACHINES:
        profile = oci_profile(machine)
        assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
        named = {name for rule in profile["syscalls"] for name in rule["names"]}
        arch = architecture(machine)
        assert named == {name for name in rules()["calls"] if number(arch, name) >= 0}


def test_this_machine_has_a_table() -> None:
    assert platform.machine() in ARCHITECTURES
