"""A submission must work its answers out: tables, encoded data, clocks and flattery are found."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from palio.arena.admission.config import AdmissionConfig, injection, names
from palio.arena.admission.findings import Finding, Severity
from palio.arena.admission.folding import Folding
from palio.arena.admission.hashing import hash_lookups
from palio.arena.admission.source import Source

_ID = re.compile(r"(?<![\w.])\d{6,13}(?![\w.])")
_SHORT_ID = re.compile(r"\d{4,13}(?:,\d{4,13})*")
_HEX = re.compile(r"(?<![0-9a-fA-F])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{16,}(?![0-9a-fA-F])")
_ENCODED = re.compile(r"[A-Za-z0-9+/=_\-!#$%&()*;<>?@^`{|}~]+")
_LITERAL = (ast.Dict, ast.List, ast.Tuple, ast.Set)
_HOURS = ("%H", "%I", "%A", "%a", "%w", "%u", "%d", "%j", "%p")
_UNSEEN = re.compile(
    "[\u00ad\u034f\u115f\u1160\u180e\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\u3164\ufeff\uffa0\U000e0000-\U000e01ef]"
)
"""What shows nothing or turns text around, without emoji's own joiners (U+200D, U+FE0F)."""
_ALIKE = "\u0400-\u052f\u0391\u039f\u03b1\u03b9\u03bd\u03bf"
_MIXED = re.compile(f"[A-Za-z][{_ALIKE}]|[{_ALIKE}][A-Za-z]")
"""Cyrillic, and Greek letters that look Latin, within a Latin word."""
SENTENCE = 50
"""Characters from which a key is a request and no name."""
LONG = 20_000
"""Characters of one literal; the longest prompts that were seen have 12,000."""


def integrity(source: Source, folding: Folding, config: AdmissionConfig) -> Iterator[Finding]:
    """All findings of the rules that guard the race."""
    yield from _tables(source, folding, config)
    yield from _data(source, folding, config)
    yield from hash_lookups(source)
    yield from _strategy(source)
    for node, text in _all_texts(source, folding):
        if len(text) > 2 and (unseen := _UNSEEN.search(text)):
            what = f"a text with an invisible character (U+{ord(unseen[0]):04X})"
            yield _error("obfuscation", what, node)
        if mixed := _MIXED.search(text):
            yield _error("obfuscation", f"letters of two scripts in {mixed[0][:40]!r}", node)
        hit = injection().search(_shown(text[:LONG]))
        if hit:
            yield _error("prompt-injection", f"a text for the judge: {hit[0][:80]!r}", node)


def _shown(text: str) -> str:
    """A text as a model reads it: invisible characters out, look-alike forms in their plain one."""
    if text.isascii():
        return text
    tagged = "".join(
        chr(ord(c) - 0xE0000) if "\U000e0020" <= c <= "\U000e007e" else c for c in text
    )
    return unicodedata.normalize("NFKC", _UNSEEN.sub("", tagged)).replace("\u2581", "_")


def _error(rule: str, message: str, node: ast.AST, severity: Severity = "error") -> Finding:
    return Finding(rule, severity, message, int(getattr(node, "lineno", 0)))


def _all_texts(source: Source, folding: Folding) -> Iterator[tuple[ast.AST, str]]:
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, node.value
    yield from folding.assembled()


def _outermost(source: Source) -> Iterator[ast.AST]:
    for node in source.nodes:
        if isinstance(node, _LITERAL) and not isinstance(source.parent(node), (*_LITERAL,)):
            yield node


def _leaves(node: ast.AST, folding: Folding) -> list[Any]:
    waiting, values = [node], []
    while waiting:
        each = waiting.pop()
        if isinstance(each, _LITERAL):
            waiting += [
                child for child in ast.iter_child_nodes(each) if isinstance(child, ast.expr)
            ]
        else:
            value = folding.value(each)
            if value is not None:
                values.append(value)
    return values


