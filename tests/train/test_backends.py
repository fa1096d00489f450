"""The pretrained backend on a core: shorter prompts, our attention and loss, nothing read twice."""

from __future__ import annotations

import json
import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment
from safetensors.torch import load_file

from palio.records import ConfigError, InputError, Message, UpstreamError
from palio.train.backends.codec import (
    SIGNATURES,
    PretrainedCodec,
    schema_list,
    signature_list,
    template_text,
    tool_segments,
)
from palio.train.backends.weights import load_model, load_tokenizer
from palio.train.checkpoint import save_checkpoint
from palio.train.codec import Talk
from palio.train.model import Qwen3
from palio.train.reading import read_recipe
from palio.train.recipe import PretrainedModel
from palio.train.run import Options, train
from palio.train.serving import _dtype
from palio.train.tokenizer import ChatTokenizer
from palio.world.tools import tool_schemas
from tests.train.test_stages import corpus  # noqa: F401 - a fixture
from tests.train.test_text import Generation, talk

pytest.importorskip("trl", reason="pretrained models are trained by TRL")
pytest.importorskip("peft", reason="adapters are PEFT's")

from palio.train.backends.places import scored
from palio.train.backends.slots import SlotSampler, sampler_of
from palio.train.backends.snapshots import write_start, write_state
from palio.train.rl.sampler import Decoding, TransformersSampler

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
GREEDY = Decoding(max_tokens=16, temperature=0.0, top_p=1.0, seed=0)


def causal(kind: str, attention: str = "sdpa") -> Any:
    """A random model of transformers with grouped heads."""
    model = PretrainedModel(
        path="", attention=attention, shape={"model_type": kind, **SHAPE, "head_dim": 8}
    )
    if attention == "palio":
        from palio.train.backends.attention import register_attention

        register_attention()
    made = load_model(model, None, 3)
    made.set_attn_implementation(attention)
    return made.eval()


SHAPE = {
    "vocab_size": 200,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}


@given(talk, st.booleans())
def test_the_template_with_signatures_writes_the_same_text(
    messages: list[Message], tooled: bool
) -> None:
    environment = Environment(keep_trailing_newline=True)
    environment.add_extension(Generation)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    tools = [msgspec.to_builtins(tool) for tool in tool_schemas()] if tooled else []
    template = environment.from_string(template_text(SIGNATURES))
    plain = [message.to_openai() for message in messages]
    rendered = template.render(messages=plain, tools=tools or None, add_generation_prompt=False)
    parts = tool_segments(messages, tools, signature_list)
    assert rendered == "".join(part.text for part in parts)


def test_a_signature_tells_what_may_be_left_out_and_what_may_be_chosen() -> None:
    tools = [msgspec.to_builtins(tool) for tool in tool_schemas(("find_product", "terminate"))]
    told = signature_list(tools)
    assert "find_product(q, price?, service?" in told
    assert "terminate(status?=success|failure): " in told
    assert len(told) < len(schema_list(tools)) / 2


