"""Public ShoppingBench task files and arena suites become one suite; every bad row is kept.

Two forms are read: JSON lines `{"query", "reward", ...}`, whose kind follows from the shape of the
row, and a JSON array of arena rows that name their category. Ids are `<kind>-<row from 0>`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from palio.records import InputError, Problem, Reject, Suite
from palio.world.lines import MAX_LINE_BYTES, Line, first_bytes, read_lines
from palio.world.rows import BadRowError
from palio.world.tasks import problem_of_row

MAX_ARRAY_BYTES = 256 * 1024 * 1024
"""Largest array file that is read whole: an arena suite has 0.05 MB."""


def import_suite(
    *paths: Path, suite_id: str = "", max_row_bytes: int = MAX_LINE_BYTES
) -> tuple[Suite, tuple[Reject, ...]]:
    """Read task files into one suite, in the order of files and rows.

    Args:
        paths: one or more files, plain, gzip or zstd.
        suite_id: name of the suite; "" takes the first file's.
        max_row_bytes: longer rows are rejected.

    Returns:
        The suite, and a `Reject` for each row that is not a problem: reasons "json", "encoding",
        "number", "type", "kind", "query", "price", "service", "voucher", "text", "too_long",
        "compression", "duplicate_id".

    Raises:
        InputError: no file was given, or one is missing or too large to be a suite.
    """
    if not paths:
        raise InputError("no task file was given")
    problems: dict[str, Problem] = {}
    rejects: list[Reject] = []
    for path in paths:
        for row in _rows(path, max_row_bytes):
            try:
                if row.fault:
                    raise BadRowError(row.fault, row.detail)
                problem = problem_of_row(row.data, row.number - 1, path.name)
                if problem.problem_id in problems:
                    raise BadRowError(
                        "duplicate_id", f"{problem.problem_id!r} stands above already"
                    )
                problems[problem.problem_id] = problem
            except BadRowError as bad:
                rejects.append(bad.reject(str(path), row.number))
    name = suite_id or paths[0].name.split(".")[0]
    return Suite(suite_id=name, version="1", problems=tuple(problems.values())), tuple(rejects)


def _rows(path: Path, max_bytes: int) -> Iterator[Line]:
    """The rows of either form with their 1-based number."""
    if first_bytes(path).startswith(b"["):
        yield from _array_rows(path, max_bytes)
    else:
        yield from read_lines(path, max_bytes=max_bytes)


def _array_rows(path: Path, max_bytes: int) -> Iterator[Line]:
    """The items of a JSON array one by one, so that a break loses only what follows it."""
    parts: list[bytes] = []
    size = 0
    for line in read_lines(path, max_bytes=MAX_ARRAY_BYTES):
        size += len(line.data)
        if line.fault == "too_long" or size > MAX_ARRAY_BYTES:
            raise InputError("over 256 MB, which no suite is", where=str(path))
        parts.append(line.data)
        if line.fault:
            yield line
    try:
        text = b"\n".join(parts).decode("utf-8")
    except UnicodeDecodeError as bad:
        yield Line(0, b"", "encoding", f"the file is not UTF-8: {bad.reason} at byte {bad.start}")
        return
    yield from _items(text, max_bytes)


def _items(text: str, max_bytes: int) -> Iterator[Line]:
    decoder = json.JSONDecoder()
    at = _skip_space(text, text.index("[") + 1)
    number = 1
    while not text.startswith("]", at):
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            yield Line(number, b"", "json", f"the array breaks off in this row: {error}")
            return
        item = text[at:end].encode("utf-8")
        if len(item) > max_bytes:
            detail = f"the row has {len(item)} bytes, at most {max_bytes} are read"
            yield Line(number, b"", "too_long", detail)
        else:
            yield Line(number, item)
        at = _skip_space(text, end)
        if text.startswith(",", at):
            at = _skip_space(text, at + 1)
        elif not text.startswith("]", at):
            yield Line(number + 1, b"", "json", "the array breaks off before this row")
            return
        number += 1
    if _skip_space(text, at + 1) < len(text):
        yield Line(number, b"", "json", "there is text after the end of the array")


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