def _ids(value: Any) -> int:
    """How many product ids a value holds."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, int | float):
        return int(100_000 < value < 10**13 and value == int(value))
    text = value if isinstance(value, str) else ""
    return len(_ID.findall(text))


def _tables(source: Source, folding: Folding, config: AdmissionConfig) -> Iterator[Finding]:
    literals = [(node, _leaves(node, folding)) for node in _outermost(source)]
    literals += [(node, [text]) for node, text in _all_texts(source, folding)]
    for node, values in literals:
        ids = sum(_ids(value) for value in values)
        if ids >= config.table_ids:
            yield _error("embedded-answers", f"a table of {ids} product ids", node)
        if isinstance(node, ast.Dict):
            yield from _mapping(node, folding, config)
    found = [(node, text) for node, text in _all_texts(source, folding)]
    numbers = [node for node in source.nodes if isinstance(node, ast.Constant)]
    ids = sum(len(_ID.findall(text)) for _, text in found)
    ids += sum(_ids(node.value) for node in numbers if isinstance(node.value, int | float))
    if ids >= config.file_ids:
        what = f"{ids} product ids in the file"
        yield Finding("embedded-answers", "error", what)
    digests = {hit for _, text in found for hit in _HEX.findall(text) if not hit.isdigit()}
    if len(digests) >= config.table_digests:
        yield Finding("embedded-answers", "error", f"{len(digests)} digests in the file")
    yield from _known(found, config)


def _mapping(node: ast.Dict, folding: Folding, config: AdmissionConfig) -> Iterator[Finding]:
    keys = [folding.value(key) for key in node.keys if key is not None]
    requests = sum(
        isinstance(key, str) and len(key) >= SENTENCE and key.count(" ") > 5 for key in keys
    )
    if requests >= config.table_queries:
        yield _error("embedded-answers", f"a table with {requests} requests as keys", node)
    values = [folding.value(value) for value in node.values]
    short = sum(isinstance(value, str) and bool(_SHORT_ID.fullmatch(value)) for value in values)
    if short >= config.table_ids and short * 2 > len(values):
        yield _error("embedded-answers", f"a table with {short} ids as values", node)


def _known(found: list[tuple[ast.AST, str]], config: AdmissionConfig) -> Iterator[Finding]:
    if config.known_ids:
        hits = {hit for _, text in found for hit in re.findall(r"\d{4,13}", text)}
        hits &= config.known_ids
        if len(hits) >= 2:
            what = f"{len(hits)} ids that are answers of a public suite"
            yield Finding("embedded-answers", "error", what)
    if config.known_texts:
        wanted = {" ".join(text.split()).casefold() for text in config.known_texts}
        for node, text in found:
            flat = " ".join(text.split()).casefold()
            if len(flat) >= 20 and (flat in wanted or any(each in flat for each in wanted)):
                yield _error("embedded-answers", "a request of a public suite", node)
                return


def _data(source: Source, folding: Folding, config: AdmissionConfig) -> Iterator[Finding]:
    for node in source.nodes:
        if isinstance(node, ast.Constant):
            yield from _constant(node, node.value, config)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            numbers = sum(
                isinstance(each, ast.Constant) and isinstance(each.value, int) for each in node.elts
            )
            if numbers >= config.number_list:
                yield _error("encoded-data", f"a list of {numbers} integers", node)
    for node, text in folding.assembled():
        if len(text) >= config.encoded_text:
            yield from _constant(node, text, config)


def _constant(node: ast.AST, value: Any, config: AdmissionConfig) -> Iterator[Finding]:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 100:
        yield _error("encoded-data", f"an integer of {value.bit_length()} bits", node)
    elif isinstance(value, bytes):
        odd = sum(not 32 <= byte < 127 and byte not in b"\r\n\t" for byte in value[:LONG])
        if odd > 16 or len(value) > config.encoded_text:
            yield _error("encoded-data", f"{len(value)} bytes of data", node)
    elif isinstance(value, str):
        if len(value) > LONG:
            yield _error("encoded-data", f"a text of {len(value)} characters", node)
        longest = max(_ENCODED.findall(value[:LONG]), key=len, default="")
        if len(longest) >= config.encoded_text and len(set(longest)) >= 8:
            what = f"{len(longest)} characters without a space"
            yield _error("encoded-data", what, node)
        if re.search(r"[ \t\u2000-\u200f]{48}", value) and "\t" in value:
            yield _error("encoded-data", "spaces and tabs that mean something", node)
        foreign = sum(ord(letter) > 0x2FFF for letter in value[:LONG])
        if foreign > config.encoded_text and len(set(value)) * 2 > foreign:
            yield _error("encoded-data", f"{foreign} characters of no language", node, "warning")


def _strategy(source: Source) -> Iterator[Finding]:
    known = names()
    clocks = any(name.split(".")[0] in ("time", "datetime") for name in source.modules.values())
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if clocks and node.attr in known.calendar:
                yield _error("one-strategy", f"{node.attr} tells the day or the hour", node)
            elif node.attr in known.machine:
                yield _error("one-strategy", f"{node.attr} tells of the machine", node)
            elif node.attr == "getenv":
                yield _error("one-strategy", "the environment is read", node, "warning")
        elif isinstance(node, ast.Constant) and node.value in _HOURS:
            yield _error("one-strategy", "the time of day is written out", node, "warning")
