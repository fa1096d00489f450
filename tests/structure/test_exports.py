"""What a package's `__all__` names is what it has, sorted and importable."""

from __future__ import annotations

import importlib

import pytest

PACKAGES = [
    "palio",
    "palio.records",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_exported(name: str) -> None:
    module = importlib.import_module(name)
    missing = [item for item in module.__all__ if not hasattr(module, item)]
    assert not missing
    assert len(set(module.__all__)) == len(module.__all__)
