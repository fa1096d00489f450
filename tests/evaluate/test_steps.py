"""On a teacher's own histories: the teacher matches itself, others by how much they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.agents.spec import policy_agent
from palio.cli.main import app
from palio.corpus.rows import CorpusRow, row_of
from palio.evaluate.diagnosis import INVALID, NO_CALL
from palio.evaluate.policy import EvalSettings, Policy, evaluate_policy
from palio.evaluate.rollouts import read_identity
from palio.evaluate.step_folder import ANSWERS, append_answer, held_steps, read_answers
from palio.evaluate.steps import StepAnswer, answer_steps, compare_steps, questions, step_score
from palio.judging.encoders import default_encoder
from palio.records import InputError, Provenance, ResumeError, Suite, digest, to_json
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.suites.files import write_suite
from palio.world.artefacts import write_manifest
from palio.world.catalogue import Catalogue, write_catalogue
from palio.world.synthesis import compact_config, synthesise
from palio.world.tools import Toolbox
from palio.world.world import COMPACT, World

TEACHER = "scripted-careful"


class Shop:
    """A world, and the teacher's conversations in it."""

    def __init__(self) -> None:
        self.made = synthesise(compact_config(3, products=400, problems=12))
        self.world = World.build(self.made.catalogue, COMPACT)
        agent, driver, upstream = find_agent("careful"), InlineDriver(), ScriptedUpstream(0)
        self.rows = [
            row_of(run_problem(agent, each, self.world, driver=driver, upstream=upstream), "c")
            for each in self.made.problems
        ]
        self.kinds = {each.problem_id: each.kind for each in self.made.problems}

    def answers(self, upstream: Any, model: str = TEACHER, **more: Any) -> list[StepAnswer]:
        tools = Toolbox(self.world)
        found = answer_steps(self.rows, upstream, model, lambda _: tools, self.kinds, **more)
        return sorted(found, key=lambda answer: (answer.problem_id, answer.turn))


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


class Fixed:
    """Answers every request with the same message."""

    def __init__(self, **message: Any) -> None:
        self.message = {"role": "assistant", "content": None, **message}
        self.asked: list[Mapping[str, Any]] = []

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        return {"choices": [{"message": self.message}], "usage": {"completion_tokens": 9}}


def calling(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"id": "1", "type": "function", "function": function}]}


def test_the_teacher_matches_itself_at_every_turn(shop: Shop) -> None:
    answers = shop.answers(ScriptedUpstream())
    score = step_score(answers, "teacher")
    assert score.turns == sum(len(list(questions(row))) for row in shop.rows)
    assert score.problems == len(shop.rows)
    assert score.match.turns.rate == score.valid.turns.rate == 1.0
    assert not score.differences
    assert sum(kind.n for kind in score.kinds) == score.turns
    assert {answer.problem_kind for answer in answers} == {"product", "shop", "voucher"}


def test_the_prompt_is_the_teachers_history_and_no_more(shop: Shop) -> None:
    fixed = Fixed(content="no")
    shop.answers(fixed, max_tokens=7, threads=1)
    wanted = [
        [message.to_openai() for message in question.before]
        for row in shop.rows
        for question in questions(row)
    ]
    assert [body["messages"] for body in fixed.asked] == wanted
    assert {body["max_tokens"] for body in fixed.asked} == {7}
    assert all(body["temperature"] == 0 for body in fixed.asked)


@pytest.mark.parametrize(
    ("message", "difference"),
    [
        ({"content": "I would search."}, NO_CALL),
        (calling("buy", "{}"), INVALID),
        (calling("find_product", "[]"), INVALID),
        (calling("view_product_information", "{}"), INVALID),
    ],
)
def test_a_turn_without_a_call_that_a_tool_takes_is_not_valid(
    shop: Shop, message: dict[str, Any], difference: str
) -> None:
    answers = shop.answers(Fixed(**message))
    assert not any(answer.valid or answer.match or answer.same_tools for answer in answers)
    assert {answer.difference for answer in answers} == {difference}
    assert {answer.tokens for answer in answers} == {9}


def test_a_valid_call_of_another_tool_is_no_match(shop: Shop) -> None:
    answers = shop.answers(Fixed(**calling("terminate", '{"status":"failure"}')))
    assert all(answer.valid for answer in answers)
    assert not any(answer.match for answer in answers)
    assert all("instead of" in answer.difference for answer in answers)


def test_two_policies_are_paired_turn_by_turn(shop: Shop) -> None:
    teacher, nothing = shop.answers(ScriptedUpstream()), shop.answers(Fixed(content="no"))
    told = compare_steps(nothing, teacher[1:], ("nothing", "teacher"))
    assert told.turns == len(teacher) - 1
    for share in told.shares:
        assert (share.gained, share.lost) == (told.turns, 0)
        assert share.difference.value == 1.0
    back = compare_steps(teacher, nothing, ("teacher", "nothing"))
    assert {share.difference.value for share in back.shares} == {-1.0}
    with pytest.raises(InputError, match="no turn in common"):
        compare_steps([], teacher, ("a", "b"))


