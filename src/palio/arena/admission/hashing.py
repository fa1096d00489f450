"""A table that is asked by a hash hides what it knows: the requests it answers are not in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from palio.arena.admission.findings import Finding, Severity
from palio.arena.admission.source import Source

_HASHES = frozenset(
    "md5 sha1 sha224 sha256 sha384 sha512 sha3_224 sha3_256 sha3_384 sha3_512 blake2b blake2s "  # noqa: SIM905
    "shake_128 shake_256 pbkdf2_hmac scrypt new digest hexdigest crc32 adler32 uuid3 uuid5".split()
)
_OWN = frozenset({"digest", "hexdigest"})
_FILLING = frozenset({"setdefault", "update"})


def hash_lookups(source: Source) -> Iterator[Finding]:
    """Look-ups whose key comes from a hash.

    In a table that the file fills while it runs, a cache, it is a warning.
    """
    hashed = _hashed_names(source)
    filled = _filled(source)
    for node in source.nodes:
        table: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            table = node.value if _is_hashed(node.slice, source, hashed) else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asks = node.func.attr in ("get", "pop", "index", "__getitem__", "find")
            given = node.args[:1]
            if asks and given and _is_hashed(given[0], source, hashed):
                table = node.func.value
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(_is_hashed(side, source, hashed) for side in sides):
                table = node.comparators[0]
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


def _hashed_names(source: Source) -> set[str]:
    """Variables and functions whose value comes from a hash; goes round until nothing is new."""
    bindings: list[tuple[str, ast.AST]] = []
    for node in source.nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
            if node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                named = (each for each in ast.walk(target) if isinstance(each, ast.Name))
                bindings += [(each.id, node.value) for each in named]
        elif isinstance(node, ast.FunctionDef | ast.Lambda):
            name = _function_name(node, source)
            returned = [node.body] if isinstance(node, ast.Lambda) else _returned(node)
            bindings += [(name, value) for value in returned if name]
    hashed: set[str] = set()
    for _ in range(8):
        new = {name for name, value in bindings if _is_hashed(value, source, hashed)}
        if new <= hashed:
            break
        hashed |= new
    return hashed


def _function_name(node: ast.FunctionDef | ast.Lambda, source: Source) -> str:
    if isinstance(node, ast.FunctionDef):
        return node.name
    around = source.parent(node)
    target = around.targets[0] if isinstance(around, ast.Assign) else None
    return target.id if isinstance(target, ast.Name) else ""


def _returned(node: ast.FunctionDef) -> list[ast.expr]:
    inner = (each for each in ast.walk(node) if isinstance(each, ast.Return))
    return [each.value for each in inner if each.value is not None]


def _is_hashed(node: ast.AST, source: Source, hashed: set[str]) -> bool:
    """Whether a hash, or a name that stands for one, is what an expression is made of.

    A dictionary, or what a table gave for it, is not the hash any more.
    """
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if _hashes(each, source):
            return True
        if isinstance(each, ast.Name) and each.id in hashed:
            return True
        if isinstance(each, ast.Call) and _called(each.func) in hashed:
            return True
        if isinstance(each, ast.Subscript):
            waiting.append(each.value)  # a piece of the digest
        elif isinstance(each, ast.BinOp | ast.JoinedStr | ast.FormattedValue | ast.Tuple):
            waiting += ast.iter_child_nodes(each)
        elif isinstance(each, ast.Call) and _called(each.func) in ("int", "str", "hex", "bytes"):
            waiting += each.args
    return False
