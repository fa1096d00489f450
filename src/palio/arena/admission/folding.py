"""Texts that a file puts together from constants are read as what they become; nothing is run."""

from __future__ import annotations

import ast
import re
from typing import Any

from palio.arena.admission.source import Source

LONGEST = 20_000
"""Characters or items of a value; longer ones are left unread."""
WORK = 400_000
"""Expressions of a file that are worked out, long values counting more: about a second."""
MOST_ITEMS = 2_000
"""Items of a comprehension that are worked out."""
_WIDE = re.compile(r"%[^a-zA-Z%]*\d{3}|%[^a-zA-Z%]*\*")
_METHODS = frozenset(
    "lower upper strip lstrip rstrip swapcase title capitalize casefold replace join format decode "  # noqa: SIM905
    "encode split hex".split()
)
_WORKED_OUT = (ast.BinOp, ast.JoinedStr, ast.Call, ast.Subscript)


class Folding:
    """Values of expressions of one file; None stands for "not known"."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = [WORK]
        self._known: dict[int, Any] = {}
        self._open: set[int] = set()

    def value(self, node: ast.AST) -> Any:
        """What an expression becomes: a text, bytes, an integer, a list of these, or None."""
        key = id(node)
        if key not in self._known:
            if key in self._open or len(self._open) > 150 or self._left[0] < 0:
                return None
            self._open.add(key)
            try:
                self._known[key] = _bounded(self._fold(node))
            except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
                self._known[key] = None
            finally:
                self._open.discard(key)
                self._left[0] -= 1 + _size(self._known.get(key)) // 64
        return self._known[key]

    def text(self, node: ast.AST) -> str | None:
        """The same where it is a text."""
        value = self.value(node)
        if isinstance(value, bytes):
            return value.decode("latin-1")
        return value if isinstance(value, str) else None

    def assembled(self) -> list[tuple[ast.expr, str]]:
        """Texts that do not stand in the file but are put together in it."""
        made: list[tuple[ast.expr, str]] = []
        for node in self._source.nodes:
            if isinstance(node, _WORKED_OUT):
                text = self.text(node)
                if text:
                    made.append((node, text))
        return made

    def _fold(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | bytes | int | float) else None
        if isinstance(node, ast.Name):
            bound = self._source.constants.get(node.id)
            return None if bound is None else self.value(bound)
        if isinstance(node, ast.List | ast.Tuple):
            return self._all(node.elts)
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.JoinedStr):
            return "".join(_must(self._part(part)) for part in node.values)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self._comprehension(node)
        return self._call(node) if isinstance(node, ast.Call) else None

    def _all(self, nodes: list[ast.expr]) -> list[Any] | None:
        if len(nodes) > LONGEST:
            return None
        values = [self.value(node) for node in nodes]
        return None if any(value is None for value in values) else values

    def _part(self, part: ast.expr) -> str | None:
        value = self.value(part.value if isinstance(part, ast.FormattedValue) else part)
        return None if value is None else str(value)

    def _operation(self, node: ast.BinOp) -> Any:
        left, right = _must(self.value(node.left)), _must(self.value(node.right))
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.BitXor):
            return left ^ right
        if isinstance(node.op, ast.Mult):
            left, right = (right, left) if isinstance(left, int) else (left, right)
            return left * right if abs(right) * max(_size(left), 1) <= LONGEST else None
        if isinstance(node.op, ast.Mod) and isinstance(left, str) and not _WIDE.search(left):
            return left % (tuple(right) if isinstance(right, list) else right)
        return None

    def _subscript(self, node: ast.Subscript) -> Any:
        held = _must(self.value(node.value))
        if not isinstance(node.slice, ast.Slice):
            return held[_must(self.value(node.slice))]
        parts = (node.slice.lower, node.slice.upper, node.slice.step)
        return held[slice(*(None if part is None else _must(self.value(part)) for part in parts))]

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Any:
        """`chr(c) for c in [...]`, with something added or taken away before."""
        (loop,) = node.generators
        items = _must(self.value(loop.iter))
        if not isinstance(loop.target, ast.Name) or loop.ifs or len(items) > MOST_ITEMS:
            return None
        made = []
        for item in items:
            inner = _With(self._source, loop.target.id, item, self._left)
            made.append(_must(inner.value(node.elt)))
        return made

    def _call(self, node: ast.Call) -> Any:
        given = [_must(self.value(each)) for each in node.args if not _is_chr(each)]
        if isinstance(node.func, ast.Name):
            return _built_in(node, node.func.id, given)
        if not isinstance(node.func, ast.Attribute):
            return None
        if node.func.attr == "fromhex":
            return bytes.fromhex(given[0])
        if node.func.attr not in _METHODS or node.keywords:
            return None
        held = _must(self.value(node.func.value))
        if node.func.attr == "format" and ("." in held or "[" in held or ":" in held):
            return None
        if node.func.attr == "replace" and len(held) * max(1, len(given[1])) > LONGEST:
            return None
        return getattr(held, node.func.attr)(*given)


class _With(Folding):
    """The same inside a comprehension, where one name stands for one item."""

    def __init__(self, source: Source, name: str, item: Any, left: list[int]) -> None:
        super().__init__(source)
        self._name, self._item, self._left = name, item, left

    def _fold(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Name) and node.id == self._name:
            return self._item
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return None
        return super()._fold(node)


def _is_chr(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("chr", "str")


def _built_in(node: ast.Call, name: str, given: list[Any]) -> Any:
    if name == "chr":
        return chr(given[0])
    if name == "ord":
        return ord(given[0])
    if name in ("bytes", "bytearray") and isinstance(given[0], list):
        return bytes(given[0])
    if name in ("list", "tuple"):
        return list(given[0])
    if name == "reversed":
        return list(given[0])[::-1]
    if name == "str" and len(given) == 1:
        return str(given[0])
    if name == "map" and len(node.args) == 2 and _is_chr(node.args[0]):
        return [chr(item) if isinstance(item, int) else str(item) for item in given[0]]
    return None


def _size(value: Any) -> int:
    if isinstance(value, float):
        return 1
    return value.bit_length() if isinstance(value, int) else len(value or ())


def _must(value: Any) -> Any:
    if value is None:
        raise ValueError("not known")
    return value


def _bounded(value: Any) -> Any:
    if isinstance(value, str | bytes | list):
        return value if len(value) <= LONGEST else None
    if isinstance(value, float):
        return value
    return value if isinstance(value, int) and value.bit_length() < 4096 else None
