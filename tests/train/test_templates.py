"""A user's chat template is what rows, rollouts, evaluation and the server are written with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.judging.encoders import default_encoder
from palio.records import ConfigError, IntegrityError, Message
from palio.train.backends.codec import PretrainedCodec, template_text, tool_segments
from palio.train.backends.templates import check_template, template_segments
from palio.train.checkpoint import save_checkpoint
from palio.train.codec import Talk
from palio.train.engine import Sampled
from palio.train.ground import Ground
from palio.train.model import Qwen3
from palio.train.reading import read_recipe
from palio.train.rl.rollouts import Play, WorldRoller
from palio.train.rl.sampler import Decoding
from palio.train.run import Options, train
from palio.train.serving import is_own, open_checkpoint
from palio.train.text import END, assistant_text, chat_template
from palio.train.tokenizer import ChatTokenizer
from palio.world.artefacts import file_digest
from palio.world.tools import tool_schemas
from tests.train.conftest import Shop
from tests.train.test_stages import corpus  # noqa: F401 - a fixture
from tests.train.test_text import talk

pytest.importorskip("trl", reason="pretrained models are trained by TRL")
pytest.importorskip("peft", reason="adapters are PEFT's")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FILE = Path(__file__).with_name("template.jinja")
TEXT = FILE.read_text("utf-8")
TOOLS = [msgspec.to_builtins(tool) for tool in tool_schemas()]


@settings(max_examples=60)
@given(talk, st.booleans())
def test_a_template_in_pieces_is_its_text_and_its_mask(
    messages: list[Message], tooled: bool
) -> None:
    """Held against palio's own template, whose pieces are known without rendering."""
    tools = TOOLS if tooled else []
    pieces = list(template_segments(chat_template("chat_template_tools.jinja"), messages, tools))
    for trained in (True, False):
        wanted = [part.text for part in tool_segments(messages, tools) if part.trained == trained]
        found = [part.text for part in pieces if part.trained == trained]
        assert "".join(found) == "".join(wanted)
    whole = "".join(part.text for part in pieces)
    assert whole == "".join(part.text for part in tool_segments(messages, tools))