def test_a_checkpoint_keeps_the_template_that_it_was_trained_with(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    table = {"backend": "transformers", "path": str(folder), "template": SIGNATURES}
    recipe = read_recipe({"model": table, "stage": [{"kind": "sft"}]})
    start = write_start(recipe, tmp_path / "start")
    assert recipe.pretrained is not None
    codec = PretrainedCodec(load_tokenizer(recipe.pretrained, start))
    assert codec.template == template_text(SIGNATURES)
    messages = [Message(role="user", content="a mug"), Message(role="assistant", content="yes")]
    (made,) = codec.encode_talks([Talk(messages, tool_schemas())])
    assert "find_product(q, " in codec.decode(made.ids)
    again = codec.tokenizer.apply_chat_template(
        [message.to_openai() for message in messages],
        tools=[msgspec.to_builtins(tool) for tool in tool_schemas()],
        tokenize=False,
    )
    assert codec.decode(made.ids) == again
    manifest = json.loads((start / "manifest.json").read_bytes())
    assert manifest["inputs"]["template"] == codec.template_digest
    with pytest.raises(ConfigError, match="not empty"):
        write_start(recipe, start)


@pytest.mark.parametrize(
    "lora",
    [{}, {"lora": {"rank": 4, "alpha": 8}}, {"lora": {"rank": 4}, "dtype": "bfloat16"}],
    ids=["full", "lora", "lora over 16 bits"],
)
def test_a_snapshot_of_the_last_state_is_what_the_stage_makes(
    small: Qwen3,
    tokenizer: ChatTokenizer,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    lora: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from palio.train.backends import pretrained

    folder = tmp_path / "plain"
    save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    steps = {"max_steps": 2, "save_steps": 1, "gradient_accumulation_steps": 1}
    recipe = read_recipe(
        {
            "model": {"backend": "transformers", "path": str(folder), **lora},
            "stage": [{"kind": "sft", "trl": steps}],
        }
    )
    run = tmp_path / "run"
    with pytest.raises(InputError, match="no pretrained model is in training"):
        write_state(run, tmp_path / "early")
    taken: list[Path] = []
    seal = pretrained.seal

    def sealing(*given: Any, **told: Any) -> Any:
        taken.append(write_state(run / "sft", tmp_path / "taken"))
        return seal(*given, **told)

    monkeypatch.setattr(pretrained, "seal", sealing)
    made = train(recipe, corpus, run, options=Options(uncertified=True))
    wanted, got = (load_file(at / "model.safetensors") for at in (made.final, taken[0]))
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)
    beside = [at / "unmerged" / "adapter_model.safetensors" for at in (made.final, taken[0])]
    assert [path.exists() for path in beside] == ["dtype" in lora] * 2
    if "dtype" in lora:
        learned = [load_file(path) for path in beside]
        assert all(torch.equal(learned[0][name], learned[1][name]) for name in learned[0])
    manifest = json.loads((taken[0] / "manifest.json").read_bytes())
    assert manifest["counts"] == {"steps": 2, "of": 2}
    with pytest.raises(InputError, match="saved no state"):
        write_state(run / "sft", tmp_path / "late")


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_our_attention_gives_what_torchs_gives(kind: str) -> None:
    ids = torch.randint(0, 200, (2, 130), generator=torch.Generator().manual_seed(1))
    made = []
    for attention in ("sdpa", "palio"):
        model = causal(kind, attention)
        logits = model(input_ids=ids).logits
        logits.square().mean().backward()
        made.append((logits.detach(), {n: p.grad for n, p in model.named_parameters()}))
    assert torch.allclose(made[0][0], made[1][0], atol=1e-5)
    assert all(torch.allclose(made[0][1][name], made[1][1][name], atol=1e-6) for name in made[0][1])


def test_our_attention_with_padding_or_a_cache_is_torchs() -> None:
    ids = torch.randint(0, 200, (2, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[0, 0, 0, *[1] * 6], [1] * 9])
    one, other = causal("llama"), causal("llama", "palio")
    wanted, got = (m(input_ids=ids, attention_mask=mask).logits for m in (one, other))
    assert torch.allclose(wanted[mask.bool()], got[mask.bool()], atol=1e-5)
    wanted, got = (m.generate(ids[1:], max_new_tokens=5, do_sample=False) for m in (one, other))
    assert wanted.tolist() == got.tolist()


def test_the_loss_of_the_trained_places_is_that_of_all_places() -> None:
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, 200, (3, 40), generator=generator)
    labels = torch.where(torch.rand(3, 40, generator=generator) < 0.2, ids, -100)
    mask = torch.ones_like(ids)
    mask[1, 30:], labels[1, 30:] = 0, -100
    model = causal("llama")
    told = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    total, hits, count = scored(model, told)
    whole = model(**told)
    trained = labels[:, 1:] != -100
    assert count == int(trained.sum())
    assert torch.allclose(total / count, whole.loss, atol=1e-5)
    right = whole.logits[:, :-1].argmax(-1) == labels[:, 1:]
    assert hits == int((right & trained).sum())


