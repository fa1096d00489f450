"""What an agent may reach: modules, builtins, attributes, files, hosts, however written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from palio.arena.admission.config import AdmissionConfig, Names, names
from palio.arena.admission.findings import Finding, Severity
from palio.arena.admission.folding import Folding
from palio.arena.admission.source import Source

_URL = re.compile(r"\b(?:https?|wss?|ftp)://([^\s/:?#\"'{}]+)", re.IGNORECASE)
_DUNDER = re.compile(r"__[a-z_]+__")
_NAME_ONLY = re.compile(r"[A-Za-z_]\w*")


def security(source: Source, folding: Folding, config: AdmissionConfig) -> Iterator[Finding]:
    """All findings of the rules that guard the host."""
    known = names()
    for node in source.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _import(node, known, config)
        elif isinstance(node, ast.Name):
            yield from _name(node, source, known)
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node, source, known)
        elif isinstance(node, ast.MatchClass):
            hit = sorted(set(node.kwd_attrs) & known.reflective)
            if hit:
                yield _error("reflection", f"the pattern looks at {hit[0]}", node)
        if isinstance(node, ast.Call):
            yield from _call(node, source, folding, known)
    yield from _texts(source, folding, known)


def _error(rule: str, message: str, node: ast.AST, severity: Severity = "error") -> Finding:
    return Finding(rule, severity, message, int(getattr(node, "lineno", 0)))


def _import(
    node: ast.Import | ast.ImportFrom, known: Names, config: AdmissionConfig
) -> Iterator[Finding]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _module(alias.name, node, known, config)
        return
    if node.level:
        yield _error("import", "a relative import: an agent is one file", node)
        return
    module = node.module or ""
    yield from _module(module, node, known, config)
    for alias in node.names:
        if alias.name == "*":
            yield _error("import", f"everything of {module} at once hides what is used", node)
            continue
        allowed = known.restricted.get(module)
        if allowed is not None and alias.name not in allowed:
            yield _error("import", f"{module}.{alias.name} is not for agents", node)
        elif allowed is None:
            yield from _member(alias.name, module, node, known)


def _member(name: str, module: str, node: ast.AST, known: Names) -> Iterator[Finding]:
    """A name taken out of a module that may be imported."""
    bare = name.lstrip("_")
    if bare in known.forbidden or bare in known.restricted or name in known.dynamic:
        if not module.startswith("src."):
            yield _error("import", f"{name} by way of {module}", node)
    elif name in known.banned or name in known.reflective or name in known.writing:
        yield _error("import", f"{module}.{name} is not for agents", node)
    elif name.startswith("_") and not name.startswith("__"):
        yield _error("import", f"{name} is private to {module}", node)


def _module(name: str, node: ast.AST, known: Names, config: AdmissionConfig) -> Iterator[Finding]:
    parts = name.split(".")
    top = parts[0]
    if top in config.extra_modules or name in config.extra_modules:
        return
    if top in known.forbidden:
        more = "; agents reach the model and the tools through src.agent.proxy_client only"
        net = top in ("socket", "http", "requests", "httpx", "aiohttp", "ssl", "urllib3")
        yield _error(
            "network" if net else "import", f"{top} is not for agents{more if net else ''}", node
        )
    elif any(
        ".".join(parts[:at]) in known.restricted
        and parts[at] not in known.restricted[".".join(parts[:at])]
        for at in range(1, len(parts))
    ):
        yield _error("import", f"{name} is not for agents", node)
    elif top not in known.allowed and top not in known.restricted:
        yield _error("import", f"{name} is not among the modules that agents have", node)
    elif top == "src" and not name.startswith("src.agent"):
        yield _error("import", f"{name} is no module of the agents' contract", node)
    elif any(part.startswith("_") for part in parts) and name != "__future__":
        yield _error("import", f"{name} is private", node)


def _name(node: ast.Name, source: Source, known: Names) -> Iterator[Finding]:
    if node.id in known.dynamic:
        if node.id.startswith("__") or isinstance(node.ctx, ast.Load):
            yield _error("dynamic-code", f"{node.id} is not for agents", node)
        return
    if not isinstance(node.ctx, ast.Load):
        return
    around = source.parent(node)
    if node.id in (*known.by_name, "open") and not (
        isinstance(around, ast.Call) and around.func is node
    ):
        yield _error("reflection", f"{node.id} under another name", node)
    module = source.modules.get(node.id, "")
    whole = node.id in source.whole or module in known.restricted
    if whole and not isinstance(around, ast.Attribute):
        yield _error("reflection", f"the module {module} as a value", node)


def _attribute(node: ast.Attribute, source: Source, known: Names) -> Iterator[Finding]:
    name = node.attr
    if name in known.reflective or (name in known.dynamic and name.startswith("__")):
        yield _error("reflection", f"{name} leads out of the object", node)
        return
    if name == "__class__":
        around = source.parent(node)
        if not (isinstance(around, ast.Attribute) and around.attr in ("__name__", "__doc__")):
            yield _error("reflection", "__class__ of an object", node, "warning")
    chain = _chain(node)
    module = _module_of(chain, source, known)
    if module is None:
        if name.lstrip("_") in known.sharp:
            yield _error("import", f"{name} by way of an object", node)
        elif name in known.writing:
            yield _error("file-write", f"{name} writes to the file system", node)
        elif name in known.banned:
            yield _error("reflection", f"{name} is not for agents", node)
        return
    allowed = known.restricted.get(module)
    if allowed is not None:
        if name not in allowed:
            yield _error("import", f"{module}.{name} is not for agents", node)
        return
    bare = name.lstrip("_")
    hidden = bare in known.forbidden or bare in known.restricted
    if hidden and not module.startswith("src"):
        yield _error("import", f"{name} by way of {module}", node)
    elif name in known.banned or name in known.writing:
        yield _error("reflection", f"{module}.{name} is not for agents", node)


def _chain(node: ast.expr) -> list[str]:
    """`a.b.c` as its names; empty when it does not start from a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _module_of(chain: list[str], source: Source, known: Names) -> str | None:
    """The module that the last name of a chain is taken from, None where it is no module's."""
    if not chain or chain[0] not in source.modules:
        return None
    module = source.modules[chain[0]]
    for part in chain[1:-1]:
        module = f"{module}.{part}"
        if module not in known.restricted and part[:1].isupper():
            return None  # a class, and what it has is no module's
    return module


