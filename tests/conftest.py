"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def shared_folder() -> Path | None:
    """The optional data folder beside or inside the checkout."""
    for candidate in (ROOT / "shared", ROOT.parent / "shared"):
        if (candidate / "data").is_dir():
            return candidate / "data"
    return None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real tasks, products and vectors; skips the test where it is missing."""
    folder = shared_folder()
    if folder is None:
        pytest.skip("needs ../shared/data, which is not part of the repository")
    return folder
