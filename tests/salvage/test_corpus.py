"""In a corpus, salvaged rows are marked, come in only on request, and never beyond their share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from palio.cli.corpus import app
from palio.corpus.build import build
from palio.corpus.candidate import Candidate
from palio.corpus.config import POOLS, CorpusConfig
from palio.corpus.funnel import Funnel
from palio.corpus.gates import without_oracle
from palio.corpus.lineage import read_lineage
from palio.corpus.ranking import Signals
from palio.corpus.rows import read_rows
from palio.corpus.salvage import salvaged_from
from palio.corpus.salvage.narrator import Narrator
from palio.corpus.salvage.oracle import oracle_words
from palio.corpus.salvage.rewrite import SalvageConfig, salvage_one
from palio.corpus.salvage.share import within_share
from palio.records import Suite, Trajectory, to_json
from palio.rollout.verdicts import Judged, Panel, judge_all
from palio.suites import write_suite
from palio.world.catalogue import write_catalogue
from tests.salvage.making import replayer, runs, table_runs, world_and_problems


def salvaged_runs() -> list[Trajectory]:
    made = [
        salvage_one(trajectory, replayer(), Narrator(), SalvageConfig())
        for trajectory in (*runs("narrator"), *runs("classifier"))
    ]
    return [each for each in made if isinstance(each, Trajectory)]


def judged(trajectories: Sequence[Trajectory]) -> list[Judged]:
    world, problems = world_and_problems()
    catalogue = world.catalogue
    panel = Panel(problems, {catalogue.catalogue_id: catalogue.products})
    return list(judge_all(trajectories, panel))


def built(out: Path, **choices: Any) -> Funnel:
    rows = judged([*runs("careful"), *salvaged_runs()])
    fractions = {"train": 1.0, "development": 0.0, "heldout": 0.0}
    config = CorpusConfig(outcome="none", fractions=fractions, **choices)
    return build(rows, world_and_problems()[1], config, out)


def rejected(funnel: Funnel) -> dict[str, int]:
    return {reason: n for step in funnel.steps for reason, n in step.rejected.items()}


def test_they_stay_out_unless_asked_for(tmp_path: Path) -> None:
    funnel = built(tmp_path)
    assert rejected(funnel)["salvaged"] == len(salvaged_runs())
    assert not any(salvaged_from(row.source) for row in read_lineage(tmp_path))


def test_they_come_in_marked_and_unjudged(tmp_path: Path) -> None:
    funnel = built(tmp_path, salvaged=True, salvaged_share=1.0)
    lineage = [row for row in read_lineage(tmp_path) if salvaged_from(row.source)]
    sources = {each.trajectory_id for each in (*runs("narrator"), *runs("classifier"))}
    assert lineage
    assert {salvaged_from(row.source) for row in lineage} <= sources
    assert {row.coefficient for row in lineage} == {None}
    assert {row.agent.model for row in lineage} == {Narrator.rewriter_id}
    rows = [row for pool in POOLS for row in read_rows(tmp_path / f"{pool}.jsonl")]
    marked = {row.trajectory_id for row in rows if row.agent.endswith("+salvage")}
    assert marked == {row.trajectory_id for row in lineage}
    assert funnel.agents["narrator+salvage"].kept > 0


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_their_share_of_a_pool_is_capped(tmp_path: Path, share: float) -> None:
    funnel = built(tmp_path, salvaged=True, salvaged_share=share)
    rows = list(read_rows(tmp_path / "train.jsonl"))
    salvaged = sum(row.agent.endswith("+salvage") for row in rows)
    own = len(rows) - salvaged
    assert salvaged <= share * len(rows) + 1e-9
    assert (salvaged + 1) > share * (own + salvaged + 1) or not rejected(funnel).get("over_share")


def candidate(name: str, problem: str, score: float, salvaged: bool) -> Candidate:
    return Candidate(
        trajectory_id=name,
        problem_id=problem,
        agent="narrator+salvage" if salvaged else "careful",
        place=(0, 0),
        conversation=name.encode(),
        signals=Signals(depth=0, reformulations=0, verification=0, regularity=0),
        score=score,
    )


ROWS = st.lists(st.tuples(st.sampled_from("pq"), st.floats(0, 1), st.booleans()), max_size=30)


@given(ROWS, st.floats(0, 1))
def test_the_share_holds_in_every_pool_and_no_more_than_needed_goes(
    rows: list[tuple[str, float, bool]], share: float
) -> None:
    every = [candidate(f"t{n}", *row) for n, row in enumerate(rows)]
    pools = {"p": "train", "q": "heldout"}
    kept, dropped = within_share(every, share, pools)
    assert sorted(c.trajectory_id for c in (*kept, *(c for c, _ in dropped))) == sorted(
        c.trajectory_id for c in every
    )
    assert all(row.salvaged for row, _ in dropped)
    for problem in "pq":
        mine = [row for row in kept if row.problem_id == problem]
        inside = [row for row in mine if row.salvaged]
        lost = [row for row, _ in dropped if row.problem_id == problem]
        assert len(inside) <= share * len(mine) + 1e-6
        if lost:
            assert len(inside) + 1 > share * (len(mine) + 1) - 1e-6
            assert max(r.standing for r in inside or lost[:1]) <= min(r.standing for r in lost)


def test_nothing_else_changes_when_there_is_nothing_salvaged(tmp_path: Path) -> None:
    rows, problems = judged(runs("careful")), world_and_problems()[1]
    one, two = tmp_path / "one", tmp_path / "two"
    build(rows, problems, CorpusConfig(), one)
    build(rows, problems, CorpusConfig(salvaged=True, salvaged_share=0.9), two)
    for name in ("train.jsonl", "provenance.jsonl", "funnel.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_a_table_of_titles_is_an_oracle_search() -> None:
    problems = world_and_problems()[1]
    gate = without_oracle({problem.problem_id: problem for problem in problems})
    caught = 0
    for problem, row in zip(problems, judged(runs("narrator")), strict=True):
        assert gate(row, CorpusConfig()) is None
        title = problem.rewards[0].title[0]
        asked = json.dumps({"q": title})
        words = oracle_words(problem.query, (title,), [("find_product", asked, "[]")])
        told = [("find_product", '{"q":"x"}', json.dumps([{"title": title}]))]
        assert oracle_words(problem.query, (title,), [*told, ("find_product", asked, "[]")]) == ()
        caught += bool(words)
    assert caught > len(problems) / 3  # the others' requests name every word of the title


def test_an_oracle_cannot_earn_its_words_by_viewing_an_id_from_a_table() -> None:
    view = ("view_product_information", '{"product_ids":"99"}', '[{"description":"vertex"}]')
    search = ("find_product", '{"q":"vertex"}', "[]")
    assert oracle_words("a mug", ("vaigro vertex mug",), [view, search]) == ("vertex",)
    escaped = ("find_product", '{"q":"\\u0076ertex"}', "[]")
    assert oracle_words("a mug", ("vaigro vertex mug",), [escaped]) == ("vertex",)
    assert oracle_words("a mug", ("the best mug",), [("find_product", '{"q":"best"}', "")]) == ()


def test_the_oracle_gate_can_be_switched_off() -> None:
    _, problems = world_and_problems()
    gate = without_oracle({problem.problem_id: problem for problem in problems})
    title = next(
        p for p in problems if oracle_words(p.query, p.rewards[0].title, [("find_product",
        json.dumps({"q": p.rewards[0].title[0]}), "")])
    )  # fmt: skip
    row = judged(runs("narrator"))[problems.index(title)]
    event = row.trajectory.dispatches[0]
    asked = json.dumps({"q": title.rewards[0].title[0]})
    events = (type(event)(seq=0, at_ms=0, duration_ms=0, tool="find_product", arguments=asked,
                          result="[]"),)  # fmt: skip
    cheat = replace(row, trajectory=replace(row.trajectory, events=events))
    drop = gate(cheat, CorpusConfig())
    assert drop is not None
    assert drop.reason == "oracle_search"
    assert gate(cheat, CorpusConfig(oracle_search=False)) is None


def test_the_command_writes_rows_that_build_takes(tmp_path: Path) -> None:
    world, problems = world_and_problems()
    write_catalogue(world.catalogue, tmp_path / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=problems), tmp_path / "suite.json")
    traces = [*runs("narrator"), *runs("careful"), *table_runs(tmp_path)]
    lines = b"".join(to_json(each) + b"\n" for each in traces)
    (tmp_path / "trajectories.jsonl").write_bytes(lines + b"no json\n")
    common = ["--catalogue", str(tmp_path / "catalogue"), "--suite", str(tmp_path / "suite.json")]

    def run(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words, *common, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    path = str(tmp_path / "trajectories.jsonl")
    report = run("salvage", path, "--out", str(tmp_path / "salvaged"))
    assert report["rejected"]["unreadable_json"] == 1
    assert report["rejected"]["underivable"] > 0
    assert report["salvaged"] > 0
    assert report["agents"]["careful"]["salvaged"] == 0
    (tmp_path / "corpus.toml").write_text("salvaged = true\nsalvaged_share = 1.0\n")
    funnel = run(
        *("build", "--trajectories", str(tmp_path / "salvaged"), "--workers", "1"),
        *("--config", str(tmp_path / "corpus.toml"), "--out", str(tmp_path / "corpus")),
    )
    kept = sum(pool["rows"] for pool in funnel["pools"].values())
    assert 0 < kept <= report["salvaged"]
