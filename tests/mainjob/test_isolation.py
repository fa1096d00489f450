"""The demo's race is enclosed where it can be; where it cannot, it says so and ranks nothing."""

from __future__ import annotations

import pytest

from palio.evaluate.mainjob.arena import race_driver
from palio.evaluate.mainjob.telling import isolation_told
from palio.sandbox import programs
from palio.sandbox.choice import close_driver


def test_where_nothing_encloses_it_is_said_and_nothing_is_ranked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "_FOLDERS", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    driver, lacking = race_driver()
    close_driver(driver)
    assert not driver.capabilities.ranked
    told = isolation_told(driver.capabilities.isolation, lacking)
    assert told.startswith("none, so nothing is ranked: ")
    assert "apt-get install bubblewrap" in told


def test_where_bubblewrap_works_the_race_is_enclosed() -> None:
    driver, lacking = race_driver()
    close_driver(driver)
    if lacking:
        pytest.skip(lacking)
    assert driver.capabilities.ranked
    told = isolation_told(driver.capabilities.isolation, lacking)
    assert told == "bwrap: a sandbox for each run, with the broker as its only door"
