"""What palio says of vLLM is true of a real server, started here as its user starts it.

`PALIO_VLLM` names the command, else `vllm` on PATH; without either these tests are skipped. They
need vLLM in an environment of its own: palio speaks to it over HTTP alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from palio.broker.limits import Limits
from palio.broker.pin import endpoint_pin
from palio.evaluate.cluster import PolicySource
from palio.evaluate.policy import EvalSettings, evaluate_policy
from palio.evaluate.rollouts import RolloutRow
from palio.evaluate.rollouts import read_rollouts as read_rows
from palio.judging.encoders import default_encoder
from palio.records import FaultCode, Message, UpstreamError
from palio.train.checkpoint import Checkpoint, checkpoint_folder, load_checkpoint
from palio.train.engine import Engine
from palio.train.ground import Ground
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.rl.completions import CompletionsSampler
from palio.train.rl.sampler import Decoding, EngineSampler
from palio.train.rollouts import read_rollouts
from palio.train.run import train
from palio.train.text import chat_text
from palio.train.vllm import vllm_template
from tests.train.conftest import Shop
from tests.train.test_stages import (
    BARE,
    SHORT,
    corpus,  # noqa: F401 - a fixture
)

COMMAND = shlex.split(os.environ.get("PALIO_VLLM", "")) or shlex.split(shutil.which("vllm") or "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of TRL over transformers 5.24
    pytest.mark.timeout(7_200),  # the first test waits for the server
    pytest.mark.skipif(not COMMAND, reason="no vLLM: PALIO_VLLM names no command, none on PATH"),
]
FOLDER = checkpoint_folder(Path("bundled"))
DOCS = Path(__file__).parents[2] / "docs"
UP_S = 3_600.0
"""A server on a busy core takes many minutes to import, to load, and to answer first."""
CALM = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3000",
    "VLLM_ENGINE_READY_TIMEOUT_S": "3000",
    "TORCHDYNAMO_DISABLE": "1",  # compiling a few kernels takes a busy core longer than the tests
}
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
SMALL = ("--enforce-eager", "--max-num-seqs", "16", "--logprobs-mode", "processed_logprobs")


class Server(NamedTuple):
    """A vLLM that answers.

    Attributes:
        url: base address, with the version.
        name: of the model there.
    """

    url: str
    name: str

    def sampler(self) -> CompletionsSampler:
        return CompletionsSampler(self.url, self.name, timeout_s=UP_S)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=60) as reply:
            return json.load(reply)


def told_flags() -> list[str]:
    """What the model card adds to `vllm serve THIS_FOLDER`: the flags that it says are needed."""
    card = resources.files("palio.train").joinpath("card.md.jinja").read_text("utf-8")
    found = re.search(r"vllm serve THIS_FOLDER(.*)", card)
    assert found
    own = re.split(r"\{%-? (?:if own|else|endif) -?%\}", found[1])[1]
    return shlex.split(own.partition("#")[0])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`vllm serve THIS_FOLDER` as the card has it, with tools; else only what makes it small."""
    port, log = free_port(), tmp_path_factory.mktemp("vllm") / "log"
    template = log.with_name("template.jinja")
    template.write_text(vllm_template(FOLDER), "utf-8")
    place = ["--host", "127.0.0.1", "--port", str(port), "--chat-template", str(template)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "serve", str(FOLDER), *told_flags(), *TOOLS, *SMALL, *place],
            env={**os.environ, **CALM},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Server(answering(process, f"http://127.0.0.1:{port}/v1", log), str(FOLDER))
        finally:
            stop(process)


def answering(process: subprocess.Popen[bytes], url: str, log: Path) -> str:
    ends = time.monotonic() + UP_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/models", timeout=30):
                return url
        except OSError:
            time.sleep(2)
    raise AssertionError(f"vLLM does not answer: {log.read_text('utf-8', 'replace')[-3000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """With its workers, which are in its session."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def own() -> Iterator[tuple[Checkpoint, Engine]]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with Engine(FOLDER, slots=8) as engine:
        yield load_checkpoint(FOLDER), engine
    torch.set_num_threads(before)


def prompts(own: tuple[Checkpoint, Engine], shop: Shop, count: int) -> list[list[int]]:
    asked = [Message(role="user", content=problem.query) for problem in shop.problems[:count]]
    return [own[0].tokenizer.encode(chat_text([message], reply=True)) for message in asked]


def sampled(sampler: Any, asked: list[list[int]], decoding: Decoding) -> list[Any]:
    with ThreadPoolExecutor(8) as pool:
        seeded = [(ids, decoding._replace(seed=at)) for at, ids in enumerate(asked)]
        return list(pool.map(lambda pair: sampler.sample(*pair), seeded))


def logprobs_of(model: Any, prompt: list[int], written: list[int], heat: float) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + written]))
    scores = torch.log_softmax(logits[0].double() / heat, -1)
    return [float(scores[len(prompt) - 1 + at, token]) for at, token in enumerate(written)]


# ---- a: the folder loads; what GET /models says of it


def test_the_folder_is_served_under_its_name_and_pinned(server: Server) -> None:
    [entry] = server.get("models")["data"]
    assert (entry["id"], entry["max_model_len"]) == (str(FOLDER), 4096)
    pin = endpoint_pin(server.url, "", server.name)
    time.sleep(1.1)  # its times are in seconds
    assert endpoint_pin(server.url, "", server.name) == pin
    assert (pin.base_url, pin.name, pin.weights) == (server.url, server.name, "")
    assert pin.says["root"] == str(FOLDER)
    assert not {"created", "permission"} & pin.says.keys()


