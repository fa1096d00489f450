"""How a recipe's model is trained and served: our own loop, or TRL over transformers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from palio.broker.upstream import Upstream
from palio.records import ConfigError, Message, Tool
from palio.train.batches import Example
from palio.train.stage import Context, Report, StageResult
from palio.train.tokenizer import Encoded

if TYPE_CHECKING:
    from palio.train.recipe import Recipe
    from palio.train.settings import SftSettings


class Talk(NamedTuple):
    """A conversation and the tools that its model was offered."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


class Source(NamedTuple):
    """Examples and their weight: of parts of batches in our loop, of an epoch with TRL; any sum."""

    name: str
    examples: Sequence[Example]
    weight: float = 1.0


class Codec(Protocol):
    """Conversations to token ids and back, with the chat text of one checkpoint.

    Attributes:
        end: id of the token that ends a turn.
        pad: id that fills rows up; never counted as text, even where it equals `end`.
    """

    end: int
    pad: int

    @property
    def template_digest(self) -> str:
        """Digest of the chat template that the ids are made with."""

    def encode_talks(self, talks: Sequence[Talk]) -> list[Encoded]:
        """Ids of whole conversations and which of them the assistant wrote."""

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids, chat marks included."""


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


def backend_of(recipe: Recipe) -> Backend:
    """The backend of a recipe's model.

    Raises:
        MissingDependencyError: a package that the backend or a stage needs is not installed.
        ConfigError: a stage has `deepspeed` and no `launch`, or would train 16-bit weights.
    """
    if recipe.model is not None:
        from palio.train.backends.loop import LoopBackend

        return LoopBackend(recipe.model)
    if recipe.pretrained is not None:
        from palio.train.backends.masters import check_masters
        from palio.train.backends.pretrained import PretrainedBackend
        from palio.train.settings import TrlSettings, check_deepspeed

        for stage in recipe.stages:
            check_deepspeed(getattr(stage.settings, "trl", TrlSettings()), stage.name)
        check_masters(recipe)
        return PretrainedBackend(recipe.pretrained)
    raise ConfigError("the recipe has no model")
