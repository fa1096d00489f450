"""Whatever an agent sends as arguments becomes one canonical, JSON-safe dictionary."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

FOUR_TOOLS = ("find_product", "view_product_information", "recommend_product", "terminate")
SEVEN_TOOLS = (
    *FOUR_TOOLS,
    "calculate_voucher",
    "check_product_match",
    "find_products_in_same_shop",
)
ALL_TOOLS = (*SEVEN_TOOLS, "web_search", "python_execute")
"""Every tool there is; the last two only where a run has documents, and a sandbox for code."""
CATALOGUE_TOOLS = (
    "find_product",
    "view_product_information",
    "calculate_voucher",
    "check_product_match",
    "find_products_in_same_shop",
)
"""Tools that look at the world: the denominator of agentic richness."""

UNPARSED = "unparsed"
"""Key under which arguments stand that are no JSON object."""

_MAX_DEPTH = 12
_MAX_INTEGER = 2**63


def canonical_arguments(tool: str, arguments: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Arguments in the one form by which calls are executed and compared.

    Aliases get their canonical name (query -> q, product_id <-> product_ids, an object wrapped in
    `parameters` or `arguments` is unwrapped, JSON text is parsed, twice if need be), lists of ids
    become comma text, numbers in text become numbers, defaults are dropped. Unknown names are kept
    after the known ones. Text that is no JSON object is returned as ``{"unparsed": text}``.

    The result always has a canonical JSON form: NaN, infinities and over-long integers become text,
    lone surrogates become question marks, and nesting is cut at 12 levels.
    """
    given = _as_object(arguments)
    forms = _FORMS.get(tool, {})
    named: dict[str, Any] = {}
    for name, value in given.items():
        proper = _ALIASES.get(tool, {}).get(name, name)
        own_name_wins = name == proper and value not in (None, "")
        if named.get(proper) in (None, "") or own_name_wins:
            named[proper] = value
    canonical = {name: _FORM[form](named[name]) for name, form in forms.items() if name in named}
    canonical.update({name: value for name, value in named.items() if name not in forms})
    return {name: value for name, value in canonical.items() if not _is_default(name, value)}


def known_arguments(tool: str) -> tuple[str, ...]:
    """Canonical argument names of a tool in schema order."""
    return tuple(_FORMS.get(tool, {}))


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object in a text, also when it was encoded twice; None when there is none."""
    value: Any = text
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _as_object(arguments: Mapping[str, Any] | str | None) -> dict[str, Any]:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    found = parse_object(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(found, Mapping):
        return {UNPARSED: _safe(arguments)}
    for wrapper in ("arguments", "parameters"):
        if wrapper in found and set(found) <= {wrapper, "name"}:
            inner = found[wrapper]
            inner = parse_object(inner) if isinstance(inner, str) else inner
            if isinstance(inner, Mapping):
                found = inner
    return {_safe_text(str(name)): _safe(value) for name, value in found.items()}


def _safe(value: Any, depth: int = 0) -> Any:
    """The value with everything replaced that JSON, or a reader of it, cannot hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _safe_text(value)
    if isinstance(value, int):
        return int(value) if -_MAX_INTEGER <= value < _MAX_INTEGER else "an over-long integer"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if depth >= _MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return {_safe_text(str(name)): _safe(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(inner, depth + 1) for inner in value]
    return _safe_text(f"a {type(value).__name__}")


def _safe_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    return _number_text(value) if _is_number(value) else value


def _comma_list(value: Any) -> Any:
    """Comma text of a comma text, of a JSON list, or of JSON text of a list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _json_list(value)
    if _is_number(value):
        return _number_text(value)
    if isinstance(value, list):
        if not all(isinstance(item, str) or _is_number(item) for item in value):
            return value
        value = ",".join(_text(item) for item in value)
    if isinstance(value, str):
        return ",".join(part for piece in value.split(",") if (part := piece.strip()))
    return value


def _json_list(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _safe(value) if isinstance(value, list) else text


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value.strip()
        if not math.isfinite(number):
            return value.strip()
        value = int(value) if value.strip().isdecimal() and len(value) < 19 else number
    if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_INTEGER:
        return int(value)
    return value


def _mapping(value: Any) -> Any:
    """An object, also from JSON text or from a list of objects (the form of reward records)."""
    if isinstance(value, str):
        return _safe(parse_object(value)) or value.strip()
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return {name: wanted for item in value for name, wanted in item.items()}
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_text(value: float) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < _MAX_INTEGER)
    return str(int(value)) if whole else repr(value)


def _is_default(name: str, value: Any) -> bool:
    if value is None or (isinstance(value, str | list | dict) and not value):
        return True
    # the type matters: True == 1, yet a page of True is a mistake that the tool should name
    return name in _DEFAULTS and type(value) is type(_DEFAULTS[name]) and value == _DEFAULTS[name]


_DEFAULTS: dict[str, Any] = {
    "page": 1,
    "sort": "default",
    "service": "default",
    "cap": 0,
    "status": "success",
    "max_results": 5,
}
_FORM: dict[str, Callable[[Any], Any]] = {
    "code": lambda value: value,  # indentation is meaning
    "text": _text,
    "list": _comma_list,
    "number": _number,
    "mapping": _mapping,
}
_SEARCH = {"price": "text", "sort": "text", "service": "list", "page": "number"}
_FORMS: dict[str, dict[str, str]] = {
    "find_product": {"q": "text", "shop_id": "text", **_SEARCH},
    "view_product_information": {"product_ids": "list"},
    "recommend_product": {"product_ids": "list"},
    "terminate": {"status": "text"},
    "calculate_voucher": {
        "product_prices": "list",
        "voucher_type": "text",
        "discount_value": "number",
        "threshold": "number",
        "budget": "number",
        "cap": "number",
    },
    "check_product_match": {
        "product_id": "text",
        "sku_options": "mapping",
        "attributes": "mapping",
        "price": "text",
        "service": "list",
        "shop_id": "text",
    },
    "find_products_in_same_shop": {"product_id": "text", "q": "text", **_SEARCH},
    "web_search": {"q": "text", "max_results": "number"},
    "python_execute": {"code": "code"},
}
_ALIASES: dict[str, dict[str, str]] = {
    "find_product": {"query": "q"},
    "view_product_information": {"product_id": "product_ids"},
    "recommend_product": {"product_id": "product_ids"},
    "check_product_match": {"product_ids": "product_id"},
    "find_products_in_same_shop": {"product_ids": "product_id", "query": "q"},
    "web_search": {"query": "q"},
}