def test_answers_survive_a_kill_and_are_not_asked_again(shop: Shop, tmp_path: Path) -> None:
    answers = shop.answers(ScriptedUpstream())
    for answer in answers[:5]:
        append_answer(tmp_path, answer)
    with (tmp_path / ANSWERS).open("ab") as file:
        file.write(b'{"problem_id":"torn')
    assert read_answers(tmp_path) == answers[:5]
    fixed = Fixed(content="no")
    with held_steps(tmp_path, {"policy": "fixed"}) as held:
        assert held == answers[:5]
        rest = shop.answers(fixed, skip=[(a.problem_id, a.turn) for a in held])
        assert len(rest) == len(fixed.asked) == len(answers) - 5
        append_answer(tmp_path, rest[0])
    assert read_answers(tmp_path) == [*answers[:5], rest[0]]


def test_a_message_without_a_role_is_the_assistants_as_in_a_rollout(shop: Shop) -> None:
    class NoRole(Fixed):
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            self.message.pop("role", None)
            return super().complete(body)

    call = calling("find_product", '{"q": "a", "page": 1}')
    assert shop.answers(NoRole(**call)) == shop.answers(Fixed(**call))


def test_two_conversations_of_one_problem_are_refused(shop: Shop) -> None:
    rows: list[CorpusRow] = [shop.rows[0], shop.rows[0]]
    with pytest.raises(InputError, match="two conversations"):
        list(answer_steps(rows, Fixed(), "m", lambda _: Toolbox(shop.world), {}))


def test_rollouts_can_be_held_to_a_length_and_old_folders_stay_good(
    shop: Shop, tmp_path: Path
) -> None:
    fixed = Fixed(content="no")
    policy = Policy("fixed", policy_agent("fixed", "m"), fixed)
    worlds = {shop.world.catalogue.catalogue_id: shop.world}
    for number, settings in enumerate((EvalSettings(), EvalSettings(max_tokens=7))):
        out = tmp_path / str(number)
        some = shop.made.problems[:2]
        evaluate_policy(policy, some, worlds, default_encoder(), out=out, settings=settings)
    assert [body.get("max_tokens") for body in fixed.asked] == [None, None, 7, 7]
    plain, held = (read_identity(tmp_path / str(at))["settings"] for at in (0, 1))
    assert "max_tokens" not in plain
    assert held == {**plain, "max_tokens": 7}


def test_the_command(shop: Shop, tmp_path: Path) -> None:
    write_catalogue(shop.made.catalogue, tmp_path / "catalogue")
    suite = Suite(suite_id="s", version="1", problems=shop.made.problems)
    write_suite(suite, tmp_path / "suite.json")
    (tmp_path / "heldout.jsonl").write_bytes(b"".join(to_json(r) + b"\n" for r in shop.rows))

    def call(model: str, *more: str) -> str:
        arguments = [
            *("eval", "steps", "--corpus", str(tmp_path), "--suite", str(tmp_path / "suite.json")),
            *("--catalogue", str(tmp_path / "catalogue"), "--out", str(tmp_path / model)),
            *("--model", model, *more),
        ]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "hasty: " in call("scripted-hasty", "--name", "hasty")
    text = call(TEACHER, "--against", str(tmp_path / "scripted-hasty"), "--json")
    plain = json.loads(text)
    assert plain["score"]["match"]["turns"]["rate"] == 1.0
    shown = call(TEACHER, "--against", str(tmp_path / "scripted-hasty"))
    assert f"on the same {plain['paired']['turns']} turns" in shown
    gained = {share["what"]: share["gained"] for share in plain["paired"]["shares"]}
    assert gained["match"] > 0
    assert call(TEACHER, "--json") != text, "without --against nothing is paired"
    with pytest.raises(ResumeError, match="max_tokens"):
        call(TEACHER, "--max-tokens", "9")


def test_answers_belong_to_the_catalogues_that_they_were_judged_in(
    shop: Shop, tmp_path: Path
) -> None:
    """Whether a tool takes a call, and whether two searches are one, is a matter of the world."""
    (name,) = {each.catalogue for each in shop.made.problems}
    fewer = list(shop.made.catalogue.products.values())[:-1]
    write_catalogue(shop.made.catalogue, tmp_path / "one")
    write_catalogue(Catalogue.from_products(name, fewer), tmp_path / "other")
    suite = Suite(suite_id="s", version="1", problems=shop.made.problems)
    write_suite(suite, tmp_path / "suite.json")
    (tmp_path / "heldout.jsonl").write_bytes(b"".join(to_json(r) + b"\n" for r in shop.rows))

    def call(out: str, catalogue: str, *more: str) -> str:
        arguments = [
            *("eval", "steps", "--corpus", str(tmp_path), "--suite", str(tmp_path / "suite.json")),
            *("--catalogue", str(tmp_path / catalogue), "--out", str(tmp_path / out)),
            *("--model", "scripted-hasty", *more),
        ]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    text = call("first", "one", "--limit", "4")
    assert "over conversations" in text
    with pytest.raises(ResumeError, match="catalogues"):
        call("first", "other", "--limit", "4")
    with pytest.raises(InputError, match="other catalogues"):
        call("second", "other", "--against", str(tmp_path / "first"))
    made = Provenance(
        kind="corpus",
        tool_version="1",
        config={},
        config_digest=digest({}),
        inputs={f"catalogue:{name}": shop.made.catalogue.digest},
        outputs={},
        counts={},
        seed=0,
    )
    write_manifest(made, tmp_path / "manifest.json")
    with pytest.raises(InputError, match="not the one of that name that the corpus was made in"):
        call("third", "other", "--limit", "4")
    assert not (tmp_path / "third").exists()
    call("first", "one", "--limit", "6")
