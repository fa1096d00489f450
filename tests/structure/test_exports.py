"""What a package's `__all__` names is what it has, each name once and importable."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import palio

PACKAGES = [
    "palio",
    *(found.name for found in pkgutil.walk_packages(palio.__path__, "palio.") if found.ispkg),
]
EXPORTING = [name for name in PACKAGES if getattr(importlib.import_module(name), "__all__", None)]


def test_the_packages_are_found() -> None:
    assert {"palio", "palio.records", "palio.world", "palio.judging", "palio.arena"} <= {*EXPORTING}


@pytest.mark.parametrize("name", EXPORTING)
def test_all_is_exported(name: str) -> None:
    module = importlib.import_module(name)
    missing = [item for item in module.__all__ if not hasattr(module, item)]
    assert not missing
    assert len(set(module.__all__)) == len(module.__all__)
