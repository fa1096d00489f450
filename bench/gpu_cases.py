"""One stage's mechanics at one shape: random weights, random tokens, palio's own stage code.

Nothing here is learned. SFT is `run_job`, KTO `train_kto`, Dr. GRPO `train_grpo`, all as a recipe
starts them; only the rows are made up, weights are drawn on the device, and nothing is saved.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

END, PAD = "<|im_end|>", "<|endoftext|>"
MARKS = (PAD, "<|im_start|>", END)
FIRST = 300
"""Ids below it are bytes and marks of the made-up tokenizer."""


class Shape(NamedTuple):
    """A Qwen3; the fields are those of its configuration."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int = 151_936

    @property
    def config(self) -> dict[str, Any]:
        """What `transformers` builds it from."""
        return {
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 40_960,
            "rope_theta": 1_000_000.0,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        }

    @property
    def parameters(self) -> int:
        """Weights that take part in a matrix product, the tied output layer once."""
        width = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        layer = self.hidden * width + 3 * self.hidden * self.inner
        return self.layers * layer + self.vocabulary * self.hidden

    def forward(self, rows: int, length: int) -> float:
        """Floating-point operations of a forward pass, causal attention counted by half."""
        attention = 2 * self.layers * self.heads * self.head_dim * length
        return rows * length * (2.0 * self.parameters + attention)


SHAPES = {
    "0.6B": Shape("0.6B", 1024, 3072, 28, 16, 8, 128),
    "4B": Shape("4B", 2560, 9728, 36, 32, 8, 128),
    "tiny": Shape("tiny", 64, 128, 2, 4, 2, 16, 2_000),
}


class Size(NamedTuple):
    """Rows of an update, tokens of a row, updates after the first, seconds that they may take."""

    rows: int
    length: int
    steps: int
    seconds: float


class Enough(Exception):  # noqa: N818 - it ends a case and is no error
    """The case's time is up; what was measured until then counts."""


class Clock:
    """Notes when each update ended, and the most memory held until then.

    The trainers report after they have read the loss, so the device has finished by then.
    """

    def __init__(self, seconds: float, updates: int) -> None:
        self._until = time.perf_counter() + seconds
        self._updates = updates
        self.ends: list[float] = []
        self.peak = 0.0

    def __call__(self, share: float, note: str) -> None:
        """A stage's `Report`."""
        del share, note
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            self.peak = torch.cuda.max_memory_allocated() / 2**30
        self.ends.append(time.perf_counter())
        late = len(self.ends) > 1 and self.ends[-1] > self._until
        if late or len(self.ends) == self._updates:
            raise Enough

    def measures(self, tokens: int, flops: float, less: Sequence[float] = ()) -> dict[str, Any]:
        """Medians over the updates after the first, which warms up.

        Args:
            tokens: of an update.
            flops: of an update.
            less: seconds of each update that are not for `flops`, e.g. sampling.
        """
        took = [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]
        if not took:
            raise Enough("fewer than two updates fitted in the case's time")
        seconds = statistics.median(took)
        away = statistics.median(less[1:]) if less[1:] else 0.0
        return {
            "step_seconds": seconds,
            "step_seconds_all": took,
            "steps_per_s": 1 / seconds,
            "tokens_per_step": tokens,
            "tokens_per_s": tokens / seconds,
            "model_tflop_per_step": flops / 1e12,
            "model_tflop_per_s": flops / 1e12 / (seconds - away),
            "peak_gib": self.peak or None,
        }


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Bytes, the chat marks and fillers: as many entries as the model has."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from tokenizers import pre_tokenizers as pre
    from transformers import PreTrainedTokenizerFast

    table = {letter: at for at, letter in enumerate(sorted(pre.ByteLevel.alphabet()))}
    table |= {mark: 256 + at for at, mark in enumerate(MARKS)}
    table |= {f"<filler {at}>": at for at in range(len(table), vocabulary)}
    made = Tokenizer(models.BPE(vocab=table, merges=[]))
    made.pre_tokenizer = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=PAD).save_pretrained(
        folder
    )


