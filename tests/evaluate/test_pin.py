"""Rollouts of two models never share a folder, whatever lies under the name of the first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.broker.pin import ModelPin, endpoint_pin
from palio.cli.main import app
from palio.corpus.rows import row_of
from palio.evaluate.cluster import PolicySource
from palio.evaluate.pin import checkpoint_pin
from palio.evaluate.rollouts import read_identity
from palio.records import (
    InputError,
    IntegrityError,
    PalioError,
    ResumeError,
    Suite,
    UpstreamError,
    to_json,
)
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.suites.files import write_suite
from palio.train.card import Measured, _checked
from palio.train.checkpoint import save_checkpoint
from palio.train.model import ModelConfig, Qwen3
from palio.train.serving import open_checkpoint
from palio.train.tokenizer import train_tokenizer
from palio.world.artefacts import file_digest
from palio.world.catalogue import write_catalogue
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World

KEY = "sk-0123456789abcdef"


class Shop:
    """A small world in files, a teacher's conversations in it, and models that shop badly."""

    def __init__(self, folder: Path) -> None:
        made = synthesise(compact_config(5, products=150, problems=6))
        world = World.build(made.catalogue, COMPACT)
        write_catalogue(made.catalogue, folder / "catalogue")
        write_suite(Suite(suite_id="s", version="1", problems=made.problems), folder / "suite.json")
        agent, driver, upstream = find_agent("careful"), InlineDriver(), ScriptedUpstream()
        talks = [
            run_problem(agent, each, world, driver=driver, upstream=upstream)
            for each in made.problems
        ]
        rows = b"".join(to_json(row_of(each, "c")) + b"\n" for each in talks)
        (folder / "heldout.jsonl").write_bytes(rows)
        self.folder = folder
        self.tokenizer = train_tokenizer([each.messages for each in talks], size=600)
        self.given = ("--suite", folder / "suite.json", "--catalogue", folder / "catalogue")

    def checkpoint(self, folder: Path, seed: int) -> str:
        """Train a checkpoint, as it were: other weights for each seed; their digest."""
        size = {"hidden_size": 32, "intermediate_size": 48, "layers": 1, "head_dim": 16}
        model = Qwen3(ModelConfig(vocab_size=self.tokenizer.size, **size))
        model.initialise(seed)
        save_checkpoint(folder, model, self.tokenizer, config={}, inputs={}, counts={}, seed=seed)
        return file_digest(folder / "model.safetensors")

    def run(self, out: Path, *more: object) -> str:
        """`palio eval run`, short turns."""
        return call("run", *self.given, "--out", out, "--max-tokens", 12, *more)

    def steps(self, out: Path, *more: object) -> str:
        """`palio eval steps`, short turns."""
        words = ("--corpus", self.folder, "--max-tokens", 4, *more)
        return call("steps", *self.given, "--out", out, *words)


