"""Generated web problems are solved by who reads the documents, and by hardly anybody else."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.agents.registry import ORACLE, find_agent
from palio.agents.spec import HARNESS, AgentSpec, agent_from_file
from palio.cli.main import app
from palio.judging import OutcomeScorer, default_encoder
from palio.records import ConfigError, DispatchEvent, Ending, digest
from palio.rollout.problem import run_problem
from palio.sandbox.choice import open_driver
from palio.sandbox.inline import InlineDriver
from palio.suites import read_suite
from palio.world import Toolbox, World, read_catalogue, world_of_catalogue
from palio.world.synthesis import (
    WebConfig,
    WebSynthesis,
    compact_config,
    full_config,
    synthesise_web,
)
from palio.world.tools import SEVEN_TOOLS
from tests.broker.conftest import Replies, completion
from tests.sandbox.conftest import driver_or_skip

READER = Path(__file__).parent / "web_reader.py"
"""A scripted policy: look the question up, follow a person's name, then search the catalogue."""


@cache
def made(world: str = "full") -> WebSynthesis:
    config = {"seed": 5, "world": world, "products": 700, "problems": 40}
    return synthesise_web(WebConfig(**config))  # type: ignore[arg-type]


@cache
def shop(world: str = "full") -> World:
    return world_of_catalogue(made(world).catalogue)


def success(spec: AgentSpec, world: str = "full") -> tuple[float, float]:
    """Share of problems solved, and the mean web score."""
    scorer = OutcomeScorer(made(world).catalogue.products, default_encoder())
    verdicts = []
    for problem in made(world).problems:
        run = run_problem(spec, problem, shop(world), driver=InlineDriver())
        assert run.ending == Ending.terminated
        verdicts.append(scorer.verdict(problem, run, "strict"))
    solved = sum(verdict.success for verdict in verdicts)
    return solved / len(verdicts), sum(v.scores["web"] for v in verdicts) / len(verdicts)


class TestScores:
    @pytest.mark.parametrize("world", ["full", "compact"])
    def test_reading_solves_them_and_the_first_hit_does_not(self, world: str) -> None:
        oracle = success(ORACLE, world)
        reader = success(agent_from_file(READER, name="reader"), world)
        first = success(find_agent("shortcut"), world)
        assert oracle == (1.0, 1.0)
        assert reader[0] >= 0.9
        assert first[0] <= 0.25
        assert first[1] < reader[1]

    def test_both_halves_of_the_score(self) -> None:
        problem, products = made().problems[0], made().catalogue.products
        scorer = OutcomeScorer(products, default_encoder())
        brand = problem.knowledge or ""
        family = made().base.families
        own = [p for p in products.values() if p.brand == brand]
        other_kind = next(p for p in own if not family[p.product_id].endswith(problem.title))
        scores, won = scorer.score_answer(problem, other_kind.product_id, "oro")
        assert (scores["keyword"], won) == (1.0, False)
        assert scores["web"] == (1.0 + scores["title"]) / 2
        stranger = next(p for p in products.values() if brand not in p.title + p.description)
        scores, _ = scorer.score_answer(problem, stranger.product_id, "oro")
        assert scores["keyword"] == 0.0


class TestProblems:
    def test_one_seed_one_world(self) -> None:
        again = synthesise_web(made().config)
        assert digest(again.problems) == digest(made().problems)
        assert again.documents == made().documents
        assert again.catalogue.digest == made().catalogue.digest
        other = synthesise_web(WebConfig(seed=6, products=700, problems=40))
        assert digest(other.problems) != digest(made().problems)

    def test_a_request_never_names_its_brand_and_documents_hold_it(self) -> None:
        texts = "\n".join(document.text for document in made().documents)
        for problem in made().problems:
            assert problem.knowledge
            assert problem.knowledge.casefold() not in problem.query.casefold()
            assert problem.knowledge in texts
            assert problem.reachable
            target = made().catalogue.products[problem.rewards[0].product_id]
            assert problem.knowledge.casefold() in target.title.casefold()

    def test_some_answers_need_two_documents(self) -> None:
        hard = [each for each in made().problems if each.difficulty == "hard"]
        assert 5 <= len(hard) <= 30
        toolbox = Toolbox(shop())
        direct = 0
        for problem in hard:
            found = json.loads(toolbox.call("web_search", {"q": problem.query}).result)
            direct += problem.knowledge in found[0]["title"] + found[0]["snippet"]
        assert direct <= len(hard) * 0.2

    def test_settings_that_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match="web problems"):
            synthesise_web(WebConfig(seed=1, products=100, problems=500))
        with pytest.raises(ConfigError, match="facts"):
            synthesise_web(WebConfig(seed=1, products=6_000, problems=5))

    def test_other_configurations_are_as_they_were(self) -> None:
        assert digest(compact_config(7)) == COMPACT_7
        assert digest(full_config(7)) == FULL_7

    def test_the_command(self, tmp_path: Path) -> None:
        out = str(tmp_path / "w")
        given = ["--kind", "web", "--products", "500", "--problems", "6", "--seed", "2"]
        run = CliRunner().invoke(app, ["world", "generate", "--out", out, *given])
        assert run.exit_code == 0, run.output
        catalogue, rejects = read_catalogue(tmp_path / "w")
        assert rejects == ()
        assert catalogue.documents
        suite = read_suite(tmp_path / "w" / "suite.json")
        assert [problem.kind for problem in suite.problems] == ["web"] * 6
        assert {problem.catalogue for problem in suite.problems} == {catalogue.catalogue_id}


class TestOffer:
    def test_web_problems_offer_it_to_the_model_and_over_http(self) -> None:
        spec = agent_from_file(HARNESS, name="policy", model="m")
        problem = made().problems[0]
        upstream = Replies(
            completion("", ("c1", "web_search", json.dumps({"q": problem.query}))),
            completion("", ("c2", "terminate", "{}")),
        )
        driver = driver_or_skip("bwrap")
        run = run_problem(spec, problem, shop(), driver=driver, upstream=upstream)
        offered = [tool["function"]["name"] for tool in upstream.bodies[0]["tools"]]
        assert offered == [*SEVEN_TOOLS, "web_search"]
        event = run.events[1]
        assert isinstance(event, DispatchEvent)
        assert len(json.loads(event.result)) == 5
        assert event.emitted_by == 0

    def test_agents_in_a_sandbox_reach_it(self) -> None:
        spec = agent_from_file(READER, name="reader")
        problem = next(each for each in made().problems if each.difficulty == "hard")
        driver = driver_or_skip("bwrap")
        run = run_problem(spec, problem, shop(), driver=driver)
        scorer = OutcomeScorer(made().catalogue.products, default_encoder())
        assert scorer.verdict(problem, run, "strict").success
        assert open_driver("bwrap").capabilities.ranked


COMPACT_7 = "sha256:3194e5cb0c55217aa0cf68768579f55c49ca7df05bc6aa1afba5a0f43aa21779"
FULL_7 = "sha256:96cd46299dc45651297bff8bbfcb3effa5133ab10e961b74043132bbffb953ec"
