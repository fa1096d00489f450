"""One line of a product file becomes a trusted Product, or a reason why not."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from palio.records import SERVICES, Product, Reject

MAX_DETAIL = 300
"""Characters of a reject's sentence: a bad value of a megabyte is not repeated."""

_SERVICES = frozenset(SERVICES)
_TEXT = str | None
_SCALAR = str | int | float | None


class BadRowError(Exception):
    """A line that is not a product; `reason` is the reject's code, `detail` its sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail if len(detail) <= MAX_DETAIL else detail[:MAX_DETAIL] + "..."

    def reject(self, file: str, line: int) -> Reject:
        """The record of this line, for the rejects file."""
        return Reject(file=file, line=line, reason=self.reason, detail=self.detail)


class _Row(msgspec.Struct):
    """The shape that product rows come in; both ids may be numbers, lists may be single values."""

    title: str
    price: float
    shop_id: str | int
    product_id: str | int | None = None
    service: list[str] | str | None = None
    sold_count: int | float | None = None
    brand: _TEXT = None
    category: _TEXT = None
    short_description: _TEXT = None
    description: _TEXT = None
    specification: _TEXT = None
    sku_options: dict[str, dict[str, _SCALAR]] | list[dict[str, _SCALAR]] | None = None
    attributes: dict[str, list[_SCALAR] | _SCALAR] | list[Any] | None = None
    main_image_url: _TEXT = None
    product_url: _TEXT = None


class _Envelope(msgspec.Struct):
    """A ShoppingBench document `{"id", "contents", "product"}`; plain rows have no `product`."""

    id: str | int | None = None
    product: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_envelope = msgspec.json.Decoder(_Envelope)
_row = msgspec.json.Decoder(_Row)


def product_of_line(line: bytes) -> Product:
    """The product that a line holds, in either form.

    Raises:
        BadRowError: reasons "json", "encoding", "number", "type", "id", "price", "service",
            "text", "sold_count".
    """
    try:
        envelope = _envelope.decode(line)
        if isinstance(envelope.product, msgspec.UnsetType):
            row, outer = _row.decode(line), None
        else:
            row, outer = _row.decode(envelope.product), envelope.id
    except msgspec.ValidationError as error:
        raise BadRowError(validation_reason(str(error)), str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRowError(*explain_bad_json(line, error)) from error
    product = _product(row, _identity(row.product_id, outer))
    if b"\\u0000" in line and b"\\u0000" in msgspec.json.encode(product):
        raise BadRowError("text", "a text holds a NUL character")
    return product


def validation_reason(message: str) -> str:
    """Reject reason of a msgspec validation message: "number" when out of range, else "type"."""
    return "number" if "out of range" in message else "type"


def explain_bad_json(line: bytes, error: Exception) -> tuple[str, str]:
    """(reason, detail) of a line that the strict decoder refused."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as bad:
        return "encoding", f"the line is not UTF-8: {bad.reason} at byte {bad.start}"
    found: list[str] = []

    def note(name: str) -> float:
        found.append(name)
        return 0.0

    try:
        value = json.loads(text, parse_constant=note)
        if found:
            return "number", f"{found[0]} is not a number that JSON has"
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return "encoding", "a text holds half of a surrogate pair"
    except (ValueError, RecursionError):
        pass
    return "json", f"not a JSON document: {error}"


def check_product(product: Product) -> Product:
    """The product itself, with a float price, if it keeps every promise of its record.

    Raises:
        BadRowError: see `product_of_line`.
    """
    _check_id("product_id", product.product_id)
    _check_id("shop_id", product.shop_id)
    price = product.price
    if isinstance(price, bool) or not isinstance(price, int | float):
        raise BadRowError("type", f"price is {price!r}, not a number")
    if not math.isfinite(price) or price < 0:
        raise BadRowError("price", f"price {price!r} is not a finite amount of at least 0")
    unknown = [tag for tag in product.service if tag not in _SERVICES]
    if unknown:
        raise BadRowError("service", f"{unknown[0]!r} is none of {', '.join(SERVICES)}")
    if product.sold_count < 0:
        raise BadRowError("sold_count", f"sold_count {product.sold_count} is negative")
    if isinstance(price, int) or math.copysign(1.0, price) < 0:  # -0.0 would change the digest
        return msgspec.structs.replace(product, price=abs(float(price)))
    return product


def _identity(inner: str | int | None, outer: str | int | None) -> str:
    """The row's product id, from the product or from the document around it."""
    if inner is None and outer is None:
        raise BadRowError("id", "the row has no product_id")
    if inner is not None and outer is not None and str(inner) != str(outer):
        raise BadRowError("id", f"id {outer!r} and product_id {inner!r} differ")
    return str(outer if inner is None else inner)


def _check_id(name: str, value: str) -> None:
    if not isinstance(value, str) or not value or value != value.strip():
        raise BadRowError("id", f"{name} {value!r} is empty or has spaces around it")
    if "," in value or not value.isprintable():
        raise BadRowError("id", f"{name} {value!r} has a comma or a control character")


def _product(row: _Row, product_id: str) -> Product:
    tags = row.service if row.service is not None else []
    if isinstance(tags, str):
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    sold = row.sold_count or 0
    if sold != sold // 1:
        raise BadRowError("sold_count", f"sold_count {sold!r} is not a whole number")
    return check_product(
        Product(
            product_id=product_id,
            shop_id=str(row.shop_id),
            title=row.title,
            price=row.price,
            service=tuple(dict.fromkeys(tags)),
            sold_count=int(sold),
            brand=row.brand or "",
            category=row.category or "",
            short_description=row.short_description or "",
            description=row.description or "",
            specification=row.specification or "",
            sku_options=_sku_options(row.sku_options),
            attributes=_attributes(row.attributes),
            main_image_url=row.main_image_url or "",
            product_url=row.product_url or "",
        )
    )


def _sku_options(given: dict[str, Any] | list[Any] | None) -> dict[str, dict[str, str]]:
    """SKU number -> option -> value; an empty list means none, a list is numbered from 1."""
    if not given:
        return {}
    numbered = (
        given.items()
        if isinstance(given, dict)
        else ((str(place), sku) for place, sku in enumerate(given, 1))
    )
    return {
        number: {name: value_text(value) for name, value in sku.items() if value is not None}
        for number, sku in numbered
    }


def _attributes(given: dict[str, Any] | list[Any] | None) -> dict[str, tuple[str, ...]]:
    """Attribute -> values; a single value stands for a list of one, an empty list for none."""
    if isinstance(given, list):
        if given:
            raise BadRowError("type", "attributes is a list, not an object of lists")
        return {}
    kept = {}
    for name, values in (given or {}).items():
        many = values if isinstance(values, list) else [values]
        kept[name] = tuple(value_text(value) for value in many if value is not None)
    return kept


def value_text(value: str | float) -> str:
    """A value as text; whole floats print without a fraction, as the source meant them."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
