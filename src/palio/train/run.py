"""A recipe and a corpus become checkpoints, once: finished stages are kept, broken ones resumed.

The folder of a run::

    base/, sft/     checkpoints, each complete with its manifest
    curve.jsonl     learning curve of both stages
    state.pt        where the unfinished stage stands, replaced every minute
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from palio.corpus.rows import CorpusRow, read_rows
from palio.records import InputError, Message, ResumeError, digest, from_json, to_json
from palio.train.batches import Example
from palio.train.checkpoint import MANIFEST, Checkpoint, load_checkpoint, save_checkpoint
from palio.train.documents import Author, Material
from palio.train.heads import lay_out_heads
from palio.train.loop import Mixture, Point, Progress, Stage, StageConfig
from palio.train.model import Qwen3
from palio.train.optimiser import Optimiser
from palio.train.recipe import Recipe
from palio.train.team import Team
from palio.train.tokenizer import ChatTokenizer, Encoded, train_tokenizer
from palio.world.artefacts import file_digest

CURVE, STATE = "curve.jsonl", "state.pt"
BASE, SFT = "base", "sft"
_DOCUMENT_TOKENS = 130
"""Mean length of a document; decides only how many are written."""

Report = Callable[[float, Point], None]
"""Called with the share of the whole run that is done, in [0, 1], and a point of the curve."""


class Trained(NamedTuple):
    """What a run made.

    Attributes:
        base, final: checkpoint folders.
        trajectories: how many were trained on.
        dropped: longer than the recipe allows, left out.
        shortened: whether a time limit cut a stage short.
    """

    base: Path
    final: Path
    trajectories: int
    dropped: int
    shortened: bool


def train(
    recipe: Recipe,
    corpus: Path,
    out: Path,
    *,
    report: Report | None = None,
    threads: int = 2,
    save_every: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Trained:
    """Run all stages of a recipe.

    Args:
        recipe: all choices.
        corpus: a corpus folder, or one of its files; only `train.jsonl` of a folder is read.
        out: run folder; a run that was stopped, even by SIGKILL, goes on from its last state.
        report: progress, about every five seconds.
        threads: worker threads; the result does not depend on it.
        save_every: seconds between two saved states.
        clock: seconds; injected.

    Raises:
        InputError: the corpus cannot be read or has nothing to train on.
        ResumeError: the folder holds a run of another recipe or corpus.
        IntegrityError: the loss is not a number.
    """
    source = corpus / "train.jsonl" if corpus.is_dir() else corpus
    inputs = {"corpus": file_digest(source)} if source.is_file() else {}
    run = _Run(recipe, inputs, out, report, threads, save_every, clock)
    run.check()
    if run.is_done(SFT) and run.is_done(BASE):
        return run.result()
    conversations = chosen(read_rows(source), recipe.rows_a_problem)
    if not conversations:
        raise InputError("the corpus has no rows", where=str(source))
    with Team(min(threads, recipe.parts)) as team:
        run.go(conversations, team)
    return run.result()


def chosen(rows: Iterable[CorpusRow], most: int) -> list[tuple[Message, ...]]:
    """The conversations to train on, in corpus order.

    Args:
        rows: rows of a corpus.
        most: of one problem, those with the most thinking; 0: all.
    """
    talks = [(row.problem_id, row.typed()) for row in rows]
    if not most:
        return [talk for _, talk in talks]
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, (problem, _) in enumerate(talks):
        places[problem].append(place)
    kept: list[int] = []
    for found in places.values():
        found.sort(key=lambda place: (-_thinking(talks[place][1]), place))
        kept += found[:most]
    return [talks[place][1] for place in sorted(kept)]


def _thinking(talk: Sequence[Message]) -> int:
    return sum(len(message.reasoning_content or "") for message in talk)


class _Run:
    def __init__(
        self,
        recipe: Recipe,
        inputs: dict[str, str],
        out: Path,
        report: Report | None,
        threads: int,
        save_every: float,
        clock: Callable[[], float],
    ) -> None:
        self.recipe, self.inputs, self.out, self.report = recipe, inputs, out, report
        self.threads, self.save_every, self.clock = threads, save_every, clock
        self.config: dict[str, Any] = msgspec.to_builtins(recipe)
        self.key = digest({"recipe": self.config, "inputs": inputs})
        out.mkdir(parents=True, exist_ok=True)
        state = out / STATE
        self.saved: dict[str, Any] = torch.load(state) if state.exists() else {}

    # ---- what is there already

    def check(self) -> None:
        """Refuse to mix two runs in one folder."""
        if self.saved and self.saved["key"] != self.key:
            raise self._refusal("an unfinished run")
        for name in (BASE, SFT):
            manifest = self._manifest(name)
            made_of = manifest.get("config_digest"), manifest.get("inputs", {})
            if manifest and made_of != (digest(self.config), self.inputs):
                raise self._refusal(f"the checkpoint {name!r}")

    def _refusal(self, what: str) -> ResumeError:
        return ResumeError(
            f"{what} was made from another recipe or corpus",
            where=str(self.out),
            remedy="name another folder with --out, or remove this one",
        )

    def _manifest(self, name: str) -> dict[str, Any]:
        path = self.out / name / MANIFEST
        return dict(json.loads(path.read_bytes())) if path.exists() else {}

    def is_done(self, name: str) -> bool:
        """Whether a stage's checkpoint is complete."""
        return bool(self._manifest(name))

    def result(self) -> Trained:
        """What the finished run made."""
        counts = self._manifest(SFT)["counts"]
        return Trained(
            base=self.out / BASE,
            final=self.out / SFT,
            trajectories=counts["trajectories"],
            dropped=counts["dropped"],
            shortened=bool(counts["shortened"]),
        )

    # ---- the stages

    def go(self, conversations: Sequence[Sequence[Message]], team: Team) -> None:
        """Run what is not done yet."""
        recipe = self.recipe
        sample = conversations[:: max(1, len(conversations) // recipe.sample)]
        if self.is_done(BASE):
            start = load_checkpoint(self.out / BASE)
        else:
            tokenizer = self._tokenizer(sample)
            start = Checkpoint(self._fresh(tokenizer), tokenizer)
        # before the base, so that a corpus of too long rows is refused at once
        kept = self._examples(start.tokenizer.encode_chats(conversations), "trajectory")
        documents = self._documents(sample, start.tokenizer)
        if not self.is_done(BASE):
            mixture = Mixture([("documents", documents, 1.0)], recipe.base.batch, self._seed(BASE))
            self._stage(BASE, recipe.base, mixture, start, team, {"documents": len(documents)})
        share = recipe.sft.documents
        mixture = Mixture(
            [("trajectories", kept, 1.0 - share), ("documents", documents, share)],
            recipe.sft.batch,
            self._seed(SFT),
        )
        counts = {"trajectories": len(kept), "dropped": len(conversations) - len(kept)}
        self._stage(SFT, recipe.sft, mixture, start, team, counts)
        (self.out / STATE).unlink(missing_ok=True)

    def _seed(self, name: str) -> int:
        stage = self.recipe.base if name == BASE else self.recipe.sft
        return self.recipe.seed + stage.seed

    def _tokenizer(self, sample: Sequence[Sequence[Message]]) -> ChatTokenizer:
        if self.saved:
            return ChatTokenizer.from_json(self.saved["tokenizer"])
        return train_tokenizer(sample, size=self.recipe.vocabulary)

    def _fresh(self, tokenizer: ChatTokenizer) -> Qwen3:
        shape = msgspec.structs.replace(self.recipe.model, vocab_size=tokenizer.size)
        model = Qwen3(shape)
        model.initialise(self.recipe.seed)
        if self.recipe.lay_out:
            lay_out_heads(model, self.recipe.seed)
        return model

    def _documents(
        self, sample: Sequence[Sequence[Message]], tokenizer: ChatTokenizer
    ) -> list[Example]:
        recipe = self.recipe
        count = max(1, recipe.base.tokens // _DOCUMENT_TOKENS)
        author = Author(Material(sample), self._seed(BASE))
        written = author.write(recipe.base.documents, count)
        return self._examples(tokenizer.encode_segments(written), "document")

    def _examples(self, encoded: Sequence[Encoded], what: str) -> list[Example]:
        made = [Example.of(one, self.recipe.longest) for one in encoded]
        kept = [one for one in made if one is not None]
        if not kept:
            raise InputError(
                f"no {what} is as short as {self.recipe.longest} tokens",
                remedy="raise `longest` in the recipe",
            )
        return kept

    def _stage(
        self,
        name: str,
        config: StageConfig,
        mixture: Mixture,
        start: Checkpoint,
        team: Team,
        counts: dict[str, int],
    ) -> None:
        """Train one stage to its end and write its checkpoint."""
        model, tokenizer = start
        optimiser = Optimiser(model, config.optimiser)
        stage = Stage(
            name,
            model,
            optimiser,
            mixture,
            config,
            team=team,
            parts=self.recipe.parts,
            pad=tokenizer.pad,
            report=self._note,
            save=lambda now: self._save(name, now, model, optimiser, tokenizer),
            clock=self.clock,
            save_every=self.save_every,
        )
        if self.saved.get("stage") == name:
            model.load_state_dict(self.saved["model"])
            optimiser.load_state_dict(self.saved["optimiser"])
            stage.progress.restore(self.saved["progress"])
        self._trim_curve(name, stage.progress.step)
        now = stage.run()
        save_checkpoint(
            self.out / name,
            model,
            tokenizer,
            config=self.config,
            inputs=self.inputs,
            counts={
                **counts,
                "steps": now.step,
                "tokens": now.tokens,
                "seconds": round(now.seconds),
                "shortened": int(now.shortened),
            },
            seed=self._seed(name),
        )
        self.saved = {}

    def _note(self, point: Point) -> None:
        with (self.out / CURVE).open("ab") as file:
            file.write(to_json(point) + b"\n")
        base, sft = self.recipe.base.tokens, self.recipe.sft.tokens
        done = point.tokens + (base if point.stage == SFT else 0)
        if self.report:
            self.report(min(1.0, done / (base + sft)), point)

    def _trim_curve(self, name: str, step: int) -> None:
        """Drop points of a stage beyond the state it goes on from."""
        points = read_curve(self.out)
        kept = [p for p in points if p.stage != name or p.step <= step]
        (self.out / CURVE).write_bytes(b"".join(to_json(p) + b"\n" for p in kept))

    def _save(
        self,
        name: str,
        now: Progress,
        model: Qwen3,
        optimiser: Optimiser,
        tokenizer: ChatTokenizer,
    ) -> None:
        scratch = self.out / f".{STATE}.new"
        state = {
            "key": self.key,
            "stage": name,
            "progress": now.state(),
            "model": model.state_dict(),
            "optimiser": optimiser.state_dict(),
            "tokenizer": tokenizer.to_json(),
        }
        with scratch.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.out / STATE)


def read_curve(out: Path) -> list[Point]:
    """The learning curve of a run folder; [] when there is none yet."""
    path = out / CURVE
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    return [from_json(line, Point, where=f"{path}:{at}") for at, line in enumerate(lines, 1)]
