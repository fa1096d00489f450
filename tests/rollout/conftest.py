"""Child processes for a whole test session share one broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palio.sandbox.process import SubprocessDriver


@pytest.fixture(scope="session")
def children() -> Iterator[SubprocessDriver]:
    with SubprocessDriver() as driver:
        yield driver
