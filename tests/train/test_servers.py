"""What a model's server does wrong is nobody's failure: it is told, and tried again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.broker.upstream import HttpUpstream, RejectedError
from palio.records import InputError, ResumeError, UpstreamError
from palio.train.backends.loop import ChatCodec, LoopBackend
from palio.train.checkpoint import checkpoint_folder
from palio.train.codec import Talk
from palio.train.engine import Engine
from palio.train.ground import Ground
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.rl.sampler import Decoding
from palio.train.rollouts import DEAD, FILE, Collected, collect, read_rollouts, settle
from palio.train.run import train
from palio.train.settings import Sampling
from palio.train.stage import Keys
from palio.train.stages.kept import by_bucket, keep, mixed
from palio.train.stages.rejection import ASKED_FOR, CHAT, TOKENS, roll_out, token_server
from palio.train.tokenizer import ChatTokenizer, Encoded
from tests.train.test_stages import (
    BARE,
    SHORT,
    chain,
    corpus,  # noqa: F401 - a fixture
    ground,  # noqa: F401 - a fixture
    quiet,
)
from tests.train_rl.test_sampler import serving

OPENAI = {
    *("model", "messages", "tools", "tool_choice", "temperature", "top_p", "seed", "n", "stream"),
    *("max_tokens", "max_completion_tokens", "parallel_tool_calls", "stop"),
}
"""Arguments of a chat completion that these requests could have; OpenAI answers 400 to others."""


def down() -> UpstreamError:
    return UpstreamError("gone", code=3001)


class Answers:
    """The careful shopper; what `fails` says of the number of a request is raised instead.

    Attributes:
        asked: requests.
    """

    def __init__(self, fails: Callable[[int, dict[str, Any]], Exception | None]) -> None:
        self.asked = 0
        self._fails, self._lock, self._inner = fails, threading.Lock(), ScriptedUpstream(0)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.asked += 1
            fault = self._fails(self.asked, body)
        if fault is not None:
            raise fault
        return self._inner.complete(body)


def strict(_: int, body: dict[str, Any]) -> Exception | None:
    unknown = sorted(body.keys() - OPENAI)
    return RejectedError(f"Unrecognized request argument: {unknown[0]}") if unknown else None


def rolled(ground: Ground, upstream: Any, folder: Path, **more: Any) -> Collected:  # noqa: F811
    sampling = Sampling(samples=8, model="scripted-careful", threads=2)
    given: dict[str, Any] = {"name": "t", "seed": 1, "report": quiet, **more}
    return collect(ground, upstream, sampling, folder, **given)


def lessons(url: str = "") -> Recipe:
    told = {"samples": 2, "model": "scripted-careful", "base_url": url, "threads": 2}
    return chain({"kind": "sft", **SHORT}, {"kind": "teacher", "sampling": told, **SHORT})


def test_a_teacher_that_takes_openai_s_arguments_and_no_others_teaches(
    corpus: Path,  # noqa: F811
    ground: Ground,  # noqa: F811
    tmp_path: Path,
) -> None:
    with ModelServer(Answers(strict)) as server:
        made = train(lessons(server.url), corpus, tmp_path, ground=ground, options=BARE)
        with HttpUpstream(server.url) as asked, pytest.raises(UpstreamError, match="return_token"):
            rolled(ground, asked, tmp_path / "student")
    assert made.named("teacher").counts["kept"] > 0


def test_a_server_that_refuses_every_first_request_is_told_and_asked_again(
    ground: Ground,  # noqa: F811
    tmp_path: Path,
) -> None:
    """As vLLM does that was started without a parser of tool calls."""

    def tools(_: int, body: dict[str, Any]) -> Exception | None:
        return RejectedError('"auto" tool choice requires --enable-auto-tool-choice')

    with pytest.raises(UpstreamError, match="16 rollouts in a row.*--enable-auto-tool-choice"):
        rolled(ground, Answers(tools), tmp_path)
    assert not any(each.scored for each in read_rollouts(tmp_path)), "it is not the student's fault"
    found = rolled(ground, Answers(lambda *_: None), tmp_path)
    assert (len(found.rollouts), found.unscored) == (8 * len(ground.problems), 0)
    assert any(each.success for each in found.rollouts)


def test_a_server_that_is_gone_half_way_stops_the_stage_which_then_goes_on(
    ground: Ground,  # noqa: F811
    tmp_path: Path,
) -> None:
    with pytest.raises(UpstreamError, match=f"{DEAD} rollouts in a row could not be scored: gone"):
        rolled(ground, Answers(lambda number, _: down() if number > 60 else None), tmp_path)
    before = Counter((each.problem_id, each.sample) for each in read_rollouts(tmp_path))
    scored = sum(each.scored for each in read_rollouts(tmp_path))
    assert 0 < scored < len(before) < 8 * len(ground.problems) - DEAD
    again = Answers(lambda *_: None)
    found = rolled(ground, again, tmp_path)
    assert (len(found.rollouts), found.unscored) == (8 * len(ground.problems), 0)
    lines = (tmp_path / FILE).read_bytes().splitlines()
    broken = len(before) - scored
    assert len(lines) == len(found.rollouts) + broken, "what was scored was not run again"


def test_a_few_broken_rollouts_stop_nothing_and_are_tried_again_until_training_begins(
    ground: Ground,  # noqa: F811
    tmp_path: Path,
) -> None:
    def some(number: int, _: dict[str, Any]) -> Exception | None:
        return down() if number % 40 == 7 else None

    first = rolled(ground, Answers(some), tmp_path)
    assert 0 < first.unscored < DEAD
    second = rolled(ground, Answers(some), tmp_path)
    assert second.unscored < first.unscored
    assert second.unscored, "the seventh request is refused again"
    settle(tmp_path)
    nobody = Answers(some)
    assert rolled(ground, nobody, tmp_path) == second
    assert nobody.asked == 0


class Killed(BaseException):
    pass


def test_a_stage_with_rollouts_that_no_server_can_score_goes_on_as_it_would_have_ended(
    ground: Ground,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Sixteen of them stand in a row when a stage goes on, and prove nothing of its server."""
    order = ground.evenly(0, "rollouts-1")
    long = {order[at].query for at in (1, 5)}

    def narrow(_: int, body: dict[str, Any]) -> Exception | None:
        said = " ".join(str(each["content"]) for each in body["messages"] if each["role"] == "user")
        asked.append(said)
        return RejectedError("too long") if any(each in said for each in long) else None

    def stop(share: float, note: str) -> None:
        if share > 0.8:
            raise Killed

    asked: list[str] = []
    whole = rolled(ground, Answers(narrow), tmp_path / "whole")
    assert whole.unscored == 2 * 8 >= DEAD
    out = tmp_path / "killed"
    with pytest.raises(Killed):
        rolled(ground, Answers(narrow), out, report=stop)
    begun = read_rollouts(out)
    assert (len(begun) < 72, sum(not each.scored for each in begun)) == (True, 16)
    asked.clear()
    found = rolled(ground, Answers(narrow), out)
    assert (len(found.rollouts), found.unscored) == (72, 16)
    first = next(at for at, said in enumerate(asked) if any(each in said for each in long))
    assert first >= 72 - len(begun) - 1, "what was never tried comes first, on two threads"
    assert rolled(ground, Answers(narrow), out).unscored == 16, "nor where nothing else is left"
    with pytest.raises(UpstreamError, match=f"{DEAD} rollouts in a row could not be scored: gone"):
        rolled(ground, Answers(lambda *_: down()), out)