def _call(node: ast.Call, source: Source, folding: Folding, known: Names) -> Iterator[Finding]:
    if isinstance(node.func, ast.Name) and node.func.id in known.by_name:
        yield from _by_name(node, source, folding, known)
    elif isinstance(node.func, ast.Name) and node.func.id == "open":
        yield from _opened(node, 1, folding)
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "open":
        yield from _opened(node, 0, folding)
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "basicConfig":
        files = [each for each in node.keywords if each.arg in ("filename", None)]
        yield from (_error("file-write", "a log file", each.value) for each in files)


def _by_name(node: ast.Call, source: Source, folding: Folding, known: Names) -> Iterator[Finding]:
    which = node.func.id if isinstance(node.func, ast.Name) else ""
    text = folding.text(node.args[1]) if len(node.args) > 1 else None
    if text is None:
        yield _error("reflection", f"{which} with a name that is only known at run time", node)
        return
    if text in known.reflective | known.dynamic | known.banned | known.writing:
        yield _error("reflection", f"{which} of {text}", node)
    held = node.args[0]
    if isinstance(held, ast.Name) and held.id in source.modules:
        yield _error("reflection", f"{which} of the module {held.id}", node)


def _opened(node: ast.Call, place: int, folding: Folding) -> Iterator[Finding]:
    given: ast.expr | None = node.args[place] if len(node.args) > place else None
    starred = any(isinstance(each, ast.Starred) for each in node.args)
    for keyword in node.keywords:
        given = keyword.value if keyword.arg in ("mode", None) else given
    mode = "r" if given is None else folding.text(given)
    if starred or mode is None or set(mode) & set("wax+"):
        yield _error("file-write", "a file is opened for writing", node)
    else:
        yield _error("file-write", "a file is opened; an agent has none", node, "warning")


def _texts(source: Source, folding: Folding, known: Names) -> Iterator[Finding]:
    telling = known.telling
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            hit = sorted(set(_DUNDER.findall(text)) & telling)
            if hit:
                yield _error("reflection", f"a text names {hit[0]}", node)
            for host in _URL.findall(text):
                if host.lower() not in known.hosts:
                    what = f"an address outside: {host[:60]}; nothing but the proxy is reached"
                    yield _error("network", what, node, "warning")
        elif isinstance(node, ast.Subscript):
            key = folding.text(node.slice)
            if key is not None and key in known.dynamic:
                yield _error("reflection", f"an entry called {key}", node)
    for node, text in folding.assembled():
        if text in telling or set(_DUNDER.findall(text)) & telling:
            yield _error("obfuscation", f"a text that is put together to {text[:60]!r}", node)
        elif len(text) < 400 and _spells(text, telling):
            yield _error("obfuscation", f"code that is put together: {text[:60]!r}", node)


def _spells(text: str, telling: frozenset[str]) -> bool:
    """Whether a text is code that imports or calls what agents may not."""
    words = set(_NAME_ONLY.findall(text))
    return ("import" in words or "(" in text) and bool(words & (telling | {"os", "sys"}))
