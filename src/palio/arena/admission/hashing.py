"""A table that is asked by a hash hides what it knows: the requests it answers are not in it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from palio.arena.admission.findings import Finding, Severity
from palio.arena.admission.source import Source

_HASHES = frozenset(
    "md5 sha1 sha224 sha256 sha384 sha512 sha3_224 sha3_256 sha3_384 sha3_512 blake2b blake2s "  # noqa: SIM905
    "shake_128 shake_256 pbkdf2_hmac scrypt new digest hexdigest crc32 adler32 uuid3 uuid5".split()
)
_OWN = frozenset({"digest", "hexdigest"})
_FILLING = frozenset({"setdefault", "update"})
_KEEPING = frozenset({"int", "str", "hex", "bytes", "abs", "tuple", "divmod", "format"})
_TRIMMING = frozenset({"lower", "upper", "strip", "hex", "decode", "encode", "replace"})
_MADE_OF = (
    ast.BinOp,
    ast.UnaryOp,
    ast.IfExp,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Tuple,
    ast.List,
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
ROUNDS = 12
"""How many functions a hash is followed through."""


Place = tuple[int, str]
"""A variable: the function that binds it (0: the file), and its name."""


def hash_lookups(source: Source) -> Iterator[Finding]:
    """Look-ups whose key comes from a hash.

    In a table that the file fills while it runs, a cache, it is a warning.
    """
    flow = _Flow(source)
    filled = _filled(source)
    for node in source.nodes:
        table: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            table = node.value if flow.hashed(node.slice) else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asks = node.func.attr in ("get", "pop", "index", "__getitem__", "find")
            if asks and node.args and flow.hashed(node.args[0]):
                table = node.func.value
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(flow.hashed(side) for side in sides):
                table = node.comparators[0]
        elif isinstance(node, ast.Match) and flow.hashed(node.subject):
            table = node.subject
        if table is not None:
            cache = isinstance(table, ast.Name | ast.Attribute) and _called(table) in filled
            severity: Severity = "warning" if cache else "error"
            what = "a table is asked by a hash"
            yield Finding("hash-lookup", severity, what, int(getattr(node, "lineno", 0)))


def _called(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else str(getattr(node, "attr", ""))


def _filled(source: Source) -> set[str]:
    """Names of tables that are written to while the agent runs."""
    found = set()
    for node in source.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found.add(_called(node.value))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _FILLING
        ):
            found.add(_called(node.func.value))
    return found - {""}


def _hashes(node: ast.AST, source: Source) -> bool:
    """Whether an expression is itself the call of a hash."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        module = source.modules.get(node.func.id, "")
        own = node.func.id == "hash"
        return own or module.split(".")[0] in ("hashlib", "hmac", "zlib", "binascii")
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _HASHES:
        return False
    if node.func.attr in _OWN:
        return True
    root = node.func.value
    module = source.modules.get(root.id, "") if isinstance(root, ast.Name) else ""
    return module.split(".")[0] in ("hashlib", "hmac", "zlib", "binascii", "uuid")


class _Flow:
    """Where hashes go: through variables, arguments, attributes and what functions return."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._own: dict[int, set[str]] = {}
        self._functions = {
            node.name: node for node in source.nodes if isinstance(node, ast.FunctionDef)
        }
        for node in source.nodes:
            if isinstance(node, ast.arg) or (
                isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
            ):
                name = node.arg if isinstance(node, ast.arg) else node.id
                self._own.setdefault(self._function(node), set()).add(name)
        self._hashed: set[Place] = set()
        bindings = [*self._bindings(), *self._passed()]
        for _ in range(ROUNDS):
            new = {place for place, value in bindings if self.hashed(value)}
            if new <= self._hashed:
                break
            self._hashed |= new

    def hashed(self, node: ast.AST) -> bool:
        """Whether a hash, or what stands for one, is what an expression is made of.

        What a table gave for it is not the hash any more.
        """
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if _hashes(each, self._source):
                return True
            if isinstance(each, ast.Name) and self._place(each) in self._hashed:
                return True
            if isinstance(each, ast.Attribute) and (-1, each.attr) in self._hashed:
                return True
            if isinstance(each, ast.Call):
                name = _called(each.func)
                if (-2, name) in self._hashed:
                    return True
                waiting += each.args if name in _KEEPING else []
                if isinstance(each.func, ast.Attribute) and name in _TRIMMING:
                    waiting.append(each.func.value)
            elif isinstance(each, ast.Subscript):
                waiting.append(each.value)  # a piece of the digest
            elif isinstance(each, _MADE_OF):
                waiting += ast.iter_child_nodes(each)
        return False

    def _bindings(self) -> Iterator[tuple[Place, ast.AST]]:
        names = {id(node): name for name, node in self._functions.items()}
        for node in self._source.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if node.value is not None:
                    yield from ((place, node.value) for place in self._places(targets))
            elif isinstance(node, ast.For | ast.comprehension):
                yield from ((place, node.iter) for place in self._places([node.target]))
            elif isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                yield (-2, names.get(self._function(node), "")), node.value
            elif isinstance(node, ast.Lambda):
                around = self._source.parent(node)
                if isinstance(around, ast.Assign):
                    yield from (((-2, _called(each)), node.body) for each in around.targets)

    def _passed(self) -> Iterator[tuple[Place, ast.AST]]:
        """What calls of the file's own functions hand to their parameters."""
        for node in self._source.nodes:
            function = (
                self._functions.get(_called(node.func)) if isinstance(node, ast.Call) else None
            )
            if function is None or not isinstance(node, ast.Call):
                continue
            names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
            if isinstance(node.func, ast.Attribute) and names[:1] in (["self"], ["cls"]):
                names = names[1:]
            for name, value in zip(names, node.args, strict=False):
                yield (id(function), name), value
            for keyword in node.keywords:
                if keyword.arg is not None:
                    yield (id(function), keyword.arg), keyword.value

    def _places(self, targets: Iterable[ast.AST]) -> Iterator[Place]:
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
                    yield self._place(each)
                elif isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load):
                    yield (-1, each.attr)

    def _function(self, node: ast.AST) -> int:
        """The function around a node, 0 for the file."""
        around = self._source.parent(node)
        while around is not None and not isinstance(around, _SCOPES):
            around = self._source.parent(around)
        return id(around) if around is not None else 0

    def _place(self, node: ast.Name) -> Place:
        """Which variable a name is: of the nearest function that binds it."""
        scope = self._function(node)
        around: ast.AST | None = node
        while scope and node.id not in self._own.get(scope, ()):
            around = self._source.parent(around) if around is not None else None
            while around is not None and id(around) != scope:
                around = self._source.parent(around)
            scope = self._function(around) if around is not None else 0
        return (scope, node.id)
