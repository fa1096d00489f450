"""Pretrained models: TRL's SFT trainer with PEFT adapters, sampled without dropout."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

from palio.broker.upstream import Upstream
from palio.records import InputError, from_json, to_json
from palio.train.backends.arguments import check_packages
from palio.train.backends.codec import PretrainedCodec, template_text
from palio.train.backends.job import (
    FILE,
    SAVED,
    TOLD,
    SftJob,
    Told,
    run_job,
    write_rows,
)
from palio.train.backends.launch import launched
from palio.train.backends.merging import rounding_counts
from palio.train.backends.weights import load_model, load_tokenizer, sampled, widened
from palio.train.batches import Example
from palio.train.checkpoint import CHECKPOINT, seal
from palio.train.context import Context, Source
from palio.train.recipe import PretrainedModel
from palio.train.rows import rows_digest
from palio.train.settings import SftSettings
from palio.train.stage import Report, StageResult, check_trained, read_metrics


class PretrainedBackend:
    """`context.Backend` over transformers.

    Args:
        model: where the weights come from, and the adapter.

    Raises:
        MissingDependencyError: trl, peft or accelerate is not installed.
    """

    def __init__(self, model: PretrainedModel) -> None:
        check_packages()
        self.model = model
        self._codecs: dict[str, PretrainedCodec] = {}

    def codec(self, start: Path | None, context: Context) -> PretrainedCodec:  # noqa: ARG002
        """The chat text of a checkpoint."""
        key = str(start)
        if key not in self._codecs:
            text = template_text(self.model.template)
            self._codecs[key] = PretrainedCodec(load_tokenizer(self.model, start), text)
        return self._codecs[key]

    def sft(
        self,
        sources: Sequence[Source],
        settings: SftSettings,
        start: Path | None,
        out: Path,
        context: Context,
        report: Report,
    ) -> StageResult:
        """Train on examples, in this process or in those that `trl.launch` starts."""
        rows = mixture(sources, out)
        write_rows(out, [labelled(example) for example in rows])
        job = SftJob(
            stage=context.name,
            folder=str(out),
            model=self.model,
            settings=settings.trl,
            seed=context.seed,
            longest=max(len(example.ids) for example in rows),
            start=str(start) if start is not None else "",
        )
        (out / FILE).write_bytes(to_json(job))
        shutil.rmtree(out / SAVED, ignore_errors=True)
        if settings.trl.launch:
            launched(job, settings.trl.launch)
        else:
            run_job(job, report)
        return self._finish(job, sources, out, context)

    def _finish(
        self, job: SftJob, sources: Sequence[Source], out: Path, context: Context
    ) -> StageResult:
        metrics = read_metrics(out)
        last = metrics[-1] if metrics else {}
        counts = {source.name: len(source.examples) for source in sources}
        told = from_json((out / TOLD).read_bytes(), Told, where=str(out / TOLD))
        check_trained(told.steps, out)
        counts |= {"steps": told.steps, "tokens": told.tokens, **rounding_counts(out / SAVED)}
        codec = self.codec(Path(job.start) if job.start else None, context)
        inputs = {
            **context.inputs,
            "template": codec.template_digest,
            "rows": rows_digest(sources),
        }
        seal(
            out / SAVED,
            out / CHECKPOINT,
            config=context.recipe.prefix(context.number),
            inputs=inputs,
            counts=counts,
            seed=context.seed,
        )
        measures = {"loss": float(last["loss"])} if "loss" in last else {}
        return StageResult(checkpoint=out / CHECKPOINT, counts=counts, measures=measures)

    @contextmanager
    def serve(self, start: Path | None, context: Context) -> Iterator[Upstream]:
        """The model by transformers, dropout off, on the GPU where there is one.

        A vLLM server that `sampling` names is faster there, and is asked instead of this.
        """
        from palio.train.backends.served import Served
        from palio.train.backends.slots import sampler_of

        codec = self.codec(start, context)
        loaded = load_model(self.model, start, context.seed)
        with sampled(widened(loaded, self.model)) as model:
            room = int(getattr(model.config, "max_position_embeddings", 1e9))
            longest = min(context.recipe.data.longest, room)
            with sampler_of(model, end=codec.end) as sampler:
                yield Served(sampler, codec, name=context.recipe.name, longest=longest)


def labelled(example: Example) -> tuple[list[int], list[int]]:
    """Ids, and the same ids as labels where they are trained on, -100 elsewhere."""
    wanted = {at + 1 for at in example.targets}
    ids = list(example.ids)
    return ids, [token if at in wanted else -100 for at, token in enumerate(ids)]


def mixture(sources: Sequence[Source], out: Path) -> list[Example]:
    """One epoch in which every source has its share and no row is missing; short ones repeat.

    Args:
        sources: of the stage.
        out: its folder, for the message.

    Raises:
        InputError: nothing to train on.
    """
    sources = [source for source in sources if source.examples and source.weight > 0]
    if not sources:
        raise InputError(
            "there is nothing to train on",
            where=str(out),
            remedy="raise `longest` in [data], or give the stage more rows or rollouts",
        )
    weight = sum(source.weight for source in sources)
    total = max(len(source.examples) * weight / source.weight for source in sources)
    parts = [
        islice(cycle(source.examples), round(total * source.weight / weight)) for source in sources
    ]
    return [example for part in parts for example in part]