def pretrained(shape: Shape, folder: Path, *, lora: bool) -> Any:
    """The recipe's model table; the adapter is that of `recipes/qwen3-4b.toml`.

    Weights that are all trained have 32 bits, as every recipe for one process asks: what a step
    adds is lost in 16. Autocast computes in 16 either way.
    """
    from palio.train.recipe import LoraConfig, PretrainedModel

    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        write_tokenizer(tokenizer, shape.vocabulary)
    return PretrainedModel(
        path=str(tokenizer),
        dtype="bfloat16" if lora else "float32",
        lora=LoraConfig(rank=32, alpha=64, dropout=0.05) if lora else None,
        shape=shape.config,
    )


def settings(rows: int, steps: int, *, parts: int = 1, bf16: bool = True) -> Any:
    """TRL's settings: the recipe's, without accumulation unless `parts` says so; no save."""
    from palio.train.settings import TrlSettings

    return TrlSettings(
        max_steps=steps,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        warmup_ratio=0.0,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=parts,
        bf16=bf16,
        gradient_checkpointing=True,
        save_steps=steps + 1,
    )


def drawn(model: Any, start: Any, seed: int) -> Any:
    """Random weights, drawn where they are used: 4 G of them take a minute on a CPU."""
    from palio.train.backends.weights import load_model

    with torch.device(device()):
        return load_model(model, start, seed)


def random_ids(shape: Shape, count: int, rng: random.Random) -> list[int]:
    return rng.choices(range(FIRST, shape.vocabulary), k=count)


def sft(shape: Shape, size: Size, folder: Path, *, lora: bool) -> dict[str, Any]:
    """SFT on rows of which about a third is trained, as in a shopping conversation."""
    from palio.train.backends import job as stage

    rng = random.Random(0)
    rows = []
    for _ in range(size.rows * (size.steps + 1)):
        ids = random_ids(shape, size.length, rng)
        rows.append((ids, [token if at % 3 == 0 else -100 for at, token in enumerate(ids)]))
    stage.write_rows(folder, rows)
    model = pretrained(shape, folder, lora=lora)
    work = stage.SftJob(
        stage="bench",
        folder=str(folder),
        model=model,
        settings=settings(size.rows, size.steps + 1),
        seed=0,
        longest=size.length,
    )
    clock = Clock(size.seconds, size.steps + 1)
    with patch.multiple(stage, load_model=drawn, save_trained=lambda *_: None), until_enough():
        stage.run_job(work, clock)
    forward = shape.forward(size.rows, size.length)
    found = clock.measures(size.rows * size.length, forward * (2 if lora else 3))
    return {"weights": model.dtype, **found}


@contextmanager
def until_enough() -> Iterator[None]:
    try:
        yield
    except Enough:
        return


def policy_of(shape: Shape, folder: Path) -> Any:
    """A LoRA policy, as `open_policy` makes it."""
    import peft

    from palio.train.backends.codec import PretrainedCodec
    from palio.train.backends.job import adapter
    from palio.train.backends.weights import load_tokenizer
    from palio.train.rl.policy import TransformersPolicy

    model = pretrained(shape, folder, lora=True)
    codec = PretrainedCodec(load_tokenizer(model, None))
    made = peft.get_peft_model(drawn(model, None, 0), adapter(model.lora))
    return TransformersPolicy(made, codec.tokenizer, codec, lambda *_, **__: None)


def kto(shape: Shape, size: Size, folder: Path) -> dict[str, Any]:
    """KTO with an adapter: a trained pass, and three more for KL estimate and reference."""
    from palio.train.preference.kto import KtoSettings, train_kto
    from palio.train.preference.labels import Labelled

    rng, half = random.Random(0), size.length // 2
    rows = [
        Labelled(
            key=str(number),
            number=0,
            prompt=tuple(random_ids(shape, half, rng)),
            completion=tuple(random_ids(shape, half, rng)),
            mask=tuple(int(at % 3 > 0) for at in range(half)),
            label=number % 2 == 0,
        )
        for number in range(size.rows * (size.steps + 1))
    ]
    chosen = KtoSettings(longest=size.length, trl=settings(size.rows, size.steps + 1))
    clock = Clock(size.seconds, size.steps + 1)
    with until_enough():
        train_kto(policy_of(shape, folder), rows, chosen, folder, seed=0, report=clock, threads=8)
    forward = shape.forward(size.rows, 2 * half)
    return {"weights": "bfloat16", **clock.measures(size.rows * 2 * half, 5 * forward)}


