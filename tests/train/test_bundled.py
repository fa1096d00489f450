"""The checkpoint that ships: served to the unmodified client, loaded by transformers, raced."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from palio.arena.standings import Standings
from palio.cli.main import app
from palio.evaluate.cluster import PolicySource
from palio.records import InputError, PalioError, Suite, from_json
from palio.rollout import read_trajectories
from palio.sandbox.choice import open_driver
from palio.suites.files import write_suite
from palio.train.checkpoint import BUNDLED, checkpoint_folder, checkpoint_name
from palio.train.serving import open_checkpoint
from palio.world.catalogue import write_catalogue
from palio.world.tools import FOUR_TOOLS, Toolbox, tool_message, tool_schemas
from tests.train.conftest import Shop

TOOLS = [msgspec.to_builtins(tool) for tool in tool_schemas(FOUR_TOOLS)]


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return checkpoint_folder(Path(BUNDLED))
    except InputError:
        pytest.skip("no checkpoint ships with this build")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Any]:
    """The openai client, and `palio serve bundled` behind it in a process of its own."""
    openai = pytest.importorskip("openai", reason="the client that users have")
    code = "from palio.cli.main import run; run()"
    command = [sys.executable, "-c", code, "serve", BUNDLED, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"serving {BUNDLED} at http://")
        with openai.OpenAI(base_url=line.split()[-1], api_key="none") as made:
            yield made
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def joined(chunks: list[Any]) -> dict[str, Any]:
    """What a client puts together from the deltas of a stream."""
    content, calls, finish = "", dict[int, dict[str, str]](), ""
    for choice in (chunk.choices[0] for chunk in chunks if chunk.choices):
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for part in choice.delta.tool_calls or ():
            call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
            call["id"] += part.id or ""
            call["name"] += part.function.name or ""
            call["arguments"] += part.function.arguments or ""
    return {"content": content, "calls": [calls[at] for at in sorted(calls)], "finish": finish}


def test_a_whole_conversation_with_tools(client: Any, shop: Shop) -> None:
    """Every turn asked for whole and streamed; calls are carried out until the model ends."""
    model = client.models.list().data[0].id
    toolbox = Toolbox(shop.world)
    messages: list[Any] = [{"role": "user", "content": shop.problems[0].query}]
    called: list[str] = []
    while len(messages) < 24 and "terminate" not in called:
        asked = {"model": model, "messages": messages, "tools": TOOLS, "temperature": 0}
        choice = client.chat.completions.create(**asked).choices[0]
        streamed = joined(list(client.chat.completions.create(**asked, stream=True)))
        calls = choice.message.tool_calls or []
        assert streamed["finish"] == choice.finish_reason == ("tool_calls" if calls else "stop")
        assert streamed["content"] == (choice.message.content or "")
        told = [
            {"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in calls
        ]
        assert streamed["calls"] == told
        if not calls:
            break
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in calls:
            assert isinstance(json.loads(call.function.arguments), dict)
            called.append(call.function.name)
            reply = tool_message(toolbox.call(call.function.name, call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": reply})
    assert called[0] == "find_product"
    assert "recommend_product" in called
    assert set(called) <= set(FOUR_TOOLS) | {"calculate_voucher", "find_products_in_same_shop"}


def test_everything_calls_it_by_one_name(client: Any, folder: Path, tmp_path: Path) -> None:
    assert [model.id for model in client.models.list()] == [BUNDLED]
    assert PolicySource(checkpoint=Path(BUNDLED)).called == BUNDLED
    run = tmp_path / "run"
    shutil.copytree(folder, run / "sft" / "checkpoint")
    for named, wanted in (
        (run / "sft", "sft"),
        (run / "sft" / "checkpoint", "sft"),
        (folder, "tiny"),
    ):
        assert checkpoint_name(named) == PolicySource(checkpoint=named).called == wanted
        with open_checkpoint(named, slots=1) as served:
            assert served.models == (wanted,)


def test_transformers_reads_the_same_text_and_writes_the_same_tokens(
    folder: Path, shop: Shop
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    with open_checkpoint(folder, slots=4) as engine:
        for problem in shop.problems[:3]:
            messages = [{"role": "user", "content": problem.query}]
            asked = {"messages": messages, "max_tokens": 48, "return_token_ids": True}
            answer = engine.complete(asked)
            prompt = answer["prompt_token_ids"]
            rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
            assert list(rendered["input_ids"]) == prompt
            with torch.no_grad():
                made = model.generate(
                    torch.tensor([prompt]),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                    max_new_tokens=48,
                    do_sample=False,
                )
            assert made[0, len(prompt) :].tolist() == answer["choices"][0]["token_ids"]


ALONE = """
import json, sys

