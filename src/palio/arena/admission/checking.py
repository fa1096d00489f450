"""One call looks at a submission without running any of it, and always comes back."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from palio.arena.admission.config import AdmissionConfig
from palio.arena.admission.findings import Finding
from palio.arena.admission.folding import Folding
from palio.arena.admission.integrity import integrity
from palio.arena.admission.security import security
from palio.arena.admission.similarity import similarity
from palio.arena.admission.source import Source, read_source, statements, too_big
from palio.records import InputError
from palio.sandbox.guestfiles import read_regular

MOST = 40
"""Findings of one rule that are told."""


def check(
    source: bytes | Path,
    config: AdmissionConfig | None = None,
    *,
    others: Mapping[str, bytes] | None = None,
    common: Iterable[bytes] = (),
) -> tuple[Finding, ...]:
    """Everything that is wrong with a submission, in order of lines; nothing of it is executed.

    Args:
        source: the file's bytes, or its path.
        config: the arena's limits; None: the usual ones.
        others: name -> file of the submissions that it must not be a copy of.
        common: files that everybody may start from; what stands in them is nobody's.

    Raises:
        InputError: there is no such file, or it is no regular file.
    """
    config = config or AdmissionConfig()
    data = _read(source, config.max_bytes) if isinstance(source, Path) else bytes(source)
    if isinstance(data, Finding):
        return _told([data], config)
    read, found = read_source(data, config)
    if read is not None:
        folding = Folding(read)
        found += _contract(read)
        found += _licence(read, config)
        found += [*security(read, folding, config), *integrity(read, folding, config)]
        found += similarity(data, read, others or {}, common, config)
    return _told(found, config)


def _read(path: Path, limit: int) -> bytes | Finding:
    try:
        if path.is_file() and path.stat().st_size > limit:
            return too_big(path.stat().st_size, limit)
        return read_regular(path, limit)
    except OSError as error:
        raise InputError(f"the file cannot be read: {error}", where=str(path)) from error


def _told(found: list[Finding], config: AdmissionConfig) -> tuple[Finding, ...]:
    told: dict[Finding, None] = {}
    count: dict[str, int] = {}
    for finding in sorted(found, key=lambda each: (each.line, each.rule, each.message)):
        severity = config.severity.get(finding.rule, finding.severity)
        if severity == "off" or finding in told:
            continue
        count[finding.rule] = count.get(finding.rule, 0) + 1
        if count[finding.rule] <= MOST:
            told[msgspec.structs.replace(finding, severity=severity)] = None
    return tuple(told)


def _contract(source: Source) -> list[Finding]:
    for statement in statements(source.tree):
        if isinstance(statement, ast.AsyncFunctionDef) and statement.name == "agent_main":
            return [Finding("contract", "error", "agent_main is async", statement.lineno)]
        if isinstance(statement, ast.FunctionDef) and statement.name == "agent_main":
            given = statement.args
            most = len(given.posonlyargs) + len(given.args)
            least = most - len(given.defaults)
            missing = [d for d in given.kw_defaults if d is None]
            if least > 1 or (most < 1 and given.vararg is None) or missing:
                what = "agent_main cannot be called with one argument"
                return [Finding("contract", "error", what, statement.lineno)]
            return []
    return [Finding("contract", "error", "the file defines no function agent_main")]


def _licence(source: Source, config: AdmissionConfig) -> list[Finding]:
    if not config.require_licence or "SPDX-License-Identifier:" in source.text[:5_000]:
        return []
    return [Finding("licence", "error", "there is no SPDX-License-Identifier in its first lines")]
