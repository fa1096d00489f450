"""Whatever trains a stage, `report_to` means what TRL's users know: transformers' integrations.

A name is one of theirs ("tensorboard", "wandb", ...), or ``module:Class`` of a callback. What there
is none of, or is not installed, is told before training. `metrics.jsonl` is written in any case.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from palio.records import ConfigError, MissingDependencyError
from palio.train.stage import STATE, STATES, TRAINER

if TYPE_CHECKING:
    from palio.train.loop import Point
    from palio.train.settings import TrlSettings

NEEDS: dict[str, tuple[str, ...]] = {
    "azure_ml": ("azureml-core",),
    "clearml": ("clearml",),
    "codecarbon": ("codecarbon",),
    "comet_ml": ("comet-ml",),
    "dagshub": ("dagshub", "mlflow"),
    "dvclive": ("dvclive",),
    "flyte": ("flytekit",),
    "mlflow": ("mlflow",),
    "neptune": ("neptune",),
    "swanlab": ("swanlab",),
    "tensorboard": ("tensorboard",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""Integration -> packages that it needs, as pip calls them."""
_MODULES = {
    "azureml-core": ("azureml",),
    "comet-ml": ("comet_ml",),
    "tensorboard": ("tensorboard", "tensorboardX"),
}
"""What a package is imported as, where that is another name; any of several will do."""


def reports_to(named: str | Sequence[str]) -> list[str]:
    """The integrations that a recipe names, each of them known to transformers and installed.

    Args:
        named: of a recipe; "all" is every integration that is installed, "none" is none.

    Raises:
        ConfigError: no integration is called so, or the named class is no callback.
        MissingDependencyError: a package that it needs is not installed; the remedy installs it.
    """
    names = [named] if isinstance(named, str) else list(named)
    if not names or names == ["none"]:
        return []
    try:
        from transformers.integrations import integration_utils as known
    except ImportError as error:
        raise MissingDependencyError(
            f"report_to needs {error.name}", remedy="pip install 'palio[train]'"
        ) from error
    if names == ["all"]:
        return list(known.get_available_reporting_integrations())
    for name in names:
        if ":" in name:
            known.INTEGRATION_TO_CALLBACK[name] = _callback(name)
        if name not in known.INTEGRATION_TO_CALLBACK:
            raise ConfigError(
                f"report_to: no integration is called {name!r}",
                remedy=f"name some of {', '.join(known.INTEGRATION_TO_CALLBACK)}, or module:Class",
            )
        missing = [one for one in NEEDS.get(name, ()) if not _installed(one)]
        if missing:
            raise MissingDependencyError(
                f"report_to: {name!r} needs {' and '.join(missing)}, which is not installed",
                remedy=f"pip install {' '.join(missing)}, or take {name!r} out of report_to",
            )
    return names


def _installed(package: str) -> bool:
    return any(find_spec(module) for module in _MODULES.get(package, (package,)))


def _callback(name: str) -> type[Any]:
    """The class behind ``module:Class``."""
    from transformers import TrainerCallback

    module, _, inside = name.partition(":")
    try:
        found = getattr(import_module(module), inside)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"report_to: {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, TrainerCallback)):
        raise ConfigError(f"report_to: {name!r} is no TrainerCallback of transformers")
    return found


def opened(names: Sequence[str]) -> list[Any]:
    """A callback for each integration.

    Raises:
        MissingDependencyError: one does not work here; it says what it needs.
    """
    if not names:
        return []
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    made = []
    for name, kind in zip(names, get_reporting_integration_callbacks(list(names)), strict=True):
        try:
            made.append(kind())
        except (RuntimeError, ImportError) as error:
            raise MissingDependencyError(
                f"report_to: {name!r} does not work here: {error}",
                remedy=f"mend it, or take {name!r} out of report_to",
            ) from error
    return made


def ready(trl: TrlSettings) -> list[str]:
    """`reports_to`, with each integration tried: what a trainer of transformers may be told."""
    names = reports_to(trl.report_to)
    opened(names)
    return names


def run_name(out: Path) -> str:
    """What a stage's run is called where it reports: the run's folder and the stage."""
    place = out.absolute()
    return f"{place.parent.name}-{place.name}"


class OwnRun:
    """What `wandb` lacks to show a chain: it would add a process' next stage to the same run."""

    def __init__(self) -> None:
        self._before = _wandb_run()

    def end(self) -> None:
        """End the run that the stage began; one that was there before goes on."""
        now = _wandb_run()
        if now is not None and now is not self._before:
            sys.modules["wandb"].finish()


def _wandb_run() -> Any:
    return getattr(sys.modules.get("wandb"), "run", None)


