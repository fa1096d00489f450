"""Every sampler says with what probability it chose, and none of them drops out."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from palio.records import ConfigError, FaultCode, UpstreamError
from palio.train.engine import Engine
from palio.train.rl import completions, grpo
from palio.train.rl.completions import NO_KEY, SAMPLER_KEY, CompletionsSampler
from palio.train.rl.policy import OwnPolicy, ServedPolicy, TransformersPolicy, merged_weights
from palio.train.rl.sampler import (
    Decoding,
    EngineSampler,
    Hear,
    QueuedSampler,
    Sampled,
    Sampler,
    TransformersSampler,
)
from palio.train.rl.settings import GrpoSettings
from palio.train.text import chat_text
from tests.train_rl.conftest import Scene

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft over transformers 5.24


def prompts(scene: Scene, count: int) -> list[list[int]]:
    return [scene.tokenizer.encode(chat_text(t.messages[:1], reply=True)) for t in scene.talks][
        :count
    ]


def hot(seed: int, tokens: int = 12, temperature: float = 1.3) -> Decoding:
    return Decoding(tokens, temperature, 1.0, seed)


def logprobs_of(
    model: Any, prompt: list[int], written: list[int], temperature: float
) -> list[float]:
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + written])).logits[0].double() / temperature
    scores = torch.log_softmax(logits, -1)
    return [float(scores[len(prompt) - 1 + at, token]) for at, token in enumerate(written)]


def all_of(sampler: Sampler, asked: list[list[int]], tokens: int = 12) -> list[Any]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda p: sampler.sample(p[1], hot(p[0], tokens)), enumerate(asked)))


def test_the_engine_knows_its_log_probabilities(scene: Scene, policy: OwnPolicy) -> None:
    with policy.sampler(None) as sampler:
        for prompt, found in zip(
            prompts(scene, 6), all_of(sampler, prompts(scene, 6)), strict=True
        ):
            wanted = logprobs_of(policy.model, prompt, found.ids, 1.3)
            assert found.logprobs == pytest.approx(wanted, abs=2e-5)


def test_transformers_sampler_agrees_with_the_engine(scene: Scene, policy: OwnPolicy) -> None:
    asked = prompts(scene, 6)
    with (
        policy.sampler(None) as engine,
        TransformersSampler(policy.model, end=scene.tokenizer.end) as own,
    ):
        mine, theirs = all_of(own, asked), all_of(engine, asked)
        greedy = Decoding(16, 0.0, 1.0, 0)
        assert own.sample(asked[0], greedy).ids == engine.sample(asked[0], greedy).ids
    assert [found.ids for found in mine] == [found.ids for found in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-5)


def test_several_engines_sample_what_one_samples(
    scene: Scene, policy: OwnPolicy, checkpoint: Path
) -> None:
    asked = prompts(scene, 8)
    with (
        policy.sampler(None) as one,
        OwnPolicy(checkpoint, slots=5, threads=2).sampler(None) as two,
    ):
        alone, shared = all_of(one, asked), all_of(two, asked)
    assert [found.ids for found in alone] == [found.ids for found in shared]
    for mine, theirs in zip(alone, shared, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-6)


@pytest.fixture
def dropping(policy: OwnPolicy) -> OwnPolicy:
    """The policy with an adapter that is far from zero and drops half of its input."""
    torch.manual_seed(3)
    config = LoraConfig(r=4, lora_alpha=16, lora_dropout=0.5, target_modules=["q_proj", "up_proj"])
    policy.model = get_peft_model(policy.model, config)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    policy.model.train()
    return policy


def test_no_dropout_while_sampling(scene: Scene, dropping: OwnPolicy) -> None:
    asked = prompts(scene, 4)
    ids = torch.tensor([asked[0]])
    with torch.no_grad():
        assert not torch.equal(dropping.model(ids).logits, dropping.model(ids).logits)
    with TransformersSampler(dropping.model, end=scene.tokenizer.end) as own:
        first, again = all_of(own, asked), all_of(own, asked)
    assert [found.ids for found in first] == [found.ids for found in again]
    assert dropping.model.training, "training mode is back"
    with dropping.sampler(None) as engine:
        merged = all_of(engine, asked)
    for prompt, found, other in zip(asked, first, merged, strict=True):
        wanted = logprobs_of(dropping.model, prompt, found.ids, 1.3)
        assert found.logprobs == pytest.approx(wanted, abs=2e-5)
        wanted = logprobs_of(dropping.model, prompt, other.ids, 1.3)
        assert other.logprobs == pytest.approx(wanted, abs=1e-4)


def test_merging_leaves_the_model_alone(dropping: OwnPolicy) -> None:
    before = {name: value.clone() for name, value in dropping.model.state_dict().items()}
    merged = merged_weights(dropping.model)
    after = dropping.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    whole = dropping.model.merge_and_unload().state_dict()
    assert merged.keys() == whole.keys()
    assert all(torch.allclose(merged[name], whole[name], atol=1e-6) for name in whole)


def test_a_copy_stays_where_it_was(policy: OwnPolicy) -> None:
    copied = policy.copy()
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(1.0)
    assert not any(weight.requires_grad for weight in copied.parameters())
    now = policy.model.state_dict()
    assert all(
        torch.allclose(value + 1.0, now[name]) for name, value in copied.state_dict().items()
    )


def test_a_closed_sampler_says_so(scene: Scene, policy: OwnPolicy) -> None:
    with TransformersSampler(policy.model, end=scene.tokenizer.end) as own:
        pass
    with pytest.raises(UpstreamError, match="closed"):
        own.sample([1, 2], hot(0))


def test_a_model_that_fails_is_reported_to_every_caller(scene: Scene) -> None:
    class Failing(torch.nn.Linear):
        def forward(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("out of memory")

    with TransformersSampler(Failing(1, 1), end=scene.tokenizer.end) as own:
        for _ in range(2):
            with pytest.raises(UpstreamError, match="out of memory"):
                own.sample([1, 2], hot(0))


# ---- a server that takes token ids


@contextmanager
def serving(
    answer: Any, status: int = 200, *, missing: int = 0, passing: Sequence[int] = ()
) -> Iterator[str]:
    """A server that gives `answer` with `status`, the first times with those of `passing`."""
    first = list(passing)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/completions"
            data = json.dumps(answer(body)).encode()
            self.send_response(first.pop(0) if first else status)
            self.send_header("Content-Length", str(len(data) + missing))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_served_model_gets_tokens_and_gives_tokens(
    scene: Scene, checkpoint: Path, policy: OwnPolicy
) -> None:
    asked = prompts(scene, 5)
    with Engine(checkpoint, slots=8) as engine:

        def answer(body: dict[str, Any]) -> dict[str, Any]:
            assert body["return_token_ids"] is True
            whole = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
            assert {name: body[name] for name in whole} == whole, "not generation_config.json's"
            wish = {name: body[name] for name in Decoding._fields}
            found = EngineSampler(engine).sample(body["prompt"], Decoding(**wish))
            choice = {
                "token_ids": found.ids,
                "logprobs": {"token_logprobs": found.logprobs},
            }
            return {"choices": [choice]}

        with serving(answer) as url:
            served = ServedPolicy(policy, url, "student")
            with served.sampler(None) as remote:
                theirs = all_of(remote, asked)
        own = all_of(EngineSampler(engine), asked)
    assert [found.ids for found in theirs] == [found.ids for found in own]
    for one, other in zip(theirs, own, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_a_server_without_token_ids_is_refused() -> None:
    with (
        serving(lambda body: {"choices": [{"text": "hello"}]}) as url,
        pytest.raises(UpstreamError, match="without token ids"),
    ):
        CompletionsSampler(url, "m").sample([1], hot(0))
    with pytest.raises(UpstreamError, match="v1/completions"):
        CompletionsSampler(url, "m", timeout_s=2).sample([1], hot(0))
    with (
        serving(lambda body: {"choices": [{"text": "hello"}]}, missing=9) as url,
        pytest.raises(UpstreamError, match=r"v1/completions: IncompleteRead"),
    ):
        CompletionsSampler(url, "m").sample([1], hot(0))


@contextmanager
def refusing(status: int, message: str) -> Iterator[str]:
    """As vLLM refuses: a status, and in the body what is wrong."""
    with serving(lambda _: {"error": {"message": message, "code": status}}, status) as url:
        yield url


@pytest.mark.parametrize(
    ("status", "says", "code", "remedy"),
    [
        (400, "maximum context length is 4096", FaultCode.upstream_server_error, "--max-model-len"),
        (400, "temperature must be in [0, 2]", FaultCode.upstream_server_error, "server takes"),
        (404, "The model `m` does not exist.", FaultCode.upstream_model_unknown, "name the model"),
        (401, "Unauthorized", FaultCode.upstream_key_refused, "key"),
        (500, "EngineCore encountered an issue", FaultCode.upstream_server_error, "start it again"),
        (501, "Unsupported method", FaultCode.upstream_server_error, "at this address"),
        (308, "Moved", FaultCode.upstream_server_error, "at this address"),
    ],
)
def test_what_a_server_refuses_is_told_in_its_words(
    status: int, says: str, code: FaultCode, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a refusal of the request itself says that the server completes no token ids."""
    monkeypatch.setattr(completions, "_WAITS", (0.0,))
    with refusing(status, says) as url:
        sampler = CompletionsSampler(url, "m")
        with pytest.raises(UpstreamError, match=f"answers {status} for the model 'm'.*") as found:
            sampler.sample([1], hot(0))
        if status in (400, 404, 501):
            assert not sampler.answers([1])
        else:
            with pytest.raises(UpstreamError, match=f"answers {status}.*{says}"):
                sampler.answers([1])
    assert says in found.value.what
    assert (found.value.code, remedy in found.value.remedy) == (code, True)


