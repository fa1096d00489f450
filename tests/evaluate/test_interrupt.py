"""Ctrl-C in an evaluation waits for no model, whoever it is that answers."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from palio.agents.spec import policy_agent
from palio.evaluate.policy import EvalSettings, Policy, evaluate_policy
from palio.evaluate.rollouts import read_rollouts
from palio.judging.encoders import default_encoder
from palio.suites.files import read_suite
from palio.train import serving
from palio.train.engine import Engine
from palio.world.catalogue import read_catalogue
from palio.world.world import COMPACT, World
from tests.evaluate.test_pin import Shop

TOKENS, TOKEN_S = 400, 0.3


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["own", "pretrained"])
def test_ctrl_c_does_not_wait_for_the_rollouts_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One turn of its model lasts two minutes."""
    shop = Shop(tmp_path)
    shop.checkpoint(tmp_path / "model", 1)
    served_by: Any = Engine
    if kind == "pretrained":
        pytest.importorskip("trl", reason="pretrained models are trained by TRL")
        from palio.train.backends.slots import SlotSampler

        served_by = SlotSampler
        monkeypatch.setattr(serving, "is_own", lambda _: False)
    step, begun, pressed = served_by._step, threading.Event(), []

    def slow(self: Any, active: Any) -> None:
        begun.set()
        time.sleep(TOKEN_S)
        step(self, active)

    def press() -> None:
        if begun.wait(120):
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(served_by, "_step", slow)
    catalogue, _ = read_catalogue(tmp_path / "catalogue")
    finger = threading.Thread(target=press)
    finger.start()
    with serving.open_checkpoint(tmp_path / "model", slots=4) as served:
        with pytest.raises(KeyboardInterrupt):
            evaluate_policy(
                Policy("m", policy_agent("m", served.models[0]), served),
                read_suite(tmp_path / "suite.json").problems,
                {catalogue.catalogue_id: World.build(catalogue, COMPACT)},
                default_encoder(),
                out=tmp_path / "out",
                settings=EvalSettings(threads=2, max_tokens=TOKENS),
            )
        waited = time.monotonic() - pressed[0]
        assert not served.alive
    finger.join()
    assert waited < TOKENS * TOKEN_S / 4
    assert not [*read_rollouts(tmp_path / "out")], "what nobody waited for is no rollout"
