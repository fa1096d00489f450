"""Exports in the real verl: its loaders take the rows, its registry the tools."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palio.train.environments.exporting import export_shop
from palio.train.environments.shop import ShopSettings
from palio.train.environments.verl_reward import CALLS
from palio.train.text import chat_template
from palio.world.tools import tool_schemas
from tests.environments.conftest import Made, calls
from tests.train.test_qwen_template import real_qwen3

registry = pytest.importorskip("verl.tools.tool_registry", reason="exports for verl need verl 0.9")
pytestmark = [
    pytest.mark.slow,  # importing it takes 10 s
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def folder(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verl")
    catalogues = tuple(str(made.folder / name) for name in made.worlds)
    settings = ShopSettings(catalogues=catalogues)
    export_shop("verl", made.folder / "corpus", made.folder / "suite.json", settings, out)
    return out


def test_the_registry_makes_tools_with_palio_s_schemas(folder: Path) -> None:
    tools = registry.initialize_tools_from_config(str(folder / "tools.yaml"))
    shown = [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in tools]
    assert shown == list(tool_schemas())


def test_an_agent_s_calls_reach_the_shop_and_the_reward(folder: Path, made: Made) -> None:
    """The part of verl's tool agent that carries calls out, then its way of loading a reward."""
    agent = pytest.importorskip("verl.experimental.agent_loop.tool_agent_loop")
    from verl.utils.import_utils import load_extern_object

    tools = registry.initialize_tools_from_config(str(folder / "tools.yaml"))
    loop = object.__new__(agent.ToolAgentLoop)
    loop.tools = {tool.name: tool for tool in tools}
    loop.max_tool_response_length = 1_000_000
    compute = load_extern_object(str(folder / "reward.py"), "compute_score")
    rows = {
        row["extra_info"]["problem_id"]: row
        for row in map(json.loads, (folder / "rl" / "train.jsonl").read_text().splitlines())
    }
    scores = []
    for problem, run in [each for each in made.runs if each[0].problem_id in rows][:12]:
        row = rows[problem.problem_id]
        data = SimpleNamespace(extra_fields={"other": 1})
        results = [m.content for m in run.messages if m.role == "tool"]
        for call, result in zip(calls(run), results, strict=True):
            asked = SimpleNamespace(name=call.tool, arguments=call.arguments, tool_call_id=None)
            kwargs = row["extra_info"]["tools_kwargs"]
            response, reward, _ = asyncio.run(loop._call_tool(asked, kwargs, data))
            assert (response.text, reward) == (result, 0.0)
        found = compute(
            data_source=row["data_source"],
            solution_str="<tool_call>",
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info={**row["extra_info"], **data.extra_fields},
        )
        assert len(data.extra_fields[CALLS]) == len(calls(run))
        scores.append(found["score"])
    assert {*scores} == {0.0, 1.0}


def test_its_sft_data_set_shows_the_template_what_palio_s_does(folder: Path) -> None:
    from verl.utils.import_utils import load_extern_object

    kind: Any = load_extern_object(str(folder / "sft_dataset.py"), "ShopSFTDataset")
    held = object.__new__(kind)
    held.parquet_files = [str(folder / "sft" / "train.parquet")]
    held.max_samples, held.shuffle, held.seed = -1, False, None
    held.messages_key, held.tools_key, held.enable_thinking_key = "messages", "tools", "thinking"
    held.image_key, held.video_key, held.processor = "images", "videos", None
    held.apply_chat_template_kwargs = {}
    held.tokenizer = None
    base = kind.__mro__[1]
    with pytest.MonkeyPatch.context() as patch:
        module = __import__(base.__module__, fromlist=["x"])
        patch.setattr(module, "extract_system_prompt_and_generation", lambda *_, **__: ([], []))
        held._read_files_and_process()
    rows = [json.loads(x) for x in (folder / "sft" / "train.jsonl").read_text().splitlines()]
    assert held.tools == [json.loads(row["tools"]) for row in rows]
    plain = [
        [{k: v for k, v in m.items() if k == "content" or v} for m in row["messages"]]
        for row in rows
    ]
    assert held.messages == plain
    assert held._build_messages(held.dataframe.iloc[0].to_dict()) == plain[0]


def option(folder: Path, name: str) -> int:
    """The value of an option that the export's README gives."""
    found = re.search(rf"{re.escape(name)}=(\d+)", (folder / "README.md").read_text())
    assert found, name
    return int(found[1])


def encoded(tokenizer: Any, messages: Any, tools: Any) -> tuple[list[int], list[bool]]:
    """Ids of a whole conversation, and which of them its template marks as the assistant's."""
    made = tokenizer.apply_chat_template(
        messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True
    )
    return made["input_ids"], [bool(each) for each in made["assistant_masks"]]


@pytest.mark.parametrize("template", ["", "chat_template_tools.jinja"])
def test_every_row_of_the_sft_data_is_one_that_verl_trains_on(folder: Path, template: str) -> None:
    """With verl's own check on: the messages one by one are the conversation as a whole."""
    from verl.utils.import_utils import load_extern_object

    tokenizer = real_qwen3().tokenizer  # with Qwen3's own template
    if template:
        tokenizer.chat_template = chat_template(template)
    kind: Any = load_extern_object(str(folder / "sft_dataset.py"), "ShopSFTDataset")
    asked = {"pad_mode": "no_padding", "max_length": option(folder, "data.max_length")}
    data = kind([str(folder / "sft" / "train.parquet")], tokenizer, asked)
    several = thinking = 0
    for place in range(len(data)):
        item = data[place]
        messages = data._build_messages(data.dataframe.iloc[place].to_dict())
        roles = [message["role"] for message in messages]
        prompt = tokenizer.apply_chat_template(
            messages[:1], tools=data.tools[place], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        assert 512 < len(prompt) <= option(folder, "data.max_prompt_length"), "512 is verl's"
        assert len(item["input_ids"]) - len(prompt) <= option(folder, "data.max_response_length")
        several += ("tool", "tool") in pairwise(roles)
        thinking += "<think>\nsearch" in tokenizer.decode(item["input_ids"])
        ids, written = encoded(tokenizer, messages, data.tools[place])
        assert item["input_ids"].tolist() == ids
        mask = [bool(each) for each in item["loss_mask"]]
        assert all(trained for trained, told in zip(mask, written, strict=True) if told)
        # verl trains on the line end after a turn as well
        assert sum(mask) - sum(written) == roles.count("assistant")
    assert several > 0, "results of several calls stand in a row"
    assert thinking == len(data) > 0, "and the thinking of every turn is there"


def test_its_rl_data_set_gives_prompt_and_tool_arguments(folder: Path) -> None:
    data = pytest.importorskip("verl.utils.dataset.rl_dataset")
    datasets = pytest.importorskip("datasets")
    frame = datasets.load_dataset(
        "parquet", data_files=str(folder / "rl" / "train.parquet"), cache_dir=str(folder / "cache")
    )["train"]
    held = object.__new__(data.RLHFDataset)
    held.dataframe, held.prompt_key = frame, "prompt"
    held.image_key, held.video_key, held.audio_key = "images", "videos", "audios"
    held.need_tools_kwargs, held.processor = False, None
    row = held[0]
    assert row["raw_prompt"][-1]["role"] == "user"
    assert row["tools_kwargs"]["find_product"]["create_kwargs"]["catalogue"].startswith("compact")
    assert row["agent_name"] == "tool_agent"