def test_a_server_that_completes_token_ids_is_known_by_one_token() -> None:
    one = {"token_ids": [3], "logprobs": {"token_logprobs": [-0.5]}}
    asked: list[Any] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        return {"choices": [one]}

    with serving(answer) as url:
        assert CompletionsSampler(url, "m").answers([7])
    assert [(body["prompt"], body["max_tokens"]) for body in asked] == [([7], 1)]
    with serving(lambda _: {"choices": [{"text": "x"}]}) as url:
        assert not CompletionsSampler(url, "m").answers([7])


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_fails_for_a_moment_is_looked_at_again(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "_WAITS", (0.0, 0.0))
    one = {"choices": [{"token_ids": [3], "logprobs": {"token_logprobs": [-0.5]}}]}
    asked: list[Any] = []
    with serving(lambda body: asked.append(body) or one, passing=[status, status]) as url:
        assert CompletionsSampler(url, "m").answers([7])
    assert len(asked) == 3
    with refusing(status, "busy") as url, pytest.raises(UpstreamError, match="busy") as found:
        CompletionsSampler(url, "m").answers([7])
    assert found.value.retryable
    with pytest.raises(UpstreamError, match="v1/completions"):
        CompletionsSampler(url, "m").answers([7])  # nobody is there any more


def test_a_key_s_remedy_is_that_of_who_asks(policy: OwnPolicy) -> None:
    """Dr. GRPO has no key to give: the client that TRL pushes weights with sends none."""
    with refusing(401, "Unauthorized") as url:
        for on_key in (SAMPLER_KEY, NO_KEY):
            served = ServedPolicy(policy, url, "m", on_key=on_key)
            with served.sampler(None) as one, pytest.raises(UpstreamError) as found:
                one.sample([1], hot(0))
            assert found.value.remedy == on_key
    mine = grpo._sampled_by(policy, GrpoSettings(base_url=url))
    with mine.sampler(None) as one:
        assert isinstance(one, CompletionsSampler)
        assert one._on_key == NO_KEY
    with pytest.raises(ConfigError, match="a user, a password") as refused:
        grpo.needed(GrpoSettings(base_url="http://u:p@h:8000"))
    assert NO_KEY in refused.value.remedy
    assert "PALIO" not in refused.value.remedy


