"""Members of foreign rows are taken at their word only where they have the shape of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def texted(value: Any) -> str:
    """The value if it is a text, else ""."""
    return value if isinstance(value, str) else ""
