"""No attack of the list gets through under any enclosing driver, and no neighbour is disturbed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palio.sandbox.choice import UNSAFE
from tests.redteam.attacks import ATTACKS, Attack
from tests.redteam.conftest import alone, neighbour, strike
from tests.redteam.host import Host
from tests.redteam.oracles import settled
from tests.sandbox.conftest import driver_or_skip
from tests.sandbox.enclosures import FOUND


def listed(*unsafe: str) -> list[object]:
    return [
        pytest.param(attack, id=attack.name, marks=[pytest.mark.slow] if attack.slow else [])
        for attack in ATTACKS
        if not unsafe or attack.unsafe in unsafe
    ]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("neighbour")


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("attack", listed())
def test_an_attack_is_held(
    name: str, attack: Attack, host: Host, tmp_path: Path, home: Path
) -> None:
    driver = driver_or_skip(name)
    expected = alone(name, home) if attack.beside else None
    records = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(strike, driver, attack, host, tmp_path)
        while attack.beside and not running.done():
            records.append(neighbour(driver, tmp_path / "neighbour"))
        seen = running.result()
    if attack.beside:
        records.append(neighbour(driver, tmp_path / "neighbour"))
    attack.oracle(seen)
    settled(seen)
    for record in records:
        assert record == expected


@pytest.mark.parametrize("attack", listed("held"))
def test_what_the_host_s_half_holds_needs_no_enclosure(
    attack: Attack, host: Host, tmp_path: Path
) -> None:
    seen = strike(driver_or_skip(UNSAFE), attack, host, tmp_path)
    attack.oracle(seen)
    settled(seen)


@pytest.mark.parametrize("attack", listed("escapes"))
def test_the_oracle_sees_an_escape(attack: Attack, host: Host, tmp_path: Path) -> None:
    """Where nothing is enclosed, harmless attacks get through, and each oracle says so."""
    seen = strike(driver_or_skip(UNSAFE), attack, host, tmp_path)
    settled(seen)
    assert seen.outcome.fault is None
    with pytest.raises(AssertionError):
        attack.oracle(seen)