def call(*words: object) -> str:
    result = CliRunner().invoke(app, ["eval", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(kind: type[PalioError], *words: object) -> str:
    with pytest.raises(kind) as error:
        call(*words)
    return str(error.value)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


class Models:
    """A server that lists models as it likes; completions are a scripted model's."""

    def __init__(self, listed: Any, status: int = 200, key: str = "") -> None:
        self.listed, self.status, self.key = listed, status, key
        self.asked = 0

    async def models(self, request: web.Request) -> web.Response:
        self.asked += 1
        if callable(self.listed):
            return web.json_response(self.listed(self.asked))
        if isinstance(self.listed, str):
            return web.Response(text=self.listed, status=self.status, content_type="text/html")
        return web.json_response(self.listed, status=self.status)

    async def chat(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "who are you"}, status=401)
        body = {**(await request.json()), "model": "scripted-hasty"}
        return web.json_response(ScriptedUpstream().complete(body))


@contextmanager
def serving(models: Models) -> Iterator[str]:
    server = ModelServer(ScriptedUpstream())
    made = web.Application()
    made.router.add_get("/v1/models", models.models)
    made.router.add_post("/v1/chat/completions", models.chat)
    server.app = made
    with server:
        yield server.url


def test_other_weights_under_the_same_path_are_refused_and_both_named(
    shop: Shop, tmp_path: Path
) -> None:
    path, out = tmp_path / "model", tmp_path / "out"
    first = shop.checkpoint(path, 1)
    text = shop.run(out, "--checkpoint", path, "--k", 2)
    assert first[7:19] in text, "the results say which weights they are of"
    told = json.loads(shop.run(out, "--checkpoint", path, "--k", 2, "--json"))
    assert told["stages"][0]["model"]["weights"] == first
    assert told["comparisons"][0]["model_a"]["weights"] == first
    rows = (out / "greedy" / "rollouts.jsonl").read_bytes()
    second = shop.checkpoint(path, 2)
    words = ("run", *shop.given, "--out", out, "--max-tokens", 12, "--checkpoint", path)
    why = refused(ResumeError, *words)
    assert first in why
    assert second in why
    assert "choose another --out" in why
    assert (out / "greedy" / "rollouts.jsonl").read_bytes() == rows
    assert json.loads((out / "results.json").read_text()) == told, "the old results stand"
    shop.checkpoint(path, 1)
    assert json.loads(shop.run(out, "--checkpoint", path, "--k", 2, "--json")) == told


def test_the_manifest_of_the_results_holds_model_problems_and_rollouts(
    shop: Shop, tmp_path: Path
) -> None:
    path, out = tmp_path / "model", tmp_path / "out"
    weights = shop.checkpoint(path, 1)
    told = json.loads(shop.run(out, "--checkpoint", path, "--json"))
    manifest = json.loads((out / "manifest.json").read_text())
    assert json.loads((out / "results.json").read_text()) == told
    pin = checkpoint_pin(path)
    parts = {"weights": weights, "tokenizer": pin.tokenizer, "template": pin.template}
    assert parts.items() <= manifest["inputs"].items()
    assert manifest["inputs"]["problems"] == read_identity(out / "greedy")["problems"]
    assert set(manifest["outputs"]) == {"results.json", "greedy/rollouts.jsonl"}
    for name, digest in manifest["outputs"].items():
        assert digest == file_digest(out / name)
    assert manifest["counts"] == {"problems": 6, "rollouts": 6, "unscored": 0}


@pytest.mark.parametrize("part", ["tokenizer", "config"])
def test_what_else_decides_an_answer_is_held_too(shop: Shop, tmp_path: Path, part: str) -> None:
    path, out = tmp_path / "model", tmp_path / "out"
    shop.checkpoint(path, 1)
    (path / "manifest.json").unlink()  # with it a file that was changed is refused anyway
    shop.run(out, "--checkpoint", path)
    file = path / {"tokenizer": "tokenizer_config.json", "config": "generation_config.json"}[part]
    file.write_text(json.dumps({**json.loads(file.read_text()), "added": 1}))
    words = ("run", *shop.given, "--out", out, "--max-tokens", 12, "--checkpoint", path)
    assert f"{part} differ" in refused(ResumeError, *words)


def test_another_template_is_another_model(shop: Shop, tmp_path: Path) -> None:
    shop.checkpoint(tmp_path / "model", 1)
    one = checkpoint_pin(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    two = checkpoint_pin(tmp_path / "model")
    assert one.template != two.template
    assert (one.weights, one.tokenizer) == (two.weights, two.tokenizer)


def test_step_by_step_answers_are_held_to_the_weights_too(shop: Shop, tmp_path: Path) -> None:
    path, out = tmp_path / "model", tmp_path / "out"
    first = shop.checkpoint(path, 1)
    told = json.loads(shop.steps(out, "--checkpoint", path, "--json"))
    assert told["score"]["model"]["weights"] == first
    lines = (out / "steps.jsonl").read_bytes()
    (out / "steps.jsonl").write_bytes(lines[: len(lines) // 2])
    second = shop.checkpoint(path, 2)
    words = ("steps", *shop.given, "--out", out, "--corpus", shop.folder, "--max-tokens", 4)
    why = refused(ResumeError, *words, "--checkpoint", path)
    assert first in why
    assert second in why
    other = json.loads(
        shop.steps(tmp_path / "two", "--checkpoint", path, "--against", out, "--json")
    )["paired"]
    assert (other["model_a"]["weights"], other["model_b"]["weights"]) == (first, second)


def test_answers_to_other_questions_are_not_paired(shop: Shop, tmp_path: Path) -> None:
    shop.steps(tmp_path / "one", "--model", "scripted-hasty")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    rows = (shop.folder / "heldout.jsonl").read_bytes().splitlines(keepends=True)
    (corpus / "heldout.jsonl").write_bytes(b"".join(rows[:4]))
    words = ("steps", *shop.given, "--corpus", corpus, "--model", "scripted-careful")
    why = refused(InputError, *words, "--out", tmp_path / "two", "--against", tmp_path / "one")
    assert "other questions: other rows" in why
    why = refused(InputError, *words, "--out", tmp_path / "two", "--against", tmp_path)
    assert "holds no answers" in why


def test_our_own_server_tells_the_digests_and_another_behind_its_address_is_refused(
    shop: Shop, tmp_path: Path
) -> None:
    out, pins = tmp_path / "out", []
    for seed in (1, 2):
        path = tmp_path / str(seed) / "model"
        shop.checkpoint(path, seed)
        pins.append(checkpoint_pin(path))
    words: tuple[object, ...] = ("--model", "model", "--max-tokens", 12, "--limit", 3)
    with open_checkpoint(tmp_path / "1" / "model") as one, ModelServer(one) as server:
        port = server.port
        found = endpoint_pin(server.url + "/", "", "model")
        assert found.weights == pins[0].weights
        assert (found.tokenizer, found.template) == (pins[0].tokenizer, pins[0].template)
        told = json.loads(shop.run(out, *words, "--base-url", server.url, "--json"))
        assert told["stages"][0]["model"]["weights"] == pins[0].weights
    with open_checkpoint(tmp_path / "2" / "model") as two, ModelServer(two, port=port) as server:
        asked = ("run", *shop.given, "--out", out, *words, "--base-url", server.url)
        why = refused(ResumeError, *asked)
    assert pins[0].weights in why
    assert pins[1].weights in why


def test_a_foreign_server_is_held_to_what_it_says_and_not_to_the_time(
    shop: Shop, tmp_path: Path
) -> None:
    def like_vllm(asked: int, root: str = "/models/one") -> dict[str, Any]:
        entry = {"id": "m", "created": asked, "permission": [{"id": f"p-{asked}"}], "root": root}
        return {"object": "list", "data": [{"id": "other"}, entry]}

    words = ("run", *shop.given, "--out", tmp_path / "out", "--model", "m", "--limit", 3)
    models = Models(like_vllm)
    with serving(models) as url:
        address = ("--base-url", url.replace("//", "//me:hidden@"))
        call(*words, *address)
        call(*words, *address)
        held = read_identity(tmp_path / "out" / "greedy")["model"]
        assert held == {"base_url": url, "name": "m", "says": {"id": "m", "root": "/models/one"}}
        models.listed = lambda asked: like_vllm(asked, "/models/two")
        why = refused(ResumeError, *words, *address)
    assert "/models/one" in why
    assert "/models/two" in why


@pytest.mark.parametrize(
    ("listed", "status"),
    [
        ("<html>", 200),
        ("no", 404),
        ("no", 403),
        ({"data": "x"}, 200),
        ([1], 200),
        ({}, 405),
        ("", 501),
    ],
    ids=str,
)
def test_a_server_without_a_list_of_models_is_held_to_its_address(listed: Any, status: int) -> None:
    with serving(Models(listed, status)) as url:
        found = endpoint_pin(url, "", "m")
    assert found == ModelPin(base_url=url, name="m")
    assert "does not tell the weights" in found.in_words()


def test_nobody_at_the_address_is_told_before_anything_is_written(
    shop: Shop, tmp_path: Path
) -> None:
    words = ("run", *shop.given, "--out", tmp_path / "out", "--model", "m")
    why = refused(UpstreamError, *words, "--base-url", "http://127.0.0.1:9/v1")
    assert "http://127.0.0.1:9/v1/models" in why
    assert "see that it runs" in why
    assert not (tmp_path / "out").exists()


def test_a_wrong_key_names_url_model_and_remedy_and_binds_nobody(
    shop: Shop, tmp_path: Path
) -> None:
    listed = {"data": [{"id": "m", "owned_by": "x"}]}
    words = ("run", *shop.given, "--out", tmp_path / "out", "--model", "m", "--json")
    models = Models("no", 401, KEY)
    with serving(models) as url:
        address = ("--base-url", url, "--api-key")
        why = refused(UpstreamError, *words, *address, "sk-something-else")
        assert "infrastructure broke the first 6 rollouts; platform 3009" in why
        assert f"{url}/chat/completions" in why
        assert "'m'" in why
        assert "check the key and what it may use, then run the same command again" in why
        assert "sk-something-else" not in why
        models.listed, models.status = listed, 200
        told = json.loads(call(*words, *address, KEY))
    stage = told["stages"][0]
    assert (stage["unscored"], stage["intent"]["overall"]["n"]) == (0, 6)
    assert stage["model"]["says"] == listed["data"][0]
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in files)


def test_a_folder_that_does_not_say_whose_it_is_is_not_added_to(shop: Shop, tmp_path: Path) -> None:
    path, out = tmp_path / "model", tmp_path / "out"
    shop.checkpoint(path, 1)
    shop.run(out, "--checkpoint", path)
    held = read_identity(out / "greedy")
    del held["model"]
    (out / "greedy" / "evaluation.json").write_text(json.dumps(held))
    words = ("run", *shop.given, "--out", out, "--max-tokens", 12, "--checkpoint", path)
    assert "does not say which weights" in refused(ResumeError, *words)
    (out / "greedy" / "rollouts.jsonl").unlink()
    call(*words)


def test_a_comparison_says_both_models(shop: Shop, tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        digests.append(shop.checkpoint(tmp_path / name, {"one": 1, "two": 2}[name]))
        shop.run(tmp_path / "out" / name, "--checkpoint", tmp_path / name)
    words = ("compare", tmp_path / "out" / "one", tmp_path / "out" / "two", *shop.given[:2])
    rows = json.loads(call(*words, "--json"))
    assert [rows[0][side]["weights"] for side in ("model_a", "model_b")] == digests
    text = call(*words)
    assert f"a = one: weights {digests[0][7:19]}" in text
    assert f"b = two: weights {digests[1][7:19]}" in text


def test_weights_that_change_under_a_server_are_noticed(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "model"
    first = shop.checkpoint(path, 1)
    with open_checkpoint(path) as served:
        assert served.identity["weights"] == first
    with open_checkpoint(path) as served:
        shop.checkpoint(path, 2)
        with pytest.raises(IntegrityError, match="changed while it was in use"):
            ModelServer(served)


def test_a_worker_with_other_weights_is_refused(shop: Shop, tmp_path: Path) -> None:
    from palio.evaluate.cluster import _Seat
    from palio.evaluate.policy import GREEDY
    from palio.judging.encoders import default_encoder

    shop.checkpoint(tmp_path / "model", 1)
    source = PolicySource(checkpoint=tmp_path / "model")
    pin = source.pin()
    shop.checkpoint(tmp_path / "model", 2)
    with pytest.raises(IntegrityError, match="a worker has another model"):
        _Seat(source, {}, default_encoder(), GREEDY, pin)


def test_a_card_takes_results_of_its_own_weights_only(shop: Shop, tmp_path: Path) -> None:
    first = shop.checkpoint(tmp_path / "model", 1)
    row = Measured(measure="greedy ASR", value=0.5, low=0.4, high=0.6, n=9, weights=first)
    old = Measured(measure="greedy ASR", value=0.5, low=0.4, high=0.6, n=9)
    assert _checked(tmp_path / "model", [row, old]) == first
    second = shop.checkpoint(tmp_path / "model", 2)
    with pytest.raises(InputError, match=f"{first}, the checkpoint has {second}"):
        _checked(tmp_path / "model", [row])


def test_missing_weights_and_a_missing_tokenizer_are_named(shop: Shop, tmp_path: Path) -> None:
    for gone in ("model.safetensors", "tokenizer.json", "config.json"):
        path = tmp_path / gone / "model"
        shop.checkpoint(path, 1)
        (path / gone).unlink()
        words = ("run", *shop.given, "--out", tmp_path / "out", "--checkpoint", path)
        why = refused(InputError, *words)
        assert str(path) in why
        assert gone in why or "no weights" in why
        assert not (tmp_path / "out").exists()
        shutil.rmtree(path)