# ---- a server of token ids, as vLLM is


@contextmanager
def completing(engine: Engine, asked: list[int]) -> Iterator[str]:
    """Nothing but POST /v1/completions with token ids; `asked` gets the lengths of the prompts."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(len(body["prompt"]))
        told = engine.sample(body["prompt"], **{name: body[name] for name in Decoding._fields})
        return {"choices": [{"token_ids": told.ids, "logprobs": {"token_logprobs": told.logprobs}}]}

    with serving(answer) as url:
        yield f"{url}/v1"


def test_a_server_that_completes_tokens_is_given_the_tokens_of_the_conversation(
    corpus: Path,  # noqa: F811
    ground: Ground,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Chat completions of vLLM render a parsed turn anew, and then no rollout is a row."""
    asked: list[int] = []
    with Engine(checkpoint_folder(Path("bundled"))) as engine, completing(engine, asked) as url:
        told = {"samples": 1, "base_url": url, "model": "m", "threads": 4, "max_tokens": 120}
        stage = {"kind": "rejection", "mix": 0.0, "sampling": told, **SHORT}
        recipe = read_recipe({"name": "t", "model": {"start": "bundled"}, "stage": [stage]})
        made = train(recipe, corpus, tmp_path, ground=ground, options=BARE)
    assert asked, "any other path would have been refused"
    rollouts = read_rollouts(tmp_path / "rejection")
    assert all(each.scored and each.encoded() and len(each.turns) > 1 for each in rollouts)
    counts = made.named("rejection").counts
    assert counts["kept"] == sum(each.success for each in rollouts) > 0


def told_ids(_: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"token_ids": [3], "logprobs": {"token_logprobs": [-0.5]}}]}


def told_text(_: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"text": "x"}]}


class Student:
    """A rejection stage that looks at its server, of which only the answer matters."""

    def __init__(self, tokenizer: ChatTokenizer, out: Path) -> None:
        self.out = out
        self._context: Any = SimpleNamespace(
            keys=Keys("teacher", "sampler"),
            backend=SimpleNamespace(codec=lambda *_: ChatCodec(tokenizer)),
            recipe=SimpleNamespace(data=SimpleNamespace(longest=900), name="t"),
        )

    def by_token(self, url: str) -> bool:
        return token_server(Sampling(base_url=url), self._context, None, self.out) is not None

    def score(self) -> None:
        (self.out / FILE).write_text('{"problem_id": "p", "sample": 0, "scored": true}\n')

    def noted(self) -> str:
        return (self.out / ASKED_FOR).read_text().strip()