def test_any_model_of_transformers_can_be_a_policy(scene: Scene, policy: OwnPolicy) -> None:
    plain = TransformersPolicy(policy.model, policy.tokenizer, scene.codec, policy.save)
    with plain.sampler(None) as sampler, policy.sampler(None) as engine:
        prompt = prompts(scene, 1)[0]
        assert sampler.sample(prompt, hot(4)).ids == engine.sample(prompt, hot(4)).ids
    copied = plain.copy().state_dict()
    assert all(torch.equal(v, copied[n]) for n, v in policy.model.state_dict().items())


def test_the_documented_server_is_the_one_that_trl_starts() -> None:
    """What TRL's own launcher imposes on `vllm serve` stands in docs/rl.md, and dev mode does."""
    from trl.generation import vllm_client
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    told = (Path(__file__).parents[2] / "docs" / "rl.md").read_text("utf-8")
    command = build_command(ScriptArguments(model="m"))
    imposed = command[command.index("--weight-transfer-config") :]
    for flag, value in zip(imposed[::2], imposed[1::2], strict=True):
        assert f"{flag} '{value}'" in told or f"{flag} {value}" in told
    assert "VLLM_SERVER_DEV_MODE=1 vllm serve" in told
    client = Path(vllm_client.__file__).read_text("utf-8")
    assert "VLLM_SERVER_DEV_MODE=1" in client
    assert "--weight-transfer-config" in client


class Ending(QueuedSampler):
    """Its thread is there when it is asked, and ends without having seen the question."""

    def __init__(self) -> None:
        super().__init__("ending")
        self.asked = threading.Event()
        self._worker.start()

    def sample(self, ids: Sequence[int], decoding: Decoding, hear: Hear | None = None) -> Sampled:
        threading.Timer(0.1, self.asked.set).start()
        return super().sample(ids, decoding, hear)

    def _work(self) -> None:
        self.asked.wait(20)


def test_a_question_that_meets_the_end_of_its_sampler_is_not_left_waiting() -> None:
    with pytest.raises(UpstreamError, match="closed"):
        Ending().sample([1, 2], Decoding(1, 0.0, 1.0, 0))
