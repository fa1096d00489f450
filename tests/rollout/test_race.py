"""`palio race` runs, judges and ranks from the command line, and goes on where it stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from palio.agents.registry import find_agent
from palio.agents.template import write_template
from palio.arena.standings import Standings
from palio.cli.agent import app as agent_app
from palio.cli.race import app
from palio.judging.store import VERDICTS, read_verdicts
from palio.records import ConfigError, InputError, ResumeError, Suite, from_json
from palio.rollout.suite import world_of
from palio.rollout.trial import try_agent
from palio.suites.files import write_suite
from palio.world.catalogue import Catalogue, write_catalogue
from tests.broker.conftest import PROBLEM, tiny_world
from tests.rollout.agents import small

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="palio race encloses agents with bubblewrap"
)


@pytest.fixture
def arena(tmp_path: Path) -> list[str]:
    """Options that name a small suite, its catalogue and a run folder."""
    world, problems = small()
    write_catalogue(world.catalogue, tmp_path / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=problems[:6]), tmp_path / "suite.json")
    return [
        *("--suite", str(tmp_path / "suite.json")),
        *("--catalogue", str(tmp_path / "catalogue")),
        *("--out", str(tmp_path / "out")),
    ]


def palio(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_race_of_bundled_agents(arena: list[str], tmp_path: Path) -> None:
    result = palio("--agents", "careful,hasty,crash,oracle", *arena, "--json")
    made = from_json(result.stdout, Standings)
    by_name = {row.agent: row for row in (*made.ranked, *made.unranked, *made.ineligible)}
    assert set(by_name) == {"careful", "hasty", "crash", "oracle"}
    assert made.ranked[0].agent == "careful"
    assert by_name["oracle"].successes == 6
    assert by_name["oracle"].rank is None
    assert (by_name["crash"].n, by_name["crash"].final) == (6, 0.0)
    assert "24 runs in" in result.stderr
    verdicts = list(read_verdicts(tmp_path / "out" / VERDICTS))
    assert len(verdicts) == 24 * 5

    again = palio("--agents", "careful,hasty,crash,oracle", *arena, "--json")
    assert "0 runs in" in again.stderr
    assert "24 were there already" in again.stderr
    assert json.loads(again.stdout) == json.loads(result.stdout)
    assert len(list(read_verdicts(tmp_path / "out" / VERDICTS))) == 24 * 5
    assert json.loads(palio("show", str(tmp_path / "out"), "--json").stdout)["problems"] == 6


def test_inline_runs_are_never_ranked(arena: list[str]) -> None:
    result = palio("--agents", "hasty", *arena, "--inline", "--limit", "2", "--json")
    made = from_json(result.stdout, Standings)
    assert not made.ranked
    assert [row.n for row in made.ineligible] == [2]


def test_an_agent_file_and_a_policy(arena: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(Path(find_agent("shortcut").path).read_text())
    result = palio(
        *("--agents", str(path), "--policy", "scripted-terse"), *arena, "--limit", "1"
    )  # fmt: skip
    assert "mine" in result.stdout
    assert "scripted-terse" in result.stdout


def test_a_new_agent_races_as_it_was_tried(arena: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    write_template(path)
    made = from_json(palio("--agents", str(path), *arena, "--json").stdout, Standings)
    assert [(row.agent, row.successes) for row in made.ranked] == [("mine", 6)]
    arena[-1] = str(tmp_path / "other")
    hasty = palio("--agents", str(path), "--model", "scripted-hasty", *arena, "--json")
    assert from_json(hasty.stdout, Standings).ranked[0].successes < 6


def test_refusals_are_clear(arena: list[str], tmp_path: Path) -> None:
    assert palio().exit_code == 2
    with pytest.raises(InputError, match="did you mean careful"):
        palio("--agents", "carefull", *arena)
    with pytest.raises(ConfigError, match="choose upstream, oro, strict"):
        palio("--agents", "hasty", *arena, "--profile", "best")
    with pytest.raises(InputError, match="no standings"):
        palio("show", str(tmp_path))
    palio("--agents", "hasty", *arena, "--limit", "1")
    with pytest.raises(ResumeError, match=r"seeds: \[0\] -> \[4\]"):
        palio("--agents", "hasty", *arena, "--limit", "1", "--seed", "4")


def test_nothing_to_race_and_two_catalogues_of_one_name(arena: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to race"):
        palio("--agents", ",", *arena)
    other = Catalogue.from_products(small()[0].catalogue.catalogue_id, tiny_world().catalogue)
    write_catalogue(other, tmp_path / "other")
    with pytest.raises(ConfigError, match="two catalogues are called"):
        palio("--agents", "hasty", *arena, "--catalogue", str(tmp_path / "other"))


def test_problems_find_their_world() -> None:
    world = tiny_world()
    assert world_of(PROBLEM, {"tiny": world, "b": world}) is world
    with pytest.raises(ConfigError, match="given are: a, b"):
        world_of(PROBLEM, {"a": world, "b": world})


def test_trying_an_agent_out() -> None:
    rows = try_agent(find_agent("careful"), problems=3)
    assert [row["kind"] for row in rows] == ["product", "shop", "voucher"]
    assert all(row["ending"] == "terminated" for row in rows)
    assert all(set(row["success"]) == {"upstream", "oro", "strict"} for row in rows)
    json.dumps(rows)


def test_a_race_that_nothing_counts_in_fails_and_says_why(arena: list[str]) -> None:
    """It exited with 0 before, so that a script took a dead model server for a finished race."""
    dead = ("--model-url", "http://127.0.0.1:9/v1", "--retries", "0", "--limit", "1")
    result = palio("--policy", "m", *dead, *arena)
    assert result.exit_code == 1
    assert "no run was scored: all 1 are open" in result.stderr
    assert "run the same command again" in result.stderr


def test_a_few_problems_are_of_all_kinds(arena: list[str], tmp_path: Path) -> None:
    suite = Suite(suite_id="s", version="1", problems=small()[1])
    write_suite(suite, tmp_path / "suite.json")
    palio("--agents", "hasty", *arena, "--inline", "--limit", "3")
    rows = (tmp_path / "out" / "trajectories.jsonl").read_text().splitlines()
    assert {json.loads(row)["kind"] for row in rows} == {"product", "shop", "voucher"}


def test_an_agent_file_at_a_model_server_needs_a_model(arena: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(Path(find_agent("careful").path).read_text())
    with pytest.raises(ConfigError, match="asks for no model by itself"):
        palio("--agents", str(path), "--model-url", "http://127.0.0.1:9/v1", *arena)
    result = CliRunner().invoke(
        agent_app, ["test", str(path), "--model-url", "http://127.0.0.1:9/v1"]
    )
    assert isinstance(result.exception, ConfigError)


def test_a_model_that_nothing_answers_for_is_refused_not_raced(
    arena: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(Path(find_agent("careful").path).read_text())
    for asked in (["--policy", "bundled"], ["--agents", str(path), "--model", "scripted-cafeful"]):
        with pytest.raises(ConfigError, match="none is called .*(bundled|cafeful)"):
            palio(*asked, *arena)
    tried = CliRunner().invoke(agent_app, ["test", str(path), "--model", "scripted-cafeful"])
    assert isinstance(tried.exception, ConfigError)
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_named(arena: list[str]) -> None:
    result = palio("--agents", "hasty", *arena[:2])
    assert result.exit_code == 2
    assert "missing: --catalogue, --out" in result.stderr
    assert palio("--help").stdout.count("Required") == 4
