"""TRL takes exported rows as conversations and renders them with every call and no null."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from palio.corpus.config import POOLS
from palio.corpus.writers.export import ExportConfig, export
from palio.records import to_json
from tests.corpus.making import PROBLEMS, made_trajectory

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def tokenizer() -> Any:
    """A word-level tokenizer that has palio's chat template: only the rendering is of interest."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    model = tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")
    template = resources.files("palio.train") / "chat_template.jinja"
    plain = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model))
    plain.chat_template = template.read_text(encoding="utf-8")
    return plain


@pytest.mark.parametrize("to", ["hf", "hf-flat"])
def test_trl_renders_every_row(
    tmp_path: Path, to: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data_utils = pytest.importorskip("trl.data_utils")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    source = tmp_path / "runs.jsonl"
    runs = [made_trajectory(f"t{n}", PROBLEMS[n]) for n in range(3)]
    source.write_bytes(b"".join(to_json(run) + b"\n" for run in runs))
    export(source, ExportConfig(to=to), tmp_path / "out")
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert set(loaded) <= set(POOLS)
    for row, run in zip(loaded["train"], runs, strict=True):
        assert data_utils.is_conversational(row)
        # as trl's trainers do with tools that are text
        tools = json.loads(row["tools"])
        text = data_utils.apply_chat_template({"messages": row["messages"]}, tokenizer, tools=tools)
        rendered = text["text"]
        assert "null" not in rendered
        assert "None" not in rendered
        at = 0
        for message in run.messages:
            for call in message.tool_calls:
                at = rendered.index(call.function.name, at)
                at = rendered.index(json.loads(call.function.arguments).popitem()[1], at)
