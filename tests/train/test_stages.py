"""Rejection and teacher stages: only successes, token by token as sampled, never run twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.broker.upstream import Upstream
from palio.corpus.rows import CorpusRow
from palio.judging.encoders import default_encoder
from palio.records import ConfigError, InputError, Message, ResumeError, UpstreamError, to_json
from palio.train.backends.loop import ChatCodec
from palio.train.engine import Engine
from palio.train.ground import Ground
from palio.train.model import Qwen3
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.requests import with_token_ids
from palio.train.rollouts import DEAD, Rollout, Tape, Turn, collect, read_rollouts
from palio.train.run import Options, train
from palio.train.settings import Sampling
from palio.train.stages.kept import keep
from palio.train.stages.teacher import TeacherSettings
from palio.train.text import assistant_text
from palio.train.tokenizer import ChatTokenizer
from palio.train.transcript import Transcript
from palio.world.artefacts import file_digest
from tests.train.conftest import Shop

BARE = Options(uncertified=True)
CAREFUL = Sampling(samples=2, temperature=0.0, top_p=1.0, model="scripted-careful", threads=4)


def quiet(share: float, note: str) -> None:
    assert 0 <= share <= 1


@pytest.fixture(scope="session")
def ground(shop: Shop) -> Ground:
    some = shop.problems[:9]
    return Ground(some, {some[0].catalogue: shop.world}, default_encoder())


class Counting:
    """An upstream that counts what it is asked."""

    def __init__(self, inner: Upstream) -> None:
        self.inner, self.asked = inner, 0

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        return self.inner.complete(body)


class Tokened(Counting):
    """A scripted model that tells the ids of its text, `cut` in another way than training would."""

    def __init__(self, inner: Upstream, tokenizer: ChatTokenizer, *, cut: bool = True) -> None:
        super().__init__(inner)
        self._cut = cut
        self._tokenizer, self._transcript = tokenizer, Transcript(tokenizer)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        messages = msgspec.convert(body["messages"], list[Message], strict=False)
        ids = self._transcript.prompt(messages)
        answer = super().complete(body)
        message = msgspec.convert(answer["choices"][0]["message"], Message)
        text = assistant_text(message)
        half = len(text) // 2 if self._cut else 0
        odd = self._tokenizer.encode(text[:half]) + self._tokenizer.encode(text[half:])
        if self._tokenizer.decode(odd) != text:
            odd = self._tokenizer.encode(text)
        odd.append(self._tokenizer.end)
        self._transcript.remember(ids, odd)
        return with_token_ids(answer, ids, odd)


def test_a_rollout_is_trained_on_the_very_ids_that_were_sampled(
    ground: Ground, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    upstream = Tokened(ScriptedUpstream(0), tokenizer)
    found = collect(ground, upstream, CAREFUL, tmp_path, name="t", seed=1, report=quiet)
    kept = keep(found.rollouts, ChatCodec(tokenizer), least=1.0, cap=0, longest=2000, sampled=True)
    assert kept.rows
    for rollout, example in kept.rows:
        told = rollout.encoded()
        assert told is not None
        assert example.ids == tuple(told.ids[: len(example.ids)])
        sampled = [token for turn in rollout.turns for token in turn.sampled]
        assert [example.ids[at + 1] for at in example.targets] == sampled
        last = rollout.turns[-1]
        assert tuple(told.ids) == last.prompt + last.sampled
    assert kept.redrawn > 0, "tokenising the text again would have trained on other ids"


def test_a_rollout_whose_text_has_the_ids_that_were_sampled_is_not_redrawn(
    ground: Ground, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    upstream = Tokened(ScriptedUpstream(0), tokenizer, cut=False)
    found = collect(ground, upstream, CAREFUL, tmp_path, name="t", seed=1, report=quiet)
    kept = keep(found.rollouts, ChatCodec(tokenizer), least=1.0, cap=0, longest=2000, sampled=True)
    assert kept.rows
    assert kept.redrawn == 0, "what follows the last turn was never read"


def test_a_conversation_that_was_written_anew_is_no_row() -> None:
    turns = (Turn(prompt=(1, 2), sampled=(3,)), Turn(prompt=(1, 9, 3, 4), sampled=(5,)))
    rollout = Rollout(
        problem_id="p",
        kind="product",
        sample=0,
        reward=1.0,
        success=True,
        scored=True,
        trajectory=None,  # type: ignore[arg-type]
        turns=turns,
    )
    assert rollout.encoded() is None
    good = msgspec.structs.replace(
        rollout, turns=(turns[0], Turn(prompt=(1, 2, 3, 4), sampled=(5, 6)))
    )
    encoded = good.encoded()
    assert encoded is not None
    assert encoded.ids == [1, 2, 3, 4, 5, 6]
    assert encoded.trained == [False, False, True, False, True, True]


def test_only_successes_are_kept_each_once_and_so_many_a_problem(
    ground: Ground, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    hasty = msgspec.structs.replace(CAREFUL, model="scripted-hasty", samples=1)
    good = collect(
        ground, ScriptedUpstream(0), CAREFUL, tmp_path / "a", name="a", seed=1, report=quiet
    ).rollouts
    bad = collect(
        ground, ScriptedUpstream(0), hasty, tmp_path / "b", name="b", seed=1, report=quiet
    ).rollouts
    codec = ChatCodec(tokenizer)
    kept = keep([*good, *bad], codec, least=1.0, cap=1, longest=2000, sampled=False)
    won = {each.problem_id for each in [*good, *bad] if each.success}
    assert {rollout.problem_id for rollout, _ in kept.rows} == won
    assert all(rollout.success for rollout, _ in kept.rows)
    assert len(kept.rows) == len(won)
    assert kept.counts["duplicate"] + kept.counts.get("over the cap", 0) >= len(won)
    assert kept.counts["no success"] == sum(not each.success for each in [*good, *bad])
    loose = keep([*good, *bad], codec, least=0.3, cap=0, longest=2000, sampled=False)
    assert {row[0].success for row in loose.rows} == {True, False}


def test_what_was_rolled_out_is_not_run_again(ground: Ground, tmp_path: Path) -> None:
    first = Counting(ScriptedUpstream(0))
    whole = collect(ground, first, CAREFUL, tmp_path, name="t", seed=1, report=quiet)
    lines = (tmp_path / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "rollouts.jsonl").write_bytes(b"".join(lines[:-2]) + lines[-2][:40])
    second = Counting(ScriptedUpstream(0))
    again = collect(ground, second, CAREFUL, tmp_path, name="t", seed=1, report=quiet)
    assert 0 < second.asked < first.asked / 3
    answers = [(r.problem_id, r.sample, r.success, r.trajectory.answer) for r in whole.rollouts]
    assert answers == [
        (r.problem_id, r.sample, r.success, r.trajectory.answer) for r in again.rollouts
    ]
    assert len(read_rollouts(tmp_path)) == len(ground.problems) * CAREFUL.samples


def test_when_nobody_answers_the_stage_stops(ground: Ground, tmp_path: Path) -> None:
    class Dead:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            raise UpstreamError("refused", code=3001)

    many, dead = msgspec.structs.replace(CAREFUL, samples=8), Counting(Dead())
    with pytest.raises(UpstreamError, match=f"{DEAD} rollouts in a row could not be scored"):
        collect(ground, dead, many, tmp_path, name="t", seed=1, report=quiet)
    assert DEAD <= dead.asked < DEAD + 2 * many.threads, "those in flight, and no other one"
    assert dead.asked < len(ground.problems) * many.samples


# ---- whole chains


@pytest.fixture(scope="session")
def corpus(talks: list[Sequence[Message]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    rows = [
        CorpusRow(
            messages=tuple(m.to_openai() for m in talk),
            tools="[]",
            trajectory_id=str(at),
            problem_id=str(at),
            cluster_id=str(at),
            agent="careful",
            kind="product",
        )
        for at, talk in enumerate(talks)
    ]
    path.write_bytes(b"".join(to_json(row) + b"\n" for row in rows))
    return path


SMALL = {
    "vocabulary": 900,
    "sample": 50,
    "hidden_size": 64,
    "intermediate_size": 96,
    "layers": 2,
    "head_dim": 16,
}
SHORT = {"tokens": 4000, "batch": 600}


def chain(*stages: dict[str, Any], **more: Any) -> Recipe:
    return read_recipe({"name": "t", "model": SMALL, "stage": list(stages), **more})


def test_a_source_of_which_nothing_is_short_enough_is_named(
    corpus: Path, ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palio.train.stages.sft.documents", lambda *_: [])
    stage = {"kind": "sft", "documents": 0.3, "kinds": {"copy": 1.0}, **SHORT}
    with pytest.raises(InputError, match="no documents of at most .* tokens") as found:
        train(chain(stage), corpus, tmp_path / "run", ground=ground, options=BARE)
    assert "longest" in found.value.remedy


def test_the_teacher_stage_goes_on_from_sft_and_tells_what_it_kept(
    corpus: Path, ground: Ground, tmp_path: Path
) -> None:
    lessons = {"samples": 1, "temperature": 0.0, "top_p": 1.0, "model": "scripted-careful"}
    teacher = {"kind": "teacher", "mix": 0.5, "sampling": {**lessons, "threads": 4}, **SHORT}
    recipe = chain({"kind": "sft", **SHORT}, teacher)
    made = train(recipe, corpus, tmp_path / "run", ground=ground, options=BARE)
    counts = made.named("teacher").counts
    assert counts["rolled out"] == len(ground.problems)
    assert counts["kept"] == counts["problems kept"] > 0
    manifest = json.loads((made.final / "manifest.json").read_bytes())
    assert {"corpus", "problems", "checkpoint", "recipe", "template", "rows"} <= set(
        manifest["inputs"]
    )
    assert (tmp_path / "run" / "teacher" / "rollouts.jsonl").stat().st_size > 0
    changed = chain({"kind": "sft", **SHORT}, {**teacher, "mix": 0.25})
    with pytest.raises(ResumeError, match=r"stage\.mix: 0\.5 -> 0\.25"):
        train(changed, corpus, tmp_path / "run", ground=ground, options=BARE)
    again = train(
        changed,
        corpus,
        tmp_path / "run",
        ground=ground,
        options=Options(uncertified=True, redo=True),
    )
    assert [stage.skipped for stage in again.stages] == [True, False]


def test_without_a_success_the_rejection_stage_says_so(
    corpus: Path, ground: Ground, tmp_path: Path
) -> None:
    sampling = {"problems": 2, "samples": 2, "threads": 4, "max_tokens": 16}
    recipe = chain({"kind": "sft", **SHORT}, {"kind": "rejection", "sampling": sampling, **SHORT})
    with pytest.raises(InputError, match="no rollout was a success"):
        train(recipe, corpus, tmp_path / "run", ground=ground, options=BARE)
    assert not (tmp_path / "run" / "rejection" / "checkpoint").exists()
    assert (tmp_path / "run" / "sft" / "stage.json").exists()


def test_a_chain_that_cannot_be_is_refused_before_it_begins(
    corpus: Path, ground: Ground, tmp_path: Path
) -> None:
    rejection = {"kind": "rejection", **SHORT}
    with pytest.raises(ConfigError, match="--suite"):
        train(chain({"kind": "sft", **SHORT}, rejection), corpus, tmp_path / "a", options=BARE)
    with pytest.raises(ConfigError, match="checkpoint before it"):
        train(chain(rejection), corpus, tmp_path / "b", ground=ground, options=BARE)
    with pytest.raises(InputError, match="certificate"):
        train(chain({"kind": "sft", **SHORT}), corpus, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    for wrong in ({"kind": "dance"}, {"kind": "sft", "tokenz": 1}, {"kind": "sft", "name": "a/b"}):
        with pytest.raises(ConfigError):
            chain(wrong)
    with pytest.raises(ConfigError, match="two stages"):
        chain({"kind": "sft"}, {"kind": "sft"})
    with pytest.raises(ConfigError, match="no address"):
        TeacherSettings(sampling=Sampling(model="gpt"))


def test_the_tape_keeps_ids_to_itself(small: Qwen3, tokenizer: ChatTokenizer) -> None:
    body = {"messages": [{"role": "user", "content": "a mug"}], "max_tokens": 4}
    with Engine.of(small, tokenizer, slots=2) as engine:
        tape = Tape(engine)
        answer = tape.complete(body)
        assert "token_ids" not in answer["choices"][0]
        assert "prompt_token_ids" not in answer
        assert len(tape.turns[0].sampled) == answer["usage"]["completion_tokens"]
        assert len(tape.turns[0].prompt) == answer["usage"]["prompt_tokens"]
        assert engine.complete(body)["choices"] == answer["choices"]


def test_a_recipe_goes_on_from_a_checkpoint(corpus: Path, ground: Ground, tmp_path: Path) -> None:
    first = train(chain({"kind": "sft", **SHORT}), corpus, tmp_path / "a", options=BARE)
    lessons = {"samples": 1, "temperature": 0.0, "model": "scripted-careful", "threads": 4}
    model = {"start": str(first.stages[0].folder)}
    further = read_recipe(
        {"name": "b", "model": model, "stage": [{"kind": "teacher", "sampling": lessons, **SHORT}]}
    )
    made = train(further, corpus, tmp_path / "b", ground=ground, options=BARE)
    manifest = json.loads((made.final / "manifest.json").read_bytes())
    assert manifest["inputs"]["checkpoint"] == file_digest(first.final / "manifest.json")
    shape = json.loads((made.final / "config.json").read_bytes())
    assert shape["hidden_size"] == SMALL["hidden_size"]
    lost = read_recipe({"model": {"start": str(tmp_path)}, "stage": [{"kind": "sft"}]})
    with pytest.raises(InputError, match="no checkpoint to start from"):
        train(lost, corpus, tmp_path / "c", options=BARE)
