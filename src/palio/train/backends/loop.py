"""Our own loop: a Qwen3 of a few million parameters from scratch, with Muon, on CPU cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import msgspec
import torch

from palio.broker.upstream import Upstream
from palio.records import ConfigError, InputError, IntegrityError
from palio.train.checkpoint import CHECKPOINT, Checkpoint, load_checkpoint, save_checkpoint
from palio.train.codec import Talk
from palio.train.context import Context, Source
from palio.train.disk import finite, saving
from palio.train.engine import Engine
from palio.train.heads import lay_out_heads
from palio.train.loop import LOSS_TOKENS, Mixture, Point, Progress, Stage
from palio.train.model import ModelConfig, Qwen3
from palio.train.optimiser import Optimiser
from palio.train.recipe import PalioModel
from palio.train.reporting import reporter_of
from palio.train.rows import rows_digest
from palio.train.settings import SftSettings
from palio.train.stage import STATE, Report, StageResult, append_metrics, trim_metrics
from palio.train.team import Team
from palio.train.text import template_digest
from palio.train.tokenizer import ChatTokenizer, Encoded, train_tokenizer


class ChatCodec:
    """`codec.Codec` of our own vocabulary; tools are not shown to a model of this size."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.tokenizer = tokenizer
        self.end, self.pad = tokenizer.end, tokenizer.pad

    @property
    def template_digest(self) -> str:
        """Digest of the chat template."""
        return template_digest()

    def encode_talks(self, talks: Sequence[Talk]) -> list[Encoded]:
        """Ids and masks of conversations."""
        return self.tokenizer.encode_chats(talk.messages for talk in talks)

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids."""
        return self.tokenizer.decode(ids)


class LoopBackend:
    """`context.Backend` over `loop.Stage`.

    Args:
        model: shape and vocabulary of a model from scratch.
    """

    def __init__(self, model: PalioModel) -> None:
        self.model = model

    def sample(self, context: Context) -> list[Any]:
        """The conversations that vocabulary and documents are made from."""
        rows = context.rows
        return [row.typed() for row in rows[:: max(1, len(rows) // self.model.sample)]]

    def open(self, start: Path | None, context: Context) -> Checkpoint:
        """The checkpoint of the stage before, or fresh weights over a fresh vocabulary."""
        if start is not None:
            loaded = load_checkpoint(start)
            _check_room(loaded.model.config.max_positions, start, context)
            return loaded._replace(model=loaded.model.to(context.device))
        tokenizer = train_tokenizer(self.sample(context), size=self.model.vocabulary)
        return Checkpoint(self._fresh(tokenizer, context.recipe.seed).to(context.device), tokenizer)

    def _fresh(self, tokenizer: ChatTokenizer, seed: int) -> Qwen3:
        """In one thread: a factorisation shared by two differs in its last bits."""
        plain = msgspec.to_builtins(self.model)
        shape = {name: plain[name] for name in ModelConfig.__struct_fields__ if name in plain}
        model = Qwen3(ModelConfig(**{**shape, "vocab_size": tokenizer.size}))
        with Team(1):
            model.initialise(seed)
            if self.model.lay_out:
                lay_out_heads(model, seed)
        return model

    def codec(self, start: Path | None, context: Context) -> ChatCodec:
        """The vocabulary of a checkpoint."""
        return ChatCodec(self.open(start, context).tokenizer)

    def sft(
        self,
        sources: Sequence[Source],
        settings: SftSettings,
        start: Path | None,
        out: Path,
        context: Context,
        report: Report,
    ) -> StageResult:
        """Train to the end of the stage and write its checkpoint.

        Raises:
            InputError: a source is empty.
        """
        longest = context.recipe.data.longest
        for source in sources:
            if source.weight > 0 and not source.examples:
                raise InputError(
                    f"stage {context.name!r} has no {source.name} of at most {longest} tokens",
                    where=str(out),
                    remedy="raise `longest` in [data], or give the stage more or other ones",
                )
        checkpoint = self.open(start, context)
        with Team(min(context.threads, self.model.parts)) as team:
            run = _Run(self.model.parts, checkpoint, sources, settings, out, context, report, team)
            return run.go()

    @contextmanager
    def serve(self, start: Path | None, context: Context) -> Iterator[Upstream]:
        """Our engine over a checkpoint."""
        if start is None:
            raise InputError("there is no checkpoint to roll out", remedy="put an sft stage first")
        with Engine(start, device=context.device) as engine:
            yield engine


def _check_room(places: int, start: Path, context: Context) -> None:
    """Refuse rows that the checkpoint has no places for, before any of them is trained on."""
    longest = context.recipe.data.longest
    if longest > places:
        raise ConfigError(
            f"rows of {longest} tokens are longer than the checkpoint's {places} positions",
            where=str(start),
            remedy="lower `longest` of [data]",
        )


class _Run:
    """One stage over one model, with its state on disk."""

    def __init__(
        self,
        parts: int,
        checkpoint: Checkpoint,
        sources: Sequence[Source],
        settings: SftSettings,
        out: Path,
        context: Context,
        report: Report,
        team: Team,
    ) -> None:
        self.model, self.tokenizer = checkpoint
        self.out, self.context, self.settings, self.report = out, context, settings, report
        config = settings.loop()
        self.optimiser = Optimiser(self.model, config.optimiser)
        self.stage = Stage(
            context.name,
            self.model,
            self.optimiser,
            Mixture(sources, config.batch, context.seed),
            config,
            team=team,
            parts=parts,
            pad=self.tokenizer.pad,
            report=self._note,
            save=self._save,
            clock=context.clock,
            save_every=context.save_every,
        )
        self.counts = {source.name: len(source.examples) for source in sources}
        self.rows = rows_digest(sources)
        pad, end = self.tokenizer.pad, self.tokenizer.end
        shape = self.model.config.to_transformers(pad=pad, end=end)
        told = msgspec.to_builtins(settings)
        self.reporter = reporter_of(settings.trl, out, self.model, shape, told)

    def go(self) -> StageResult:
        """From the saved state, or from the beginning, to the checkpoint."""
        self._restore()
        self.reporter.begin(self.stage.progress.step)
        try:
            now = self.stage.run()
        except IntegrityError as error:
            raise IntegrityError(error.what, where=str(self.out), remedy=error.remedy) from error
        self.reporter.end()
        counts = {**self.counts, "steps": now.step, "tokens": now.tokens}
        counts[LOSS_TOKENS] = self.stage.mixture.trained
        folder = self.out / CHECKPOINT
        told = {"template": template_digest(), "rows": self.rows}
        save_checkpoint(
            folder,
            self.model,
            self.tokenizer,
            config=self.context.recipe.prefix(self.context.number),
            inputs={**self.context.inputs, **told},
            counts={**counts, "seconds": round(now.seconds), "shortened": int(now.shortened)},
            seed=self.context.seed,
        )
        return StageResult(checkpoint=folder, counts=counts, shortened=now.shortened)

    def _restore(self) -> None:
        path = self.out / STATE
        if path.exists():
            try:
                saved: dict[str, Any] = torch.load(path, map_location=self.context.device)
                self.model.load_state_dict(saved["model"])
                self.optimiser.load_state_dict(saved["optimiser"])
                self.stage.progress.restore(saved["progress"])
            except (RuntimeError, EOFError, UnpicklingError, KeyError, TypeError) as error:
                raise IntegrityError(
                    f"the saved state cannot be read: {type(error).__name__}: {error}"[:300],
                    where=str(path),
                    remedy="remove the file: the stage begins anew, those before it are kept",
                ) from error
        trim_metrics(self.out, self.stage.progress.step)

    def _note(self, point: Point) -> None:
        append_metrics(self.out, point)
        share = min(1.0, point.tokens / max(1, self.settings.tokens))
        rate = point.rate * self.settings.optimiser.matrix_rate
        self.reporter.point(point, rate, share)
        self.report(share, f"loss {point.loss:.3f}, {point.tokens_per_s:,.0f} tokens/s")

    def _save(self, now: Progress) -> None:
        """Replace the saved state; a disk that is full leaves the one before.

        Raises:
            IntegrityError: the last update made weights that are no numbers; the state before it,
                which a loss that is no number can still be mended from, stays.
        """
        if not finite(self.model):
            raise IntegrityError(
                f"weights of stage {self.context.name!r} are not numbers at step {now.step}",
                where=str(self.out),
                remedy="lower the rates in the recipe; the last saved state is still good",
            )
        scratch = self.out / f".{STATE}.new"
        state = {
            "progress": now.state(),
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        with saving(f"the state of step {now.step}", self.out / STATE, half=scratch):
            with scratch.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self.out / STATE)
