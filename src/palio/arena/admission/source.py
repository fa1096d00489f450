"""Bytes of a stranger become a tree that can be looked at, in bounded time, or findings why not."""

from __future__ import annotations

import ast
import re
import unicodedata
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from palio.arena.admission.config import AdmissionConfig
from palio.arena.admission.findings import Finding

_PIECE = re.compile(r"\w+|[^\w\s]")
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_HIDDEN = re.compile(
    "[\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""Characters that cannot be seen, or that turn text around."""
_NAME = re.compile(r"[^\W\d]\w*")
BRACES = 20_000
"""Opening braces of a file. Parsing an f-string takes the square of its fields: 20,000 take 0.3 s,
70,000 took 11 s."""
NESTING = 90
"""Levels of one expression; code that people write has under 20."""


@dataclass
class Source:
    """A file that parses, with what the rules ask of it again and again.

    Attributes:
        nodes: all nodes, parents before children.
        parents: id of a node -> its parent.
        modules: name in the file -> the module that it was imported as.
        whole: those of them that are modules for sure, and no function or class of one.
    """

    text: str
    tree: ast.Module
    nodes: list[ast.AST] = field(default_factory=list)
    parents: dict[int, ast.AST] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.nodes = list(ast.walk(self.tree))
        for node in self.nodes:
            for child in ast.iter_child_nodes(node):
                self.parents[id(child)] = node
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.split(".")[0]
                    self.modules[bound] = alias.name if alias.asname else bound
                    self.whole.add(bound)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self.modules.setdefault(
                        alias.asname or alias.name, f"{node.module}.{alias.name}"
                    )

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around a node."""
        return self.parents.get(id(node))

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names that are bound exactly once in the file, by a plain assignment, -> their value."""
        values: dict[str, ast.expr] = {}
        bound: dict[str, int] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound[node.id] = bound.get(node.id, 0) + 1
            elif isinstance(node, ast.arg):
                bound[node.arg] = bound.get(node.arg, 0) + 2
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                if isinstance(node.targets[0], ast.Name):
                    values[node.targets[0].id] = node.value
            elif (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.value is not None
            ):
                values[node.target.id] = node.value
        return {name: value for name, value in values.items() if bound.get(name) == 1}


def read_source(data: bytes, config: AdmissionConfig) -> tuple[Source | None, list[Finding]]:
    """The file's tree, and what is wrong with its form; no tree where that forbids looking on."""
    if len(data) > config.max_bytes:
        return None, [too_big(len(data), config.max_bytes)]
    text, found = _decoded(data)
    if text is None:
        return None, found
    pieces = sum(1 for _ in _PIECE.finditer(text))
    if pieces > config.max_pieces:
        what = f"the file has {pieces} words and signs, at most {config.max_pieces} are looked at"
        return None, [*found, Finding("complexity", "error", what)]
    if text.count("{") > BRACES:
        what = f"the file has more than {BRACES} braces"
        return None, [*found, Finding("complexity", "error", what)]
    found += _hidden(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        return None, [*found, Finding("syntax", "error", f"{error.msg}", error.lineno or 0)]
    except (RecursionError, MemoryError, ValueError, OverflowError) as error:
        what = f"the file is nested too deeply to be read ({type(error).__name__})"
        return None, [*found, Finding("complexity", "error", what)]
    deep = _too_deep(tree)
    if deep:
        what = f"an expression is nested more than {NESTING} levels deep"
        return None, [*found, Finding("complexity", "error", what, deep)]
    return Source(text, tree), found


def too_big(size: int, limit: int) -> Finding:
    """The finding about a file that is not looked at."""
    return Finding("size", "error", f"the file has {size} bytes, at most {limit} are allowed")


def _decoded(data: bytes) -> tuple[str | None, list[Finding]]:
    for number, line in enumerate(data.split(b"\n", 2)[:2], 1):
        cookie = _COOKIE.match(line)
        if cookie and cookie[1].lower().replace(b"_", b"-") not in (b"utf-8", b"utf8", b"ascii"):
            what = f"the file declares the encoding {cookie[1].decode('ascii', 'replace')!r}"
            return None, [Finding("encoding", "error", f"{what}; only UTF-8 is read", number)]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_number = data.count(b"\n", 0, error.start) + 1
        what = f"the file is not UTF-8: {error.reason} at byte {error.start}"
        return None, [Finding("encoding", "error", what, line_number)]
    if "\x00" in text:
        line_number = text.count("\n", 0, text.index("\x00")) + 1
        return None, [Finding("encoding", "error", "the file holds a NUL character", line_number)]
    return text, []


def _hidden(text: str) -> list[Finding]:
    """Characters that nobody sees, and words that are read as other letters than they show."""
    if text.isascii():
        return []
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.isascii():
            continue
        hidden = _HIDDEN.search(line)
        if hidden:
            what = f"an invisible character (U+{ord(hidden[0]):04X})"
            found.append(Finding("obfuscation", "error", what, number))
        found += [
            Finding(
                "obfuscation", "error", f"{name[:40]!r} is read as {_plain(name)[:40]!r}", number
            )
            for name in _NAME.findall(line)
            if not name.isascii() and _plain(name).isascii()
        ]
        if len(found) > 20:
            break
    return found


def _plain(name: str) -> str:
    return unicodedata.normalize("NFKC", name)


def _too_deep(tree: ast.AST) -> int:
    """The line of an expression below `NESTING` levels of others, 0 if there is none."""
    stack: list[tuple[ast.AST, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > NESTING:
            return int(getattr(node, "lineno", 1))
        inner = depth + 1 if isinstance(node, ast.expr) else 0
        stack += [(child, inner) for child in ast.iter_child_nodes(node)]
    return 0


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements at the top of the file, those inside if and try too."""
    waiting: list[ast.stmt] = list(reversed(tree.body))
    while waiting:
        statement = waiting.pop()
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            inner = [*statement.body, *getattr(statement, "orelse", [])]
            for handler in getattr(statement, "handlers", []):
                inner += handler.body
            waiting += reversed(inner)