class Reporter(Protocol):
    """Gets what a stage of our own loop measures."""

    def begin(self, step: int) -> None:
        """The stage begins, or goes on after `step` updates."""

    def point(self, point: Point, rate: float, share: float) -> None:
        """One point of the learning curve; `rate` is the learning rate, `share` what is done."""

    def end(self) -> None:
        """The stage is finished."""


class Nowhere:
    """A `Reporter` for a stage that reports nowhere; transformers is not needed for it."""

    def begin(self, step: int) -> None:
        """See `Reporter`."""

    def point(self, point: Point, rate: float, share: float) -> None:
        """See `Reporter`."""

    def end(self) -> None:
        """See `Reporter`."""


class Integrations:
    """Tells transformers' callbacks about a stage of our own loop as its `Trainer` would.

    Args:
        names: what `reports_to` gives.
        out: the stage's folder; what a callback writes to disk goes there.
        model: of ours.
        shape: its configuration in transformers' form.
        trl: `extra` may hold fields of TrainingArguments that an integration reads, e.g. project.
        told: settings of the stage, shown with the model's configuration.
    """

    def __init__(
        self,
        names: Sequence[str],
        out: Path,
        model: torch.nn.Module,
        shape: Mapping[str, Any],
        trl: TrlSettings,
        told: Mapping[str, Any],
    ) -> None:
        from transformers import TrainerControl, TrainerState, TrainingArguments
        from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

        taken = {field.name for field in fields(TrainingArguments)}
        settings = {
            "output_dir": str(out),
            "run_name": run_name(out),
            "report_to": list(names),
            "use_cpu": not torch.cuda.is_available(),
            "disable_tqdm": True,
            **{name: value for name, value in trl.extra.items() if name in taken},
        }
        self._run = OwnRun()
        self._args = TrainingArguments(**settings)
        self._state, self._control = TrainerState(), TrainerControl()
        callbacks = [DefaultFlowCallback, *opened(names)]
        self._handler = CallbackHandler(callbacks, Shown(model, shape, told), None, None, None)
        self._tell("on_init_end")

    def begin(self, step: int) -> None:
        """See `Reporter`."""
        self._state.global_step = step
        self._tell("on_train_begin")

    def point(self, point: Point, rate: float, share: float) -> None:
        """Under the names that a `Trainer` logs."""
        state = self._state
        state.global_step, state.num_input_tokens_seen = point.step, point.tokens
        state.epoch = round(share, 4)
        logs = {
            "loss": point.loss,
            "grad_norm": point.norm,
            "learning_rate": rate,
            "num_tokens": point.tokens,
            "tokens_per_s": point.tokens_per_s,
            "epoch": state.epoch,
        }
        state.log_history.append({**logs, "step": point.step})
        self._tell("on_log", logs=logs)

    def end(self) -> None:
        """See `Reporter`."""
        self._tell("on_train_end")
        self._run.end()

    def _tell(self, event: str, **more: Any) -> None:
        self._handler.call_event(event, self._args, self._state, self._control, **more)


class Shown(torch.nn.Module):
    """A model of ours as callbacks look at one of transformers: with `config` and its size."""

    def __init__(
        self, model: torch.nn.Module, shape: Mapping[str, Any], told: Mapping[str, Any]
    ) -> None:
        from transformers import AutoConfig

        super().__init__()
        self.model = model
        rest = {name: value for name, value in shape.items() if name != "model_type"}
        self.config = AutoConfig.for_model(shape["model_type"], **rest, palio_stage=dict(told))

    def num_parameters(self) -> int:
        """Parameters."""
        return sum(weight.numel() for weight in self.model.parameters())


def reporter_of(
    trl: TrlSettings,
    out: Path,
    model: torch.nn.Module,
    shape: Mapping[str, Any],
    told: Mapping[str, Any],
) -> Reporter:
    """Where a stage of our own loop reports; see `Integrations`."""
    names = reports_to(trl.report_to)
    return Integrations(names, out, model, shape, trl, told) if names else Nowhere()


def drop_spent(stage: Path) -> None:
    """Remove what only an unfinished stage goes on from; call it when the proof is written.

    Earlier, a kill would leave a stage that has neither: it would be trained from the beginning.
    """
    (stage / STATE).unlink(missing_ok=True)
    for name in (TRAINER, STATES):
        _drop_states(stage / name)


def _drop_states(folder: Path) -> None:
    """Remove a trainer's states; what integrations wrote beside them stays.

    TRL leaves a draft of a card, too; ours is `card`.
    """
    (folder / "README.md").unlink(missing_ok=True)
    for path in (*folder.glob("checkpoint-*"), *folder.glob("broken-*")):
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # not empty
        folder.rmdir()
