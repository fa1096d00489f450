"""Training and serving speed beside `transformers`: same weights, same data, same single core.

The peer of training is the loop that the documentation of `transformers` shows: its own
Qwen3ForCausalLM, padded batches, labels of -100 where nothing is trained, AdamW; it runs in fp32
and under bfloat16 autocast, and the faster one is reported. The peer of serving is `generate` on
left-padded batches of similar length. Both answer every turn of the same conversations with as many
tokens; the peer reads each prompt from its start, as it has no cache that outlives a call. Seconds
are those of the processor, so that other work on the machine does not count. TRL's trainer is the
peer of `bench.train_trl`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench.train_trl import rows as beside_trl
from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.records import Message
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.train.batches import Batch, Example, batches, collate
from palio.train.engine import Engine
from palio.train.loop import Mixture, Stage, StageConfig
from palio.train.model import ModelConfig, Qwen3
from palio.train.optimiser import Optimiser
from palio.train.team import Team
from palio.train.tokenizer import ChatTokenizer, train_tokenizer
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World

BATCH = 1500
CALLERS = 64
WRITTEN = 24


def conversations(problems: int) -> list[Sequence[Message]]:
    made = synthesise(compact_config(11, problems=problems))
    world = World.build(made.catalogue, COMPACT)
    agent, driver, upstream = find_agent("careful"), InlineDriver(), ScriptedUpstream(0)
    return [
        run_problem(agent, problem, world, driver=driver, upstream=upstream).messages
        for problem in made.problems
    ]


def fresh(tokenizer: ChatTokenizer) -> Qwen3:
    model = Qwen3(ModelConfig(vocab_size=tokenizer.size))
    model.initialise(0)
    return model


def peer_of(model: Qwen3, tokenizer: ChatTokenizer) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = model.config.to_transformers(pad=tokenizer.pad, end=tokenizer.end)
    theirs = Qwen3ForCausalLM(Qwen3Config.from_dict(shape))
    theirs.load_state_dict(model.state_dict(), strict=False)
    theirs.tie_weights()
    return theirs


def our_training(model: Qwen3, examples: list[Example], tokens: int) -> float:
    config = StageConfig(tokens=tokens, batch=BATCH)
    with Team(1) as team:
        stage = Stage(
            "bench",
            model,
            Optimiser(model, config.optimiser),
            Mixture([("bench", examples, 1.0)], BATCH, 0),
            config,
            team=team,
            pad=0,
            report=lambda _: None,
            save=lambda _: None,
        )
        started = time.process_time()
        done = stage.run()
    return done.tokens / (time.process_time() - started)


def peer_training(theirs: Any, found: Sequence[Batch], *, low: bool) -> float:
    optimiser = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    tokens, started = 0, time.process_time()
    for batch in found:
        labels = torch.full(batch.inputs.shape, -100).flatten()
        labels[batch.keep] = batch.labels
        labels = labels.view(batch.inputs.shape)
        context = torch.autocast("cpu", torch.bfloat16) if low else contextlib.nullcontext()
        with context:
            # the shift is done already: labels stand at the position that predicts them
            logits = theirs(batch.inputs, attention_mask=(batch.inputs != 0).long()).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        tokens += batch.tokens
    return tokens / (time.process_time() - started)


def turns(talk: Sequence[Message]) -> list[list[Message]]:
    """The conversation before each assistant turn."""
    return [list(talk[:at]) for at, message in enumerate(talk) if message.role == "assistant"]


def our_serving(model: Qwen3, tokenizer: ChatTokenizer, talks: list[Sequence[Message]]) -> float:
    with Engine.of(model, tokenizer, slots=CALLERS) as engine, ThreadPoolExecutor(CALLERS) as pool:

        def shop(talk: Sequence[Message]) -> int:
            written = 0
            for prompt in turns(talk):
                plain = [message.to_openai() for message in prompt]
                reply = engine.complete({"messages": plain, "max_tokens": WRITTEN})
                written += reply["usage"]["completion_tokens"]
            return written

        started = time.process_time()
        written = sum(pool.map(shop, talks))
        return written / (time.process_time() - started)


def peer_serving(theirs: Any, tokenizer: ChatTokenizer, talks: list[Sequence[Message]]) -> float:
    written, started = 0, time.process_time()
    theirs.eval()
    prompts = sorted((p for talk in talks for p in turns(talk)), key=lambda p: len(str(p)))
    for start in range(0, len(prompts), CALLERS):
        ids = [tokenizer.encode_chat(prompt).ids for prompt in prompts[start : start + CALLERS]]
        width = max(len(each) for each in ids)
        inputs = torch.full((len(ids), width), tokenizer.pad)
        for row, each in enumerate(ids):
            inputs[row, width - len(each) :] = torch.tensor(each)
        made = theirs.generate(
            inputs,
            attention_mask=(inputs != tokenizer.pad).long(),
            max_new_tokens=WRITTEN,
            min_new_tokens=WRITTEN,
            do_sample=False,
            pad_token_id=tokenizer.pad,
        )
        written += (made.shape[1] - width) * len(ids)
    return written / (time.process_time() - started)


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of the benchmark table."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _rows(quick)
    finally:
        torch.set_num_threads(threads)


def _rows(quick: bool) -> list[dict[str, Any]]:
    talks = conversations(120 if quick else 300)
    tokenizer = train_tokenizer(talks)
    examples = [e for e in (Example.of(o, 1000) for o in tokenizer.encode_chats(talks)) if e]
    model = fresh(tokenizer)
    count = 6 if quick else 24
    stream = batches(examples, BATCH, random.Random(0))
    found = [collate([examples[at] for at in next(stream)], 0) for _ in range(count)]
    peers = [peer_training(peer_of(model, tokenizer), found, low=low) for low in (False, True)]
    ours = our_training(fresh(tokenizer), examples, (30_000 if quick else 150_000))
    some = talks[: 64 if quick else 192]
    served = our_serving(model, tokenizer, some)
    theirs = peer_serving(peer_of(model, tokenizer), tokenizer, some)
    copies = [fresh(tokenizer) for _ in range(2 if quick else 4)]
    return [
        {
            "name": "train: SFT of the 1.8 M model, one core",
            "palio": ours,
            "peer": max(peers),
            "peer_name": "transformers + AdamW, fp32 or bf16",
            "unit": "tokens/core-second",
            "target": ">= 5000",
        },
        {
            "name": f"serve: {CALLERS} callers at once, one core",
            "palio": served,
            "peer": theirs,
            "peer_name": f"transformers generate, batch {CALLERS}",
            "unit": "generated tokens/core-second",
            "target": ">= 1500",
        },
        *beside_trl(copies, tokenizer, examples, BATCH, quick=quick),
    ]
