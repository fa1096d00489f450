"""What stages log is told with significant digits, however small it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palio.train.stage import read_metrics

hooks = pytest.importorskip("palio.train.rl.hooks", reason="logging stages come with trl")


def test_small_rates_and_divergences_are_not_rounded_away(tmp_path: Path) -> None:
    file = hooks.MetricsFile(tmp_path, lambda share, note: None)
    rates = [1e-6, 7.5e-7, 4e-7, 1.23456789e-7]
    args: Any = None
    for step, rate in enumerate(rates, start=1):
        state = SimpleNamespace(is_world_process_zero=True, global_step=step, max_steps=4)
        file.on_log(args, state, args, logs={"learning_rate": rate, "kl_to_start": 4e-6 * rate})
    rows = read_metrics(tmp_path)
    assert [row["learning_rate"] for row in rows] == [1e-6, 7.5e-7, 4e-7, 1.23457e-7]
    told = hooks.last_measures(tmp_path)["kl_to_start"]
    assert told == pytest.approx(4e-6 * sum(rates) / 4, rel=1e-5)