@pytest.fixture
def weights(small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return folder


@pytest.fixture
def trained(weights: Path, corpus: Path, tmp_path: Path) -> Path:  # noqa: F811
    """A checkpoint that was trained with the template of the file."""
    model = {"backend": "transformers", "path": str(weights), "template": str(FILE)}
    steps = {"max_steps": 1, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    recipe = read_recipe({"model": model, "stage": [{"kind": "sft", "trl": steps}]})
    return train(recipe, corpus, tmp_path / "run", options=Options(uncertified=True)).final


def rendered(codec: PretrainedCodec, messages: Sequence[dict[str, Any]]) -> str:
    text: str = codec.tokenizer.apply_chat_template(
        list(messages), tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    return text


def codec_of(checkpoint: Path) -> PretrainedCodec:
    from transformers import AutoTokenizer

    return PretrainedCodec(AutoTokenizer.from_pretrained(checkpoint))


def test_what_was_trained_with_a_template_is_served_with_it(trained: Path) -> None:
    codec = codec_of(trained)
    assert codec.template == TEXT
    assert not is_own(trained), "our engine would write palio's own text"
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a mug"}]
    asked = {"tools": TOOLS, "max_tokens": 6, "return_token_ids": True, "temperature": 1.0}
    held: list[int] = []
    with open_checkpoint(trained) as upstream:
        for turn in range(3):
            answer = upstream.complete({**asked, "messages": messages, "seed": turn})
            prompt, choice = answer["prompt_token_ids"], answer["choices"][0]
            if turn == 0:
                assert codec.decode(prompt) == rendered(codec, messages)
                assert codec.decode(prompt).startswith("<|im_start|>system\nYou shop with find_")
            assert prompt[: len(held)] == held, "tokens that were sampled are read back"
            assert codec.decode(prompt).endswith("<|im_start|>assistant\n")
            held = [*prompt, *choice["token_ids"]]
            result = {"role": "tool", "content": f"[{turn}]", "tool_call_id": "c"}
            messages += [choice["message"], result]
    text = codec.decode(held)
    assert "<|im_start|>tool\n[0]<|im_end|>\n" in text
    assert "<tool_response>" not in text, "that is palio's own way of writing a result"


class Told:
    """Says the given turns."""

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self.turns = [list(turn) for turn in turns]

    def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
        turn = self.turns.pop(0)[: decoding.max_tokens]
        return Sampled(turn, [-0.5] * len(turn))


def test_rollouts_and_rows_have_the_same_tokens(
    weights: Path, shop: Shop, talks: list[Sequence[Message]]
) -> None:
    from transformers import AutoTokenizer

    codec = PretrainedCodec(AutoTokenizer.from_pretrained(weights), TEXT)
    ground = Ground(shop.problems, {shop.problems[0].catalogue: shop.world}, default_encoder())
    for problem, messages in list(zip(shop.problems, talks, strict=True))[:4]:
        said = [
            codec.encode(assistant_text(each) + END)
            for each in messages
            if each.role == "assistant"
        ]
        roller = WorldRoller([problem], ground, codec, Play(longest=8000))
        [rollout] = roller.roll([problem.problem_id], [0], Told(said))
        assert rollout.trajectory is not None
        record = rollout.trajectory
        [row] = codec.encode_talks([Talk(record.messages, record.tools)])
        whole = rollout.prompt + rollout.completion
        assert len(rollout.spans) == len(said)
        assert whole == row.ids[: len(whole)]
        assert [False] * len(rollout.prompt) + rollout.mask == row.trained[: len(whole)]
        assert codec.decode(whole).startswith("<|im_start|>system\nYou shop")


def without(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


END_OUTSIDE = (
    '{{- "<|im_end|>" -}}\n{%- endgeneration -%}\n{{- "\\n" -}}',
    '{%- endgeneration -%}\n{{- "<|im_end|>\\n" -}}',
)
FORGETS = (
    "message.reasoning_content is not none -%}",
    "message.reasoning_content is not none and loop.last -%}",
)
LAST_USER = (
    '{{- "<|im_start|>" + message.role',
    '{{- ("" if loop.last else "~") + "<|im_start|>" + message.role',
)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (END_OUTSIDE, "writes an assistant turn as"),
        (FORGETS, "writes an assistant turn as"),
        (LAST_USER, "once there is more of it"),
        (("call.function.arguments", "(call.function.arguments | tojson)"), "assistant turn as"),
        (("You shop", "Today is {{ strftime_now('%d') }}. You shop"), "tells the time"),
        (
            (
                '{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n"',
                '{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n<think>\\n"',
            ),
            "once there is more of it",
        ),
        (("<|im_start|>assistant\\n", "<|im_start|>seller\\n"), "does not open a turn"),
        (("{%- endfor -%}\n{%- if add", "{%- if add"), "cannot be rendered"),
        (("generation -%}", "if true -%}"), "does not mark"),
    ],
)
def test_a_template_that_cannot_be_kept_to_is_refused_with_the_recipe(
    change: tuple[str, str], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jinja"
    path.write_text(without(TEXT, change), "utf-8")
    model = {"backend": "transformers", "path": "x", "template": str(path)}
    with pytest.raises(ConfigError, match=why) as caught:
        read_recipe({"model": model, "stage": [{"kind": "sft"}]})
    assert caught.value.where == str(path)
    assert caught.value.remedy


def test_a_template_that_is_not_there_is_refused_with_the_recipe(tmp_path: Path) -> None:
    model = {"backend": "transformers", "path": "x", "template": str(tmp_path / "no.jinja")}
    with pytest.raises(ConfigError, match="cannot be read"):
        read_recipe({"model": model, "stage": [{"kind": "sft"}]})


def test_palios_own_templates_pass_and_are_written_without_rendering(weights: Path) -> None:
    from transformers import AutoTokenizer

    for named in ("", "signatures"):
        tokenizer = AutoTokenizer.from_pretrained(weights)
        tokenizer.chat_template = "{{ messages }}"  # a model's own, without marks
        codec = PretrainedCodec(tokenizer, template_text(named))
        wanted = {"": "chat_template_tools.jinja", "signatures": "chat_template_signatures.jinja"}
        assert codec.template == chat_template(wanted[named])
        assert codec._listing is not None
        check_template(codec.template)


def test_a_checkpoint_whose_template_was_replaced_is_not_served_with_another(
    trained: Path,
) -> None:
    template, manifest = trained / "chat_template.jinja", trained / "manifest.json"
    template.write_text("{{ messages[0].content }}", "utf-8")
    with pytest.raises(IntegrityError, match=r"chat_template\.jinja"), open_checkpoint(trained):
        pass
    told = json.loads(manifest.read_bytes())
    told["outputs"][template.name] = file_digest(template)
    manifest.write_text(json.dumps(told))
    with pytest.raises(ConfigError, match="does not mark"), open_checkpoint(trained):
        pass


def test_the_manifest_tells_the_template(trained: Path) -> None:
    manifest = json.loads((trained / "manifest.json").read_bytes())
    assert manifest["inputs"]["template"] == codec_of(trained).template_digest
