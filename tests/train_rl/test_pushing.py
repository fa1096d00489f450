"""Dr. GRPO by a vLLM server: what it needs is asked for first, and what goes wrong is named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palio.records import MissingDependencyError, UpstreamError
from palio.train.rl.grpo import run_grpo, train_grpo
from palio.train.rl.policy import OwnPolicy
from tests.train_rl.test_grpo import settings

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of TRL over transformers 5.24


def test_a_server_without_vllm_here_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palio.train.rl.pushed.find_spec", lambda _: None)
    nothing: Any = None
    with pytest.raises(MissingDependencyError, match="needs vLLM in this process") as found:
        run_grpo(settings(base_url="http://127.0.0.1:9"), nothing, None, tmp_path, nothing)
    assert "trl[vllm]" in found.value.remedy
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9"])
def test_a_server_that_takes_no_weights_is_named(
    url: str, policy: OwnPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: Any, **__: Any) -> Any:
        raise Exception("Request failed: 404")  # as TRL's client does

    monkeypatch.setattr("palio.train.rl.grpo.StepGrpoTrainer", made)
    roller: Any = SimpleNamespace(keys=("a", "b"))
    with pytest.raises(Exception, match="Request failed: 404") as found:
        train_grpo(policy, roller, settings(base_url=url), tmp_path, seed=0, report=print)
    assert isinstance(found.value, UpstreamError) == bool(url)
    assert not url or "docs/rl.md" in getattr(found.value, "remedy", "")
