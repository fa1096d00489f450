"""Everything that a stage may use is its context, and a backend trains and serves its model.

A kind of stage is a function from a checkpoint and a context to a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from palio.broker.upstream import Upstream
from palio.corpus.rows import CorpusRow
from palio.records import InputError, Record
from palio.train.batches import Example
from palio.train.codec import Codec
from palio.train.ground import Ground
from palio.train.recipe import Recipe
from palio.train.settings import SftSettings
from palio.train.stage import NO_KEYS, Endpoint, Keys, Report, StageResult, StageSettings


class Source(NamedTuple):
    """Examples and their weight: of parts of batches in our loop, of an epoch with TRL; any sum."""

    name: str
    examples: Sequence[Example]
    weight: float = 1.0


class Backend(Protocol):
    """Trains and serves; every checkpoint is a folder with `manifest.json` written last.

    `start` is the checkpoint of the stage before; None: the recipe's own beginning.
    """

    def codec(self, start: Path | None, context: Context) -> Codec:
        """The chat text of a checkpoint."""

    def sft(
        self,
        sources: Sequence[Source],
        settings: SftSettings,
        start: Path | None,
        out: Path,
        context: Context,
        report: Report,
    ) -> StageResult:
        """Train on examples; goes on from the newest state in `out` after a SIGKILL.

        Raises:
            IntegrityError: the loss is not a number; the last saved state is still good.
        """

    def serve(self, start: Path | None, context: Context) -> AbstractContextManager[Upstream]:
        """The model behind chat completions, with dropout off.

        A response holds `prompt_token_ids` and its choice `token_ids` where the request says
        `return_token_ids`, as vLLM does.
        """


@dataclass(frozen=True)
class Context:
    """What a stage works with.

    Attributes:
        recipe: the whole recipe.
        name: of this stage.
        number: its place in the recipe, from 1.
        seed: the recipe's and the stage's, added.
        rows: the training rows of the corpus, chosen and in corpus order; none of a problem that
            the recipe holds back.
        ground: training problems and their worlds, of those that the recipe holds back or of the
            others as the kind asks; None where the run was given none.
        backend: how this recipe's model is trained and served.
        inputs: name -> digest of what the run reads; goes into every checkpoint's manifest.
        threads: worker threads; results do not depend on it.
        device: where a model of ours is trained and served, as torch names it; another device sums
            in another order, so its results are others.
        save_every: seconds between two saved states inside a stage.
        keys: bearer tokens for the servers that it asks.
        clock: seconds.
    """

    recipe: Recipe
    name: str
    number: int
    seed: int
    rows: Sequence[CorpusRow]
    ground: Ground | None
    backend: Backend
    inputs: Mapping[str, str] = field(default_factory=dict)
    threads: int = 2
    device: str = "cpu"
    save_every: float = 60.0
    keys: Keys = NO_KEYS
    clock: Callable[[], float] = time.monotonic


def ground_of(context: Context) -> Ground:
    """The training problems that a stage rolls out.

    Raises:
        InputError: there are none; `run.train` refuses such a run before its first stage.
    """
    if context.ground is None:
        raise InputError(
            "rollouts need training problems and their catalogues",
            remedy="name them with --suite and --catalogue",
        )
    return context.ground


StageRun = Callable[[Any, Context, Path | None, Path, Report], StageResult]
"""(settings, context, previous checkpoint, stage folder, report) -> result.

The stage's folder exists. The stage keeps there whatever it needs to go on after SIGKILL, appends
its measurements to `metrics.jsonl`, and writes its checkpoint with the backend. It must not touch
anything outside its folder.
"""


class Kind(Record, frozen=True):
    """One kind of stage.

    Attributes:
        settings: its settings record, a `StageSettings`.
        run: does it, see `StageRun`.
        shrink: its settings for a dry run.
        first: whether it can be the first stage, without a checkpoint before it.
        ground: whether it needs training problems; see `runs_problems`.
        worldless: whether it needs none with these settings, though its kind does.
        own: whether the student itself runs them; then it gets those that the recipe holds back.
        reads: name -> digest of what a stage with these settings reads beside corpus, problems and
            the recipe's model; a stage that goes on is held to them (`held`).
        asks: the server that it asks with these settings, after the checkpoint of the stage before;
            a stage that goes on is held to what that says of itself (`servers`).
        needs: refuses settings that can be used with nothing that is here, before any stage of a
            chain begins (`ready`).
    """

    settings: type[StageSettings]
    run: StageRun
    shrink: Callable[[Any], Any]
    first: bool = False
    ground: bool = False
    worldless: Callable[[Any], bool] = lambda _: False
    own: bool = False
    reads: Callable[[Any], dict[str, str]] = lambda _: {}
    asks: Callable[[Any, Path | None], Endpoint | None] = lambda *_: None
    needs: Callable[[Any], None] = lambda _: None

    def runs_problems(self, settings: StageSettings) -> bool:
        """Whether a stage with these settings needs training problems and their catalogues."""
        return self.ground and not self.worldless(settings)