class Counted(torch.nn.Module):
    """Counts the tokens that a model reads."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.tokens, self.calls = inner, 0, 0

    def forward(self, **told: Any) -> Any:
        self.tokens += told["input_ids"].numel()
        self.calls += 1
        return self.inner(**told)


def conversations() -> list[list[int]]:
    rng = random.Random(0)
    shared = [rng.randrange(200) for _ in range(60)]
    short = [shared + [rng.randrange(200) for _ in range(rng.randrange(1, 40))] for _ in range(9)]
    return [*short, *([*each, 3, 4, 5] for each in short[:3])]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_many_conversations_at_once_are_each_answered_as_alone(kind: str) -> None:
    model, prompts = causal(kind), conversations()
    with TransformersSampler(model, end=7) as plain:
        wanted = [plain.sample(ids, GREEDY) for ids in prompts]
    got: list[Any] = [None] * len(prompts)
    with SlotSampler(model, end=7, slots=4) as sampler:

        def ask(at: int) -> None:
            got[at] = sampler.sample(prompts[at], GREEDY)

        threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [one.ids for one in got] == [one.ids for one in wanted]
    for one, other in zip(got, wanted, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_nothing_is_read_twice() -> None:
    counted = Counted(causal("llama"))
    prompt = list(range(100))
    with SlotSampler(counted, end=7, slots=3) as sampler:
        first = sampler.sample(prompt, GREEDY)
        read = counted.tokens
        longer = [*prompt, *first.ids, 8, 9]
        sampler.sample(longer, GREEDY)
        assert counted.tokens - read <= 3 + len(first.ids) + 3 * 16
        read = counted.tokens
        sampler.sample([*prompt[:90], 1, 2], GREEDY)
        assert counted.tokens - read <= 2 + 3 * 16, "another conversation copies what it shares"


def test_a_closed_or_broken_sampler_says_so() -> None:
    with SlotSampler(causal("llama"), end=7) as sampler:
        with pytest.raises(UpstreamError, match="the sampler broke: IndexError"):
            sampler.sample([500], GREEDY)
        with pytest.raises(UpstreamError, match="closed"):
            sampler.sample([5], GREEDY)


def test_a_model_with_windows_is_not_served_from_slots() -> None:
    model = causal("qwen3")
    with sampler_of(model, end=7) as sampler:
        assert isinstance(sampler, SlotSampler)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with sampler_of(model, end=7) as sampler:
        assert isinstance(sampler, TransformersSampler)


@pytest.mark.parametrize(
    ("kind", "attention", "more"),
    [("mistral", "sdpa", {"sliding_window": 8}), ("qwen3", "eager", {})],
)
def test_what_slots_cannot_serve_is_answered_as_the_model_would(
    kind: str, attention: str, more: dict[str, Any]
) -> None:
    """A window that no `layer_types` tells of, and an attention that adds masks to scores."""
    shape = {"model_type": kind, **SHAPE, "head_dim": 8, **more}
    model = load_model(PretrainedModel(path="", shape=shape), None, 3).eval()
    model.set_attn_implementation(attention)
    prompt = conversations()[0]
    with sampler_of(model, end=7) as sampler:
        served = sampler.sample(prompt, GREEDY)
    with SlotSampler(model, end=7) as slots:
        other = slots.sample(prompt, GREEDY).logprobs
    assert other != pytest.approx(served.logprobs, abs=1e-3), "they see what it does not"
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *served.ids]])).logits[0, len(prompt) - 1 : -1]
    assert served.ids == logits.argmax(-1).tolist()
    scores = torch.log_softmax(logits, -1)[range(len(served.ids)), served.ids]
    assert served.logprobs == pytest.approx(scores.tolist(), abs=1e-4)


def test_a_model_with_windows_that_it_does_not_use_is_served_from_slots() -> None:
    model = causal("llama")
    model.config.sliding_window, model.config.use_sliding_window = 8, False
    with sampler_of(model, end=7) as sampler:
        assert isinstance(sampler, SlotSampler)


def test_a_checkpoint_is_served_in_its_own_dtype(tmp_path: Path) -> None:
    for written, read in (("bfloat16", "bfloat16"), ("float16", "float32"), (None, "float32")):
        (tmp_path / "config.json").write_text(json.dumps({"dtype": written}))
        assert _dtype(tmp_path) == read
