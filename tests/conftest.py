"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests that
# interrupt a command would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, so that a red run means a changed program. `make test-all` looks for
# new ones. No deadlines: a busy machine is no failure.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", deadline=None)
settings.load_profile(os.environ.get("PALIO_EXAMPLES", "same"))


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