# ---- b: tokens in, tokens out


def test_greedy_tokens_are_those_of_our_engine(
    server: Server, own: tuple[Checkpoint, Engine], shop: Shop
) -> None:
    asked, greedy = prompts(own, shop, 6), Decoding(40, 0.0, 1.0, 0)
    theirs = sampled(server.sampler(), asked, greedy)
    ours = sampled(EngineSampler(own[1]), asked, greedy)
    assert [found.ids for found in theirs] == [found.ids for found in ours]
    assert all(found.ids[-1] == own[0].tokenizer.end for found in theirs), "the end is told, too"
    for one, other in zip(theirs, ours, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


@pytest.mark.parametrize("heat", [1.0, 2.0])
def test_log_probabilities_are_the_model_s_after_the_temperature(
    server: Server, own: tuple[Checkpoint, Engine], shop: Shop, heat: float
) -> None:
    asked = prompts(own, shop, 4)
    found = sampled(server.sampler(), asked, Decoding(24, heat, 1.0, 0))
    gaps = [
        abs(mine - theirs)
        for prompt, one in zip(asked, found, strict=True)
        for mine, theirs in zip(
            logprobs_of(own[0].model, prompt, one.ids, heat), one.logprobs, strict=True
        )
    ]
    assert len(gaps) > 40
    assert max(gaps) < 1e-3
    cut = sampled(server.sampler(), asked, Decoding(3, heat, 1.0, 0))
    assert [one.ids for one in cut] == [one.ids[:3] for one in found], "a seed is a seed"


def test_what_the_server_refuses_is_told(
    server: Server, own: tuple[Checkpoint, Engine], shop: Shop
) -> None:
    [prompt] = prompts(own, shop, 1)
    with pytest.raises(UpstreamError, match="answers 400 .*4096") as long:
        server.sampler().sample([*prompt] * 200, Decoding(4, 0.0, 1.0, 0))
    assert "--max-model-len" in long.value.remedy
    with pytest.raises(UpstreamError, match="answers 404 for the model 'nobody'") as unknown:
        CompletionsSampler(server.url, "nobody").sample(prompt, Decoding(4, 0.0, 1.0, 0))
    assert unknown.value.code == FaultCode.upstream_model_unknown
    assert server.sampler().answers([own[0].tokenizer.end])


# ---- c: an evaluation by chat completions, with tools


def test_an_evaluation_by_its_chat_completions_makes_the_calls_of_ours(
    server: Server, shop: Shop, tmp_path: Path
) -> None:
    world = {shop.problems[0].catalogue: shop.world}
    settings = EvalSettings(threads=8, limits=Limits(seconds=UP_S), max_tokens=200)
    calls: dict[str, list[Any]] = {}
    for name, source in (
        ("vllm", PolicySource(model=server.name, base_url=server.url)),
        ("ours", PolicySource(checkpoint=FOLDER)),
    ):
        out = tmp_path / name
        with source.open() as policy:
            evaluate_policy(
                policy, shop.problems[:8], world, default_encoder(), out=out, settings=settings
            )
        calls[name] = [
            called(row) for row in sorted(read_rows(out), key=lambda row: row.score.problem_id)
        ]
    same = sum(one == other for one, other in zip(*calls.values(), strict=True))
    assert len(calls["vllm"]) == 8
    assert same >= 7, "whole text is cut into tokens where turns by themselves are not: seldom"


def called(row: RolloutRow) -> list[tuple[str, Any]]:
    assert row.score.status == "scored"
    return [
        (call.function.name, json.loads(call.function.arguments))
        for message in row.trajectory.messages
        for call in message.tool_calls
    ]


# ---- d: the stages that ask it


def asking(server: Server, kind: str, **more: Any) -> Recipe:
    told = {"base_url": server.url, "model": server.name, "max_tokens": 120, "threads": 8}
    told |= {"samples": 3, "temperature": 1.5, "top_p": 1.0, "seconds": UP_S}
    stage = {"kind": kind, "sampling": told, **more}
    return read_recipe({"name": "t", "model": {"start": "bundled"}, "stage": [stage]})


def test_rejection_trains_on_the_very_tokens_that_it_sampled(
    server: Server,
    corpus: Path,  # noqa: F811
    shop: Shop,
    tmp_path: Path,
) -> None:
    recipe = asking(server, "rejection", mix=0.0, **SHORT)
    made = train(recipe, corpus, tmp_path, ground=some_of(shop), options=BARE)
    rollouts = read_rollouts(tmp_path / "rejection")
    assert all(each.scored and each.encoded() for each in rollouts)
    assert any(len(each.turns) > 1 for each in rollouts)
    counts = made.named("rejection").counts
    assert counts["kept"] > 0
    assert "rejected:no prefix" not in counts


def test_kto_labels_what_it_samples_and_trains(
    server: Server,
    corpus: Path,  # noqa: F811
    shop: Shop,
    tmp_path: Path,
) -> None:
    trl = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "max_steps": 1}
    made = train(
        asking(server, "kto", trl=trl), corpus, tmp_path, ground=some_of(shop), options=BARE
    )
    counts = made.named("kto").counts
    assert (counts["rollouts"], counts["unscored"], counts["steps"]) == (18, 0, 1)
    assert min(counts["right"], counts["wrong"]) > 0


def some_of(shop: Shop) -> Ground:
    some = shop.problems[:6]
    return Ground(some, {some[0].catalogue: shop.world}, default_encoder())
