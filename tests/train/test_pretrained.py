"""TRL trains on our ids and masks, goes on after SIGKILL; what it saves is served undropped."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment
from safetensors.torch import load_file

from palio.judging.encoders import default_encoder
from palio.records import (
    ConfigError,
    InputError,
    IntegrityError,
    Message,
    MissingDependencyError,
    PalioError,
)
from palio.train.backends.codec import PretrainedCodec, tool_segments
from palio.train.backends.pretrained import mixture
from palio.train.backends.qwen import qwen_tokenizer
from palio.train.backends.templates import check_template
from palio.train.backends.weights import load_model, load_tokenizer, located
from palio.train.checkpoint import save_checkpoint
from palio.train.codec import Talk
from palio.train.context import Source
from palio.train.ground import Ground
from palio.train.model import Qwen3
from palio.train.reading import read_recipe
from palio.train.recipe import PretrainedModel, Recipe
from palio.train.rollouts import collect
from palio.train.run import Options, train
from palio.train.settings import Sampling
from palio.train.stages.kept import encode
from palio.train.text import END, assistant_text, chat_template
from palio.train.tokenizer import ChatTokenizer
from palio.world.tools import tool_schemas
from tests.train.conftest import Shop
from tests.train.test_stages import corpus  # noqa: F401 - a fixture
from tests.train.test_text import Generation, talk

pytest.importorskip("trl", reason="pretrained models are trained by TRL")
peft = pytest.importorskip("peft", reason="adapters are PEFT's")

from palio.train.backends.served import Served  # noqa: E402 - needs both packages
from palio.train.rl.sampler import TransformersSampler  # noqa: E402

# what peft, trl and transformers say of each other's next versions
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
BARE = Options(uncertified=True)
LORA = {"rank": 4, "alpha": 8, "dropout": 0.5, "targets": ["q_proj", "v_proj"]}
STEPS = {"max_steps": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}


@pytest.fixture(scope="session")
def weights(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "small"
    save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return folder


def recipe(weights: Path, trl: dict[str, Any] | None = None, **model: Any) -> Recipe:
    return read_recipe(
        {
            "name": "p",
            "model": {"backend": "transformers", "path": str(weights), **model},
            "stage": [{"kind": "sft", "trl": {**STEPS, **(trl or {})}}],
        }
    )


@given(talk, st.booleans())
def test_the_template_with_tools_writes_the_same_text(
    messages: list[Message], tooled: bool
) -> None:
    environment = Environment(keep_trailing_newline=True)
    environment.add_extension(Generation)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    tools = [msgspec.to_builtins(tool) for tool in tool_schemas()] if tooled else []
    template = environment.from_string(chat_template("chat_template_tools.jinja"))
    plain = [message.to_openai() for message in messages]
    rendered = template.render(messages=plain, tools=tools or None, add_generation_prompt=False)
    assert rendered == "".join(part.text for part in tool_segments(messages, tools))


def test_a_template_without_generation_marks_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not mark"):
        check_template("{% for m in messages %}<|im_start|>assistant{{ m.content }}{% endfor %}")
    check_template(chat_template())


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingDependencyError, match="no_such_package"):
        located("package:no_such_package/file")
    assert located("package:palio/train").endswith("palio/train")


def test_a_damaged_file_of_ranks_is_named_with_a_remedy(tmp_path: Path) -> None:
    tokens = [*(bytes([byte]) for byte in range(256)), b"abc"]
    lines = [b"%s %d" % (base64.b64encode(each), rank) for rank, each in enumerate(tokens)]
    (tmp_path / "q.tiktoken").write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match="b'abc' is no merge of tokens of lower rank") as found:
        qwen_tokenizer(tmp_path / "q.tiktoken")
    assert found.value.where == str(tmp_path / "q.tiktoken")
    assert "another tokenizer" in found.value.remedy


def test_a_stage_with_nothing_to_train_on_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to train on") as found:
        mixture([Source("rows", [])], tmp_path / "sft")
    assert found.value.where == str(tmp_path / "sft")
    assert "longest" in found.value.remedy


def test_places_are_told_as_exactly_as_transformers_tells_them(weights: Path) -> None:
    """Their frequencies in 16 bits are another model: 0.4 % off, whole turns in a long prompt."""
    from transformers import AutoModelForCausalLM

    loaded = load_model(PretrainedModel(path=str(weights), dtype="bfloat16"), None, 0)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    theirs = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.bfloat16)
    frequencies = theirs.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32
    assert torch.equal(loaded.model.rotary_emb.inv_freq, frequencies)


@pytest.mark.parametrize("lora", [None, LORA])
def test_sft_by_trl_makes_a_checkpoint_that_transformers_loads(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    lora: dict[str, Any] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    more = {"lora": lora} if lora else {}
    made = train(recipe(weights, **more), corpus, tmp_path / "run", options=BARE)
    assert made.stages[0].counts["steps"] == 3
    assert not capsys.readouterr().out, "standard output belongs to the command"
    loaded = AutoModelForCausalLM.from_pretrained(made.final)
    before = AutoModelForCausalLM.from_pretrained(weights)
    moved = [
        name
        for name, value in loaded.state_dict().items()
        if not torch.equal(value, before.state_dict()[name])
    ]
    assert moved
    if lora:
        assert all("q_proj" in name or "v_proj" in name for name in moved)
    tokenizer = AutoTokenizer.from_pretrained(made.final)
    assert "generation" in tokenizer.chat_template
    manifest = json.loads((made.final / "manifest.json").read_bytes())
    assert {"corpus", "template", "rows", "recipe"} <= manifest["inputs"].keys()
    files = {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"}
    assert files <= {path.name for path in made.final.iterdir()}
    again = train(recipe(weights, **more), corpus, tmp_path / "run", options=BARE)
    assert again.stages[0].skipped


@pytest.mark.slow
def test_a_killed_trl_stage_goes_on_from_its_newest_state(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = {"max_steps": 8, "save_steps": 2}
    plain = {"path": str(weights), "steps": settings}
    code = (
        "import json, sys; from pathlib import Path\n"
        "from tests.train.test_pretrained import recipe\n"
        "from palio.train.run import Options, train\n"
        "plain = json.loads(sys.argv[1])\n"
        "train(recipe(Path(plain['path']), plain['steps']), Path(sys.argv[2]), Path(sys.argv[3]),"
        " options=Options(uncertified=True))\n"
    )
    whole = train(recipe(weights, settings), corpus, tmp_path / "whole", options=BARE)
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", code, json.dumps(plain), str(corpus), str(killed)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 90
    states = killed / "sft" / "trainer"
    while time.monotonic() < until and process.poll() is None:
        if list(states.glob("checkpoint-*/trainer_state.json")):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "sft" / "stage.json").exists()
    again = train(recipe(weights, settings), corpus, killed, options=BARE)
    wanted, got = (load_file(run.final / "model.safetensors") for run in (whole, again))
    assert all(torch.allclose(wanted[name], got[name], atol=1e-6) for name in wanted)


def test_a_loss_that_is_no_number_stops_trl(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    wild = recipe(weights, {"learning_rate": 1e30, "max_steps": 6})
    with pytest.raises(IntegrityError, match="not a number") as found:
        train(wild, corpus, tmp_path / "run", options=BARE)
    assert found.value.where == str(tmp_path / "run" / "sft")
    assert not (tmp_path / "run" / "sft" / "checkpoint").exists()


def test_no_dropout_while_sampling_and_tokens_come_back_as_sampled(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    model = PretrainedModel(path=str(weights))
    adapted = peft.get_peft_model(
        load_model(model, None, 0),
        peft.LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj"], init_lora_weights=False),
    )
    adapted.train()
    codec = PretrainedCodec(load_tokenizer(model, None))
    asked = {"messages": [{"role": "user", "content": "a mug"}], "max_tokens": 12}
    asked["return_token_ids"] = True
    with TransformersSampler(adapted, end=codec.end) as sampler:
        served = Served(sampler, codec, name="p", longest=4000)
        first, second = served.complete(asked), served.complete(asked)
        assert first["choices"] == second["choices"]
        ids = first["prompt_token_ids"]
        adapted.eval()
        with torch.no_grad():
            logits = adapted(torch.tensor([ids])).logits[0, -1]
        assert first["choices"][0]["token_ids"][0] == int(logits.argmax())
        message = first["choices"][0]["message"]
        more = [*asked["messages"], message, {"role": "user", "content": "go on"}]
        third = served.complete({**asked, "messages": more})
        told = [*ids, *first["choices"][0]["token_ids"]]
        assert third["prompt_token_ids"][: len(told)] == told


# ---- Qwen3's real vocabulary


@pytest.fixture(scope="session")
def qwen() -> PretrainedCodec:
    if find_spec("dashscope") is None:
        pytest.skip("the package dashscope, which ships Qwen's rank file, is not installed")
    return PretrainedCodec(
        qwen_tokenizer(Path(located("package:dashscope/resources/qwen.tiktoken")))
    )


@pytest.mark.slow
def test_the_mask_on_qwen3_decodes_to_what_the_assistant_wrote(
    qwen: PretrainedCodec, talks: list[Sequence[Message]]
) -> None:
    assert qwen.encode("<|im_start|>user\nHow are you?<|im_end|>\n") == [
        *(151644, 872, 198, 4340, 525, 498, 30, 151645, 198)
    ]
    tools = tool_schemas()
    for messages in talks[:20]:
        (encoded,) = qwen.encode_talks([Talk(messages, tools)])
        runs: list[list[int]] = []
        for at, (token, on) in enumerate(zip(encoded.ids, encoded.trained, strict=True)):
            if on and not (at and encoded.trained[at - 1]):
                runs.append([])
            if on:
                runs[-1].append(token)
        wanted = [assistant_text(m) + END for m in messages if m.role == "assistant"]
        assert [qwen.decode(run) for run in runs] == wanted
        assert all(run[-1] == qwen.end for run in runs), "the end token of every turn is trained"
        rendered = qwen.tokenizer.apply_chat_template(
            [message.to_openai() for message in messages],
            tools=[msgspec.to_builtins(tool) for tool in tools],
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert rendered["input_ids"] == encoded.ids
        assert [bool(on) for on in rendered["assistant_masks"]] == encoded.trained


def test_a_rollout_reads_what_training_on_it_will_read(
    weights: Path, shop: Shop, tmp_path: Path
) -> None:
    model = PretrainedModel(path=str(weights))
    codec = PretrainedCodec(load_tokenizer(model, None))
    some = shop.problems[:2]
    ground = Ground(some, {some[0].catalogue: shop.world}, default_encoder())
    sampling = Sampling(samples=1, max_tokens=6, threads=2)
    with TransformersSampler(load_model(model, None, 0), end=codec.end) as sampler:
        served = Served(sampler, codec, name="p", longest=9000)
        found = collect(
            ground, served, sampling, tmp_path, name="p", seed=0, report=lambda *_: None
        )
    for rollout in found.rollouts:
        first = list(rollout.turns[0].prompt)
        again = encode(rollout, codec)
        assert again.ids[: len(first)] == first, "the tools are written alike in both"
        assert not any(again.trained[: len(first)])
        assert rollout.encoded() is not None


@pytest.mark.slow
def test_launched_processes_train_as_this_one_does(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    here = train(recipe(weights), corpus, tmp_path / "here", options=BARE)
    there = train(recipe(weights, {"launch": ["python"]}), corpus, tmp_path / "there", options=BARE)
    wanted, got = (load_file(run.final / "model.safetensors") for run in (here, there))
    assert all(torch.allclose(wanted[name], got[name], atol=1e-6) for name in wanted)
    with pytest.raises(PalioError, match="ended with status"):
        train(recipe(weights, {"launch": ["false"]}), corpus, tmp_path / "no", options=BARE)
    assert not (tmp_path / "no" / "sft" / "checkpoint").exists()
