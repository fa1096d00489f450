"""The template for vLLM writes of a parsed turn what the model had written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio.cli.main import app
from palio.records import ConfigError, InputError, Message
from palio.train.backends.codec import tool_segments
from palio.train.checkpoint import checkpoint_folder
from palio.train.text import assistant_text, chat_template, chat_text
from palio.train.vllm import TEMPLATE, vllm_template

TOOL = {"type": "function", "function": {"name": "find_product", "description": "d"}}


def parsed(message: Message) -> dict[str, Any]:
    """A message as vLLM's parser `hermes` gives it, and as vLLM gives it to the template."""
    if message.role != "assistant":
        return {"role": message.role, "content": message.content}
    text = assistant_text(message)
    if not message.tool_calls:
        return {"role": "assistant", "content": text}
    calls = [
        {"function": {"name": c.function.name, "arguments": json.loads(c.function.arguments)}}
        for c in message.tool_calls
    ]
    head = text[: text.index("<tool_call>")]
    return {"role": "assistant", "content": head, "tool_calls": calls}


def rendered(template: str, talk: Sequence[Message], tools: list[Any] | None = None) -> str:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint_folder(Path("bundled")))
    told: str = tokenizer.apply_chat_template(
        [parsed(each) for each in talk], tools=tools, chat_template=template, tokenize=False
    )
    return told


def test_a_parsed_turn_is_read_as_it_was_written(talks: list[Sequence[Message]]) -> None:
    template = vllm_template(checkpoint_folder(Path("bundled")))
    for talk in talks[:12]:
        assert rendered(template, talk) == chat_text(talk)
    assert rendered(chat_template(), talks[0]) != chat_text(talks[0]), "the reason why"


def test_a_pretrained_model_s_template_too(talks: list[Sequence[Message]], tmp_path: Path) -> None:
    (tmp_path / TEMPLATE).write_text(chat_template("chat_template_tools.jinja"), "utf-8")
    template = vllm_template(tmp_path)
    for talk in talks[:3]:
        whole = "".join(part.text for part in tool_segments(talk, [TOOL]))
        assert rendered(template, talk, [TOOL]) == whole


def test_another_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        vllm_template(tmp_path)
    (tmp_path / TEMPLATE).write_text("{{ messages }}", "utf-8")
    with pytest.raises(ConfigError, match="none of palio's"):
        vllm_template(tmp_path)


def test_the_command_writes_it_or_prints_it(tmp_path: Path) -> None:
    wanted = vllm_template(checkpoint_folder(Path("bundled")))
    runner = CliRunner()
    assert runner.invoke(app, ["train", "template", "bundled"]).stdout == wanted
    out = tmp_path / "t.jinja"
    told = runner.invoke(app, ["train", "template", "bundled", "--out", str(out)])
    assert told.exit_code == 0
    assert out.read_text("utf-8") == wanted
