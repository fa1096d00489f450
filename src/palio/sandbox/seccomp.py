"""System calls that agents have no use for are refused by the kernel: classic BPF, assembled here.

The rules are data (`syscalls.json`) and are rendered twice: as bytes for bubblewrap, and as the
JSON profile that OCI runtimes and docker read.
"""

from __future__ import annotations

import errno
import json
import platform
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from palio.records import MissingDependencyError

LOAD, JUMP_EQ, JUMP_GE, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""
TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX push characters into a terminal's input."""


class Architecture(NamedTuple):
    """What differs between machines."""

    name: str
    audit: int
    column: int
    oci: str


ARCHITECTURES = {
    "x86_64": Architecture("x86_64", 0xC000003E, 0, "SCMP_ARCH_X86_64"),
    "aarch64": Architecture("aarch64", 0xC00000B7, 1, "SCMP_ARCH_AARCH64"),
}


class Instruction(NamedTuple):
    """One of classic BPF: operation, how many to skip when true and when false, operand."""

    code: int
    then: int
    otherwise: int
    operand: int


@cache
def rules() -> Mapping[str, Any]:
    """`syscalls.json`: name -> [x86_64 number, aarch64 number], -1 where there is none."""
    text = resources.files(__package__).joinpath("syscalls.json").read_text("utf-8")
    read: Mapping[str, Any] = json.loads(text)
    return read


def architecture(machine: str = "") -> Architecture:
    """The architecture of this machine, or of a named one.

    Raises:
        MissingDependencyError: no table for it; no filter, no sandbox.
    """
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise MissingDependencyError(
            f"there is no table of system calls for {machine}",
            remedy=f"sandboxes of bubblewrap work on {' and '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[machine]


def program(arch: Architecture) -> list[Instruction]:
    """The filter: wrong architecture dies, listed calls fail, everything else is allowed."""
    known = {name: numbers[arch.column] for name, numbers in rules()["calls"].items()}
    made = [
        Instruction(LOAD, 0, 0, _ARCH),
        Instruction(JUMP_EQ, 1, 0, arch.audit),
        Instruction(RETURN, 0, 0, KILL),
        Instruction(LOAD, 0, 0, _NUMBER),
    ]
    if arch.name == "x86_64":
        made += [Instruction(JUMP_GE, 0, 1, _X32), Instruction(RETURN, 0, 0, KILL)]
    for name in rules()["denied"]:
        made += _refuse(known[name], errno.EPERM)
    for name in rules()["absent"]:
        made += _refuse(known[name], errno.ENOSYS)
    made += _when(known["clone"], 0, [_set(NEW_NAMESPACES)], errno.EPERM)
    made += _when(known["ioctl"], 1, [_equal(number) for number in TERMINAL_REQUESTS], errno.EPERM)
    made += _unless(known["socket"], 0, FAMILIES, errno.EAFNOSUPPORT)
    made += _unless(known["socketpair"], 0, FAMILIES, errno.EAFNOSUPPORT)
    return [*made, Instruction(RETURN, 0, 0, ALLOW)]


def assemble(instructions: Sequence[Instruction]) -> bytes:
    """The filter as the kernel reads it: an array of struct sock_filter."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


@cache
def filter_bytes(machine: str = "") -> bytes:
    """The filter for a machine; raises as `architecture`."""
    return assemble(program(architecture(machine)))


def _refuse(number: int, error: int) -> list[Instruction]:
    if number < 0:
        return []
    return [Instruction(JUMP_EQ, 0, 1, number), Instruction(RETURN, 0, 0, ERRNO | error)]


def _set(bits: int) -> tuple[int, int]:
    return JUMP_SET, bits


def _equal(value: int) -> tuple[int, int]:
    return JUMP_EQ, value


def _when(
    number: int, argument: int, tests: Sequence[tuple[int, int]], error: int
) -> list[Instruction]:
    """Refuse the call when one of the tests on the low half of its argument holds."""
    count = len(tests)
    body = [Instruction(LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
    for at, (code, operand) in enumerate(tests):
        last = at == count - 1
        body.append(Instruction(code, count - 1 - at, 1 if last else 0, operand))
    body.append(Instruction(RETURN, 0, 0, ERRNO | error))
    return _guarded(number, body)


def _unless(number: int, argument: int, values: Sequence[int], error: int) -> list[Instruction]:
    """Refuse the call unless its argument is one of the values."""
    count = len(values)
    body = [Instruction(LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
    body += [Instruction(JUMP_EQ, count - at, 0, value) for at, value in enumerate(values)]
    body.append(Instruction(RETURN, 0, 0, ERRNO | error))
    return _guarded(number, body)


def _guarded(number: int, body: list[Instruction]) -> list[Instruction]:
    """The body for one call only; the call's number is loaded again for what follows."""
    return [
        Instruction(JUMP_EQ, 0, len(body) + 1, number),
        *body,
        Instruction(LOAD, 0, 0, _NUMBER),
    ]


def oci_profile(machine: str = "", *, gvisor: bool = False) -> dict[str, Any]:
    """The same rules as an OCI `linux.seccomp` object, which is also a docker profile.

    Args:
        machine: see `architecture`.
        gvisor: leave clone and clone3 alone. gVisor answers every refusal with EPERM, after which
            the C library starts no thread; its namespaces are its own and none of the host's.
    """
    arch = architecture(machine)
    known = {n for n, numbers in rules()["calls"].items() if numbers[arch.column] >= 0}

    def fails(names: Sequence[str], error: int, *arguments: dict[str, Any]) -> dict[str, Any]:
        made = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": error}
        return {**made, "args": list(arguments)} if arguments else made

    def argument(index: int, value: int, op: str, mask: int = 0) -> dict[str, Any]:
        made = {"index": index, "value": mask or value, "op": op}
        return {**made, "valueTwo": value} if mask else made

    namespaces = [] if gvisor else [1 << bit for bit in range(32) if NEW_NAMESPACES >> bit & 1]
    masked = "SCMP_CMP_MASKED_EQ"
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [arch.oci],
        "syscalls": [
            fails([name for name in rules()["denied"] if name in known], errno.EPERM),
            *([] if gvisor else [fails(rules()["absent"], errno.ENOSYS)]),
            *(fails(["clone"], errno.EPERM, argument(0, b, masked, b)) for b in namespaces),
            *(
                fails(["ioctl"], errno.EPERM, argument(1, r, masked, 0xFFFFFFFF))
                for r in TERMINAL_REQUESTS
            ),
            *_families(fails, argument),
        ],
    }


def _families(fails: Any, argument: Any) -> list[dict[str, Any]]:
    """Socket families below, between and above the allowed ones."""
    refused = [family for family in range(max(FAMILIES)) if family not in FAMILIES]
    calls = ["socket", "socketpair"]
    return [
        *(fails(calls, errno.EAFNOSUPPORT, argument(0, f, "SCMP_CMP_EQ")) for f in refused),
        fails(calls, errno.EAFNOSUPPORT, argument(0, max(FAMILIES), "SCMP_CMP_GT")),
    ]
