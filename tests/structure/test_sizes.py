"""Functions stay under 60 lines and files under 400: whatever grows past has a second job."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FUNCTION = 60
MAX_FILE = 400
FILES = sorted(
    path
    for folder in ("src", "tests", "bench", "scripts")
    for path in (ROOT / folder).rglob("*.py")
)


def too_long(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    wrong = [f"{path}: {lines} lines, at most {MAX_FILE}"] if lines > MAX_FILE else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > MAX_FUNCTION:
                wrong.append(f"{path}:{node.lineno}: {node.name} has {size} lines")
    return wrong


def test_files_were_found() -> None:
    assert len(FILES) > 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_size(path: Path) -> None:
    assert not too_long(path), "\n".join(too_long(path))


def test_a_long_function_is_found(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("def f():\n" + "    x = 1\n" * 60, encoding="utf-8")
    assert too_long(path) == [f"{path}:1: f has 61 lines"]
