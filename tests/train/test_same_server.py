"""A stage that asks a model's server goes on with what that said it served, or is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.records import PalioError, ResumeError, UpstreamError, digest, to_json
from palio.train.backends.loop import LoopBackend
from palio.train.card import write_card
from palio.train.ground import Ground
from palio.train.preference.labels import LABELLED, Labelled
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.rollouts import FILE as ROLLOUTS
from palio.train.rollouts import SETTLED, read_rollouts
from palio.train.run import Options, Trained, train
from palio.train.servers import ENDPOINT, Servers
from palio.train.stage import STATES, Endpoint, Keys, Step
from palio.train.stages import kind_named
from tests.train.test_stages import (
    SHORT,
    corpus,  # noqa: F401 - a fixture
    ground,  # noqa: F401 - a fixture
)

KEY = "sk-0123456789abcdef"
NAME = "scripted-careful"


class Server:
    """A model's server that says of itself what `entry` has; None: it has no list of models.

    Attributes:
        asked: completions.
        heard: what requests said of who asks.
    """

    def __init__(self, entry: dict[str, Any] | None) -> None:
        self.entry, self.asked, self.created = entry, 0, 0
        self.heard: set[str] = set()

    async def models(self, request: web.Request) -> web.Response:
        self.heard.add(request.headers.get("Authorization", ""))
        if self.entry is None or request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": "no"}, status=404)
        self.created += 1
        entry = {"id": NAME, "created": self.created, **self.entry}
        return web.json_response({"object": "list", "data": [{"id": "another"}, entry]})

    async def chat(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.heard.add(request.headers.get("Authorization", ""))
        return web.json_response(ScriptedUpstream(0).complete(await request.json()))

    @contextmanager
    def running(self, port: int = 0) -> Iterator[ModelServer]:
        server = ModelServer(ScriptedUpstream(0), port=port)
        server.app = web.Application()
        server.app.router.add_get("/v1/models", self.models)
        server.app.router.add_post("/v1/chat/completions", self.chat)
        with server:
            yield server


class Killed(BaseException):
    pass


def lessons(url: str, *more: str) -> Recipe:
    told = {"samples": 2, "model": NAME, "base_url": url, "threads": 1}
    stages = [
        {"kind": "teacher", "name": name, "sampling": told, **SHORT} for name in ("teacher", *more)
    ]
    return read_recipe({"name": "t", "model": {"start": "bundled"}, "stage": stages})


class Class:
    """Trains one recipe in one folder, as often as it is asked."""

    def __init__(self, corpus: Path, ground: Ground, out: Path) -> None:  # noqa: F811
        self._corpus, self._ground, self.out = corpus, ground, out

    def __call__(
        self, url: str, *later: str, kill: bool = False, key: str = KEY, seed: int = 0, **more: Any
    ) -> Trained:
        def report(step: Step) -> None:
            if kill and 0 < step.share < 0.4:
                raise Killed

        options = Options(uncertified=True, keys=Keys(key), report=report, **more)
        recipe = msgspec.structs.replace(lessons(url, *later), seed=seed)
        return train(recipe, self._corpus, self.out, ground=self._ground, options=options)

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.out.rglob("*") if path.is_file()}


@pytest.fixture
def taught(corpus: Path, ground: Ground, tmp_path: Path) -> Class:  # noqa: F811
    return Class(corpus, ground, tmp_path / "run")


def test_a_key_goes_to_the_servers_that_it_is_for_and_to_no_other(
    corpus: Path,  # noqa: F811
    ground: Ground,  # noqa: F811
    tmp_path: Path,
) -> None:
    teacher, sampler = Server(None), Server(None)
    options = Options(uncertified=True, keys=Keys("t", "s"))
    with teacher.running() as one, sampler.running() as other:
        recipe = lessons(one.url)
        told = {"samples": 2, "model": NAME, "base_url": other.url, "threads": 1, "problems": 3}
        stages = [{"kind": "rejection", "sampling": told, **SHORT}]
        later = read_recipe({"name": "t", "model": {"start": "bundled"}, "stage": stages})
        recipe = msgspec.structs.replace(recipe, stages=(*recipe.stages, *later.stages))
        with pytest.raises(PalioError, match="by a server that tells token ids"):  # no student
            train(recipe, corpus, tmp_path / "run", ground=ground, options=options)
    assert (teacher.asked > 0, sampler.asked > 0) == (True, True)
    assert (teacher.heard, sampler.heard) == ({"Bearer t"}, {"Bearer s"})


def read(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_bytes())
    return made


def test_another_teacher_behind_the_same_address_is_refused_and_what_differs_named(
    taught: Class,
) -> None:
    one, two = ({"root": f"/models/{name}", "owned_by": "x"} for name in ("one", "two"))
    server = Server(one)
    with server.running() as place:
        with pytest.raises(Killed):
            taught(place.url, kill=True)
        before, asked, server.entry = taught.files(), server.asked, two
        with pytest.raises(ResumeError, match="began with another model behind") as found:
            taught(place.url)
        assert 'says.root: "/models/one" -> "/models/two"' in found.value.what
        assert "owned_by" not in found.value.what
        assert found.value.where == str(taught.out / "teacher")
        assert "put that one back" in found.value.remedy
        assert "--redo" in found.value.remedy
        assert taught.files() == before, "nothing is overwritten"
        assert server.asked == asked
        server.entry = one
        made = taught(place.url)
        told = {"base_url": place.url, "name": NAME, "says": {"id": NAME, **one}}
        assert read(taught.out / "teacher" / "run.json")["config"][ENDPOINT] == told
        done = read(taught.out / "teacher" / "stage.json")
        assert done["config"][ENDPOINT] == told
        assert done["inputs"][ENDPOINT] == digest(told)
        assert read(made.final / "manifest.json")["inputs"][ENDPOINT] == digest(told)
        assert f"- server: {NAME} at {place.url}, its server" in write_card(taught.out).read_text()
        assert not any(KEY.encode() in data for data in taught.files().values())
        server.entry = two
        assert taught(place.url).stages[0].skipped, "a finished stage asks nobody"
        with pytest.raises(ResumeError, match="'scripted-careful' of stage 'more' is another than"):
            taught(place.url, "more")
        assert not (taught.out / "more").exists()
    assert taught(place.url).stages[0].skipped


def test_redo_does_the_stage_again_with_the_other_teacher(taught: Class) -> None:
    server = Server({"root": "one"})
    with server.running() as place:
        with pytest.raises(Killed):
            taught(place.url, kill=True)
        server.entry = {"root": "two"}
        with pytest.raises(Killed):
            taught(place.url, redo=True, kill=True)
        told = read(taught.out / "teacher" / "run.json")["config"][ENDPOINT]
    assert told["says"]["root"] == "two"
    assert len(read_rollouts(taught.out / "teacher")) < 18


def test_a_stage_whose_rollouts_are_settled_goes_on_without_its_server(
    taught: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> Any:
        raise Killed

    real = LoopBackend.sft
    monkeypatch.setattr(LoopBackend, "sft", killed)
    with Server({"root": "one"}).running() as place, pytest.raises(Killed):
        taught(place.url)
    monkeypatch.setattr(LoopBackend, "sft", real)
    made = taught(place.url)
    told = read(made.final.parent / "stage.json")["config"][ENDPOINT]
    assert told["says"]["root"] == "one", "what it said when it taught"


# ---- the rule alone


CONFIG = {"seed": 1}


def held(folder: Path, url: str, servers: Servers | None = None, **more: Any) -> dict[str, Any]:
    endpoint = Endpoint(**{"base_url": url, "model": NAME, **more})
    servers = servers or Servers(Keys(KEY, KEY))
    return dict(servers.hold(folder, CONFIG, endpoint, finished=False))


def scored(folder: Path) -> None:
    """A rollout that a rejection or teacher stage keeps; only its end is looked at."""
    (folder / ROLLOUTS).write_text('{"problem_id": "p", "sample": 0, "scored": true}\n')


def labelled(folder: Path) -> None:
    row = Labelled(key="p", number=0, prompt=(1,), completion=(2,), mask=(1,), label=False)
    (folder / LABELLED).write_bytes(to_json(row) + b"\n")


def measured(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')


def saved(folder: Path) -> None:
    (folder / STATES / "checkpoint-1").mkdir(parents=True)


@pytest.mark.parametrize("answer", [scored, labelled, measured, saved])
def test_only_a_server_that_gave_nothing_yet_may_become_another(
    tmp_path: Path, answer: Any
) -> None:
    server = Server({"root": "one"})
    with server.running() as place:
        assert held(tmp_path, place.url)["says"]["root"] == "one"
        (tmp_path / ROLLOUTS).write_text('{"scored": false}\n')
        server.entry = {"root": "two"}
        assert held(tmp_path, place.url)["says"]["root"] == "two"
        answer(tmp_path)
        assert held(tmp_path, place.url)["says"]["root"] == "two"
        server.entry = {"root": "one"}
        with pytest.raises(ResumeError, match=r'says\.root: "two" -> "one"'):
            held(tmp_path, place.url)
        (tmp_path / SETTLED).touch()
        assert held(tmp_path, place.url)["says"]["root"] == "two"


def test_weights_that_a_server_tells_are_held_whole(tmp_path: Path) -> None:
    server = Server({"palio": {"weights": "sha256:1", "template": "t"}})
    with server.running() as place:
        told = held(tmp_path, place.url)
        assert (told["weights"], told["template"]) == ("sha256:1", "t")
        scored(tmp_path)
        server.entry = {"palio": {"weights": "sha256:2", "template": "t"}}
        with pytest.raises(ResumeError, match='weights: "sha256:1" -> "sha256:2"'):
            held(tmp_path, place.url)


def test_a_server_that_says_nothing_is_noted_as_such_and_not_refused(tmp_path: Path) -> None:
    server = Server(None)
    with server.running() as place:
        for _ in range(2):
            assert held(tmp_path, place.url) == {"base_url": place.url, "name": NAME}
            scored(tmp_path)
        server.entry = {"root": "one"}
        with pytest.raises(ResumeError, match=r"says: absent -> .*root"):
            held(tmp_path, place.url)


def test_a_stage_that_began_before_servers_were_noted_goes_on(tmp_path: Path) -> None:
    Servers(Keys(KEY, KEY)).hold(tmp_path, CONFIG, None, finished=False)
    before = (tmp_path / "run.json").read_bytes()
    scored(tmp_path)
    with Server({"root": "one"}).running() as place:
        assert held(tmp_path, place.url) == {}, "whose its rollouts are, nobody knows"
    assert (tmp_path / "run.json").read_bytes() == before


def test_other_settings_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    with Server({"root": "one"}).running() as place:
        held(tmp_path, place.url)
        endpoint = Endpoint(base_url=place.url, model=NAME)
        told = Servers(Keys(KEY, KEY)).hold(tmp_path, {"seed": 3}, endpoint, finished=False)
        assert told["says"]["root"] == "one", "nothing was done with the other ones"
    scored(tmp_path)
    with pytest.raises(ResumeError, match="seed: 3 -> 2"):
        Servers(Keys(KEY, KEY)).hold(tmp_path, {"seed": 2}, endpoint, finished=False)


def test_nobody_at_the_address_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match="stage 'x' has nobody to ask") as found:
        held(tmp_path / "x", "http://127.0.0.1:9/v1")
    assert found.value.where == "http://127.0.0.1:9/v1/models"
    assert "start the model's server" in found.value.remedy
    assert not (tmp_path / "x").exists()


def test_a_later_stage_of_a_run_has_the_same_teacher_by_the_same_name(tmp_path: Path) -> None:
    server, servers = Server({"root": "one"}), Servers(Keys(KEY, KEY))
    with server.running() as place:
        held(tmp_path / "teacher", place.url, servers, teacher=True)
        held(tmp_path / "grpo", place.url, servers, teacher=True)
        server.entry = {"root": "two"}
        with pytest.raises(ResumeError, match=r"of stage 'more' is another.*stage 'teacher'") as no:
            held(tmp_path / "more", place.url, servers, teacher=True)
        assert 'says.root: "one" -> "two"' in no.value.what
        assert "a `model` name of its own" in no.value.remedy
        assert not (tmp_path / "more").exists()
        # as a run that goes on: the first stage is finished, and asks nobody
        again = Servers(Keys(KEY, KEY))
        endpoint = Endpoint(base_url=place.url, model=NAME, teacher=True)
        again.hold(tmp_path / "teacher", CONFIG, endpoint, finished=True)
        with pytest.raises(ResumeError, match="of stage 'more' is another"):
            held(tmp_path / "more", place.url, again, teacher=True)
        told = held(tmp_path / "other", place.url, servers, teacher=True, model="another")
        assert told["says"] == {"id": "another"}, "another teacher has a name of its own"
        held(tmp_path / "kto", place.url, servers)  # the student is another one after each stage


# ---- which stages ask


URL = "http://h:8000"


@pytest.mark.parametrize(
    ("stage", "asks"),
    [
        ({"kind": "sft"}, None),
        ({"kind": "teacher"}, None),
        (
            {"kind": "teacher", "sampling": {"base_url": f"{URL}/v1", "model": "m"}},
            Endpoint(base_url=f"{URL}/v1", model="m", teacher=True),
        ),
        (
            {"kind": "teacher", "sampling": {"base_url": f"{URL}/v1", "model": ""}},
            Endpoint(base_url=f"{URL}/v1", model="teacher-remote", teacher=True),
        ),
        ({"kind": "rejection"}, None),
        (
            {"kind": "rejection", "sampling": {"base_url": f"{URL}/v1"}},
            Endpoint(base_url=f"{URL}/v1", model="before/checkpoint"),
        ),
        (
            {"kind": "kto", "sampling": {"base_url": URL, "model": "student"}},
            Endpoint(base_url=f"{URL}/v1", model="student"),
        ),
        ({"kind": "grpo"}, None),
        ({"kind": "grpo", "base_url": URL}, None),
        ({"kind": "grpo", "reward": "outcome", "teacher": {"base_url": URL}}, None),
        (
            {"kind": "grpo", "teacher": {"base_url": f"{URL}/v1", "model": "m"}},
            Endpoint(base_url=f"{URL}/v1", model="m", teacher=True),
        ),
    ],
    ids=lambda value: str(value.get("kind")) if isinstance(value, dict) else "",
)
def test_which_server_a_stage_asks(stage: dict[str, Any], asks: Endpoint | None) -> None:
    (entry,) = read_recipe({"name": "t", "stage": [stage]}).stages
    kind = kind_named(entry.kind)
    assert kind.asks(entry.settings, Path("before/checkpoint")) == asks
    assert kind.asks(kind.shrink(entry.settings), None) is None, "a dry run asks nobody outside"


def test_a_stage_that_asks_nobody_writes_what_it_always_wrote(tmp_path: Path) -> None:
    servers = Servers(Keys(KEY, KEY))
    assert servers.hold(tmp_path, CONFIG, None, finished=False) == {}
    assert read(tmp_path / "run.json")["config"] == CONFIG
    assert servers.hold(tmp_path, CONFIG, None, finished=False) == {}