class Nowhere:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "palio":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nowhere())
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, query = sys.argv[1:]
model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
tokenizer = AutoTokenizer.from_pretrained(folder)
messages = [{"role": "user", "content": query}]
asked = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
prompt = tokenizer.apply_chat_template(messages, **asked)
made = model.generate(**prompt, max_new_tokens=200)
with safe_open(folder + "/model.safetensors", framework="pt") as held:
    names = list(held.keys())
print(json.dumps({
    "palio": "palio" in sys.modules,
    "left": [sorted(told[name]) for name in ("missing_keys", "unexpected_keys")],
    "tied": model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr(),
    "head": "lm_head.weight" in names,
    "written": made[0, prompt["input_ids"].shape[1]:].tolist(),
    "end": tokenizer.eos_token_id,
    "longest": [tokenizer.model_max_length, model.config.max_position_embeddings],
}))
"""


@pytest.mark.slow
def test_without_palio_transformers_alone_writes_a_turn_and_ends_it(
    folder: Path, shop: Shop, tmp_path: Path
) -> None:
    """Weights, tied once; tokenizer and template; where to stop: all of it is in the folder."""
    moved, query = tmp_path / "moved", shop.problems[0].query
    shutil.copytree(folder, moved)
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, str(moved), query], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    with open_checkpoint(folder, slots=1) as engine:
        asked = {"messages": [{"role": "user", "content": query}], "return_token_ids": True}
        wanted = engine.complete(asked)["choices"][0]["token_ids"]
    assert told == {
        "palio": False,
        "left": [[], []],
        "tied": True,
        "head": False,
        "written": wanted,
        "end": wanted[-1],
        "longest": [4096, 4096],
    }


def test_it_races_in_a_sandbox_and_is_ranked(folder: Path, shop: Shop, tmp_path: Path) -> None:
    try:
        open_driver("bwrap")
    except PalioError as error:
        pytest.skip(f"needs a working bwrap: {error}")
    run, agent, out = CliRunner().invoke, tmp_path / "trained.py", tmp_path / "race"
    made = run(app, ["agent", "from-checkpoint", BUNDLED, "--out", str(agent)])
    assert made.exit_code == 0, made.output
    write_catalogue(shop.world.catalogue, tmp_path / "cat")
    write_suite(Suite(suite_id="s", version="1", problems=shop.problems[:6]), tmp_path / "s.json")
    raced = run(
        app,
        [
            *("race", "--agents", f"hasty,{agent}", "--suite", str(tmp_path / "s.json")),
            *("--catalogue", str(tmp_path / "cat"), "--out", str(out), "--driver", "bwrap"),
            *("--concurrency", "2", "--json"),
        ],
    )
    assert raced.exit_code == 0, raced.output
    standings = from_json(raced.stdout, Standings)
    rows = {row.agent: row for row in standings.ranked}
    assert rows["trained"].n == 6
    assert rows["trained"].successes >= rows["hasty"].successes
    assert not standings.ineligible
    mine = [each for each in read_trajectories(out) if each.agent.name == "trained"]
    assert {each.isolation for each in mine} == {"bwrap"}
    assert {each.agent.model for each in mine} == {f"trained-{BUNDLED}"}
    assert not [each.fault for each in mine if each.fault]
    assert folder.is_dir()