class MadeUpRoller:
    """Samples one turn after a random prompt; rewards are 0 and 1 in turn, so all groups are mixed.

    Attributes:
        seconds: what each batch of rollouts took.
        sampled: tokens of each batch.
    """

    def __init__(self, shape: Shape, prompt: int, written: int) -> None:
        rng = random.Random(0)
        self._prompts = {str(at): random_ids(shape, prompt, rng) for at in range(8)}
        self._written = written
        self.seconds: list[float] = []
        self.sampled: list[int] = []

    @property
    def keys(self) -> tuple[str, ...]:
        """See `Roller`."""
        return tuple(self._prompts)

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Any) -> list[Any]:
        """See `Roller`."""
        from concurrent.futures import ThreadPoolExecutor

        started = time.perf_counter()
        with ThreadPoolExecutor(len(keys)) as pool:
            numbers = range(len(keys))
            made = list(pool.map(lambda *a: self._one(*a, sampler), keys, seeds, numbers))
        self.seconds.append(time.perf_counter() - started)
        self.sampled.append(sum(len(each.completion) for each in made))
        return made

    def _one(self, key: str, seed: int, number: int, sampler: Any) -> Any:
        from palio.train.rl.rollouts import Rollout
        from palio.train.rl.sampler import Decoding
        from palio.train.rl.tokens import Span

        ids, logprobs = sampler.sample(self._prompts[key], Decoding(self._written, 1.0, 1.0, seed))
        right = number % 2 == 0
        return Rollout(
            key=key,
            prompt=self._prompts[key],
            completion=ids,
            mask=[True] * len(ids),
            logprobs=logprobs,
            spans=(Span(0, len(ids)),),
            outcome=float(right),
            credits=None,
            success=right,
        )


def grpo(shape: Shape, size: Size, folder: Path, *, written: int = 64) -> dict[str, Any]:
    """Dr. GRPO with an adapter, 4 groups of 8 a step, sampled by the model itself."""
    from palio.train.rl.grpo import train_grpo
    from palio.train.rl.settings import GrpoSettings

    roller = MadeUpRoller(shape, size.length - written, written)
    chosen = GrpoSettings(
        reward="outcome",
        group=8,
        groups=size.rows // 8,
        max_tokens=written,
        longest=size.length,
        probe=4,
        trl=settings(8, size.steps + 1, parts=size.rows // 8),
    )
    clock = Clock(size.seconds, size.steps + 1)
    policy = policy_of(shape, folder)
    with until_enough():
        train_grpo(policy, roller, chosen, folder, seed=0, report=clock, threads=8)
    forward = shape.forward(size.rows, size.length)
    found = clock.measures(size.rows * size.length, 2 * forward, roller.seconds)
    later = list(zip(roller.sampled, roller.seconds, strict=True))[1:]
    found["sampled_tokens_per_s"] = statistics.median(n / s for n, s in later)
    found["sampling_seconds"] = statistics.median(s for _, s in later)
    return {"weights": "bfloat16", **found}


def engine(folder: Path, checkpoint: str) -> dict[str, Any]:
    """Greedy turns of the 1.8 M model on one core of this machine, beside `generate` there."""
    from bench.train import conversations, our_serving, peer_of, peer_serving
    from palio.train.checkpoint import load_checkpoint

    del folder
    loaded = load_checkpoint(Path(checkpoint))
    talks = conversations(32)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ours = our_serving(loaded.model, loaded.tokenizer, talks)
        theirs = peer_serving(peer_of(loaded.model, loaded.tokenizer), loaded.tokenizer, talks[:16])
    finally:
        torch.set_num_threads(before)
    return {"tokens_per_s": ours, "transformers_tokens_per_s": theirs, "unit": "core-seconds"}


def product(side: int, repeats: int) -> dict[str, Any]:
    """The machine's ceiling: bf16 matrix products of random data, TFLOP/s."""
    where = device()
    one, other = (torch.randn(side, side, device=where, dtype=torch.bfloat16) for _ in range(2))
    wait: Callable[[], object] = torch.cuda.synchronize if where == "cuda" else lambda: None
    took = []
    for _ in range(repeats + 3):
        wait()
        started = time.perf_counter()
        torch.mm(one, other)
        wait()
        took.append(time.perf_counter() - started)
    return {"model_tflop_per_s": 2 * side**3 / 1e12 / statistics.median(took[3:])}


def dump(path: Path, found: dict[str, Any]) -> None:
    """Write the whole file again, in one move, so that a killed run keeps what it has."""
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    scratch.replace(path)
