"""One job in a folder, corrected while nothing of it is finished; what it tells of all worlds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from palio.evaluate.mainjob import job
from palio.evaluate.mainjob.job import run_main_job
from palio.evaluate.mainjob.worlds import _summed
from palio.records import ConfigError, InputError, ResumeError
from palio.rollout.journal import lock_folder
from tests.mainjob.silent import SilentReporter
from tests.mainjob.test_job import SMALL


def test_shares_over_worlds_are_of_the_problems_of_all() -> None:
    label = "share of problems with a decoy that violates"
    large = {"problems": {"shop": 300.0, "product": 100.0}, label: {"price": 0.5, "shop": 0.25}}
    small = {"problems": {"shop": 40.0, "product": 60.0}, label: {"price": 1.0}}
    summed = _summed([large, small])
    assert summed["problems"] == {"shop": 340.0, "product": 160.0}
    assert summed[label] == {"price": 0.6, "shop": 0.2}


def test_a_job_that_was_refused_for_its_catalogues_can_be_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = msgspec.structs.replace(SMALL, products=30)
    with pytest.raises(ConfigError, match="ask for at least"):
        run_main_job(few, tmp_path, SilentReporter())

    def halt(*_: object) -> None:
        raise InputError("far enough")

    monkeypatch.setattr(job, "run_race", halt)
    with pytest.raises(InputError, match="far enough"):
        run_main_job(SMALL, tmp_path, SilentReporter())
    with pytest.raises(ResumeError, match="products"):
        run_main_job(few, tmp_path, SilentReporter())


def test_two_jobs_do_not_share_a_folder(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(ConfigError, match="another process"):
        run_main_job(SMALL, tmp_path, SilentReporter())
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