def test_a_stage_goes_on_asking_its_server_for_what_it_began_with(
    tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    """Chat completions of a rollout of several turns are no row, and no resume makes it again."""
    student = Student(tokenizer, tmp_path)
    with serving(told_ids) as ids, serving(told_text) as text:
        assert not student.by_token(text)
        assert student.noted() == CHAT
        assert student.by_token(ids), "nothing came of the other one"
        assert student.noted() == TOKENS
        student.score()
        assert student.by_token(ids)
        with pytest.raises(ResumeError, match="began with a server of token ids") as found:
            student.by_token(text)
        assert found.value.where == str(tmp_path)
        (tmp_path / ASKED_FOR).write_text(CHAT)
        assert not student.by_token(ids), "the rest is of the kind that the stage has"
        assert student.noted() == CHAT


def test_a_server_that_does_not_say_what_it_is_stops_the_stage_before_a_rollout(
    tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palio.train.rl.completions._WAITS", ())
    student = Student(tokenizer, tmp_path)
    for status, remedy in ((503, "start it again"), (401, "PALIO_SAMPLER_KEY")):
        with serving(told_ids, status) as url, pytest.raises(UpstreamError) as found:
            student.by_token(url)
        assert remedy in found.value.remedy
    assert not any(tmp_path.iterdir())
    with serving(told_ids) as url:
        assert not student.by_token(url.replace("http://", "http://u:p@")), "it can chat alone"


def test_a_stage_whose_rollouts_are_settled_needs_no_server(
    tokenizer: ChatTokenizer,
    ground: Ground,  # noqa: F811
    tmp_path: Path,
) -> None:
    sampling = Sampling(samples=1, base_url="http://127.0.0.1:9/v1")
    whole = rolled(ground, Answers(lambda *_: None), tmp_path)
    settle(tmp_path)
    context: Any = SimpleNamespace(
        recipe=SimpleNamespace(name="t"), name="rejection", seed=0, ground=ground
    )
    assert roll_out(sampling, context, None, tmp_path, quiet) == whole


def test_a_stage_that_was_killed_in_training_goes_on_with_the_same_rows(
    corpus: Path,  # noqa: F811
    ground: Ground,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rollout that could not be scored is no row then, though it could be scored now."""
    flaky = Answers(lambda number, _: down() if number == 5 else None)
    real, rows = LoopBackend.sft, []

    def sft(self: LoopBackend, sources: Any, *rest: Any) -> Any:
        rows.append(sources)
        if len(rows) == 2:
            raise Killed
        return real(self, sources, *rest)

    monkeypatch.setattr(LoopBackend, "sft", sft)
    monkeypatch.setattr("palio.train.stages.teacher.ScriptedUpstream", lambda _: flaky)
    with pytest.raises(Killed):
        train(lessons(), corpus, tmp_path, ground=ground, options=BARE)
    asked = flaky.asked
    made = train(lessons(), corpus, tmp_path, ground=ground, options=BARE)
    assert flaky.asked == asked
    assert rows[1] == rows[2]
    assert made.named("teacher").counts["rejected:unscored"] == 1


# ---- why there is no row


def test_successes_that_cannot_be_trained_on_are_no_failures(
    corpus: Path,  # noqa: F811
    ground: Ground,  # noqa: F811
    tokenizer: ChatTokenizer,
    tmp_path: Path,
) -> None:
    with ModelServer(ScriptedUpstream(0)) as server:
        told = {"samples": 1, "model": "scripted-careful", "base_url": server.url, "threads": 2}
        student = {"kind": "rejection", "sampling": told, **SHORT}
        recipe = chain({"kind": "sft", **SHORT}, student)
        with pytest.raises(InputError, match="can be a row .*no prefix") as found:
            train(recipe, corpus, tmp_path, ground=ground, options=BARE)
    assert "return_token_ids" in found.value.remedy
    rollouts = read_rollouts(tmp_path / "rejection")
    wins = sum(each.success for each in rollouts)
    assert wins

    class Rewrites(ChatCodec):
        def encode_talks(self, talks: Sequence[Talk]) -> list[Encoded]:
            return [Encoded([], []) for _ in talks]

    context: Any = SimpleNamespace(name="teacher")
    for codec, longest, reason, remedy in (
        (ChatCodec(tokenizer), 50, "too long", "`longest`"),
        (Rewrites(tokenizer), 9000, "rewritten", "`template`"),
    ):
        kept = keep(rollouts, codec, least=1.0, cap=0, longest=longest, sampled=False)
        assert kept.counts[reason] == wins
        with pytest.raises(InputError, match=f"can be a row .*{wins} {reason}") as found:
            mixed(by_bucket(kept, 1.0, {}), 0.0, context, None, kept.counts)
        assert remedy in found.value.remedy
