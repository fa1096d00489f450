"""A suite file is one JSON document that names its schema and proves that it is unchanged."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from palio.records import (
    SCHEMA_VERSION,
    InputError,
    IntegrityError,
    Problem,
    Record,
    Reject,
    Suite,
    from_json,
    to_json,
)
from palio.world.artefacts import write_lines
from palio.world.importing import import_suite

MAX_BYTES = 1 << 30
"""A suite of 100,000 problems measures 90 MB; a gigabyte is not a suite."""


class _Document(Record, frozen=True):
    """The file's shape with the problems left undecoded, so that an error can name its row."""

    suite_id: str
    version: str
    problems: list[msgspec.Raw]
    schema_version: str
    digest: str = ""


def write_suite(suite: Suite, path: Path) -> str:
    """Write a suite with one problem a line, so that a diff shows the problem that changed.

    Returns:
        The suite's content digest, which stands in the file.

    Raises:
        InputError: the suite breaks a rule that `read_suite` would refuse it for.
    """
    check_suite(suite, where=str(path))
    digest = suite.content_digest()
    head = {
        "suite_id": suite.suite_id,
        "version": suite.version,
        "schema_version": suite.schema_version,
        "digest": digest,
    }
    rows = b",\n".join(to_json(problem) for problem in suite.problems)
    write_lines(path, [to_json(head)[:-1], b',"problems":[\n', rows, b"\n]}\n"])
    return digest


def read_suite(path: Path) -> Suite:
    """Read a suite file written by `write_suite`.

    Raises:
        InputError: the file is missing, no JSON, of another schema, or a row is wrong; names the
            file and the row.
        IntegrityError: the problems do not have the digest that the file states.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError("larger than 1 GiB, which no suite is", where=str(path))
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), remedy="check the path"
        ) from error
    document = _document(data, path)
    problems = tuple(
        from_json(bytes(raw), Problem, where=f"{path}: problem {row}")
        for row, raw in enumerate(document.problems, start=1)
    )
    suite = Suite(
        suite_id=document.suite_id,
        version=document.version,
        problems=problems,
        schema_version=document.schema_version,
    )
    check_suite(suite, where=str(path))
    if document.digest and document.digest != suite.content_digest():
        raise IntegrityError(
            "the problems do not have the digest that the file states",
            where=str(path),
            remedy="it was edited after it was written: restore it, or write it again as a new "
            "version",
        )
    return suite


def read_any_suite(path: Path) -> tuple[Suite, tuple[Reject, ...]]:
    """Read a suite file, a public task file or an arena suite, whichever `path` is.

    Returns:
        The suite, and the rows that are no problems; a suite file has none, it is refused whole.

    Raises:
        InputError: the file cannot be read, or holds no problem at all.
        IntegrityError: as `read_suite`.
    """
    with suppress(OSError), path.open("rb") as file:
        if b'"suite_id"' in file.read(4096):
            return read_suite(path), ()
    suite, rejects = import_suite(path)
    if not suite.problems:
        why = f"; row {rejects[0].line}: {rejects[0].detail}" if rejects else ""
        raise InputError(f"holds no problem{why}", where=str(path))
    return suite, rejects


def _document(data: bytes, path: Path) -> _Document:
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InputError(
            f"not a suite document: {error}",
            where=str(path),
            remedy="task files and arena suites are read by `palio suite import`",
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(_why_not_json(data, str(error)), where=str(path)) from error
    if document.schema_version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise InputError(
            f"has schema {document.schema_version}, this palio reads {SCHEMA_VERSION}",
            where=str(path),
            remedy="write it again with this version, or use the version that wrote it",
        )
    return document


def _why_not_json(data: bytes, fallback: str) -> str:
    """The row and reason of a JSON error; Python's laxer parser finds the row of a NaN."""
    try:
        plain = json.loads(data.decode())
    except UnicodeDecodeError as error:
        return f"is not UTF-8 text: {error.reason} at byte {error.start}"
    except json.JSONDecodeError as error:
        return f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        return "is not a suite: nested too deeply"
    for row, problem in enumerate(
        plain.get("problems") or [] if isinstance(plain, dict) else [], 1
    ):
        place = _not_finite(problem, f"problem {row}")
        if place:
            return f"{place} is NaN or infinite, which JSON does not have"
    return f"is not JSON: {fallback}"


def _not_finite(value: Any, place: str) -> str:
    """Where a NaN or infinity stands inside parsed JSON, "" if nowhere."""
    if isinstance(value, float) and not math.isfinite(value):
        return place
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        parts = [(f".{key}", part) for key, part in value.items()]
    elif isinstance(value, list):
        parts = [(f"[{index}]", part) for index, part in enumerate(value)]
    return next((found for at, part in parts if (found := _not_finite(part, place + at))), "")


def check_suite(suite: Suite, *, where: str = "") -> None:
    """Refuse a suite whose rows are well-typed but make no sense.

    Raises:
        InputError: an empty or repeated problem id, no target, more than one target of a product
            problem, a voucher missing or out of range, a price that is not finite.
    """
    seen: dict[str, int] = {}
    for row, problem in enumerate(suite.problems, start=1):
        place = f"{where}: problem {row}" if where else f"problem {row}"
        if problem.problem_id in seen:
            raise InputError(
                f"problem id {problem.problem_id!r} occurs twice, first as problem "
                f"{seen[problem.problem_id]}",
                where=place,
                remedy="give every problem its own id",
            )
        seen[problem.problem_id] = row
        for complaint in _complaints(problem):
            raise InputError(f"{complaint} ({problem.problem_id!r})", where=place)


def _complaints(problem: Problem) -> list[str]:
    found = []
    if not problem.problem_id:
        found.append("the problem id is empty")
    if not problem.query.strip():
        found.append("the query is empty")
    if not problem.rewards:
        found.append("there is no target")
    if problem.kind == "product" and len(problem.rewards) > 1:
        found.append(f"a product problem has one target, not {len(problem.rewards)}")
    prices = [price for reward in problem.rewards for price in reward.price]
    if any(not _money(side) for price in prices for side in (price.low, price.high)):
        found.append("a price bound is negative or not finite")
    voucher = problem.voucher
    if (problem.kind == "voucher") != (voucher is not None):
        found.append(
            f"a {problem.kind} problem {'without' if voucher is None else 'with'} a voucher"
        )
    elif voucher is not None:
        amounts = (voucher.threshold, voucher.budget, voucher.face_value, voucher.cap)
        if not all(_money(amount) for amount in amounts):
            found.append("a voucher amount is negative or not finite")
        needed = voucher.face_value if voucher.discount_type == "fixed" else voucher.discount
        if needed is None:
            found.append(f"a {voucher.discount_type} voucher says no discount")
        elif voucher.discount_type == "percentage" and not 0 < needed <= 1:
            found.append(f"the discount {needed} is not a fraction in (0, 1]")
    return found


def _money(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and value >= 0)
