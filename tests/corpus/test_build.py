"""A corpus loses nothing, leaks nothing, does not depend on arrival order, and appears whole."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palio.corpus.build import build, read_pools
from palio.corpus.check import check_corpus
from palio.corpus.config import POOLS, CorpusConfig
from palio.corpus.funnel import Funnel, FunnelStep, read_funnel
from palio.corpus.lineage import read_lineage
from palio.corpus.rows import read_rows
from palio.corpus.spool import REJECTS
from palio.records import IntegrityError, Problem, Provenance, bytes_digest, from_json
from palio.rollout.verdicts import Judged
from palio.suites import check_disjoint
from tests.corpus.making import made_problems, made_row
from tests.suites.making import made_problem, problem_sets

THIRDS = {"train": 0.4, "development": 0.3, "heldout": 0.3}
CONFIG = CorpusConfig(fractions=THIRDS, salt="s", per_problem=2)


def rejects(folder: Path) -> list[dict[str, object]]:
    with (folder / REJECTS).open("rb") as file:
        text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8")
        return [json.loads(line) for line in text]


def mixed_rows(problems: tuple[Problem, ...]) -> list[Judged]:
    """For each problem three good runs, a copy of one, a failure, a sub-task run and a stray."""
    rows = []
    for n, problem in enumerate(problems):
        rows += [made_row(f"good-{n}-{k}", problem, agent=f"agent-{k}") for k in range(3)]
        copy = made_row(f"good-{n}-0", problem, prefix="other")
        again = msgspec.structs.replace(copy.trajectory, trajectory_id=f"copy-{n}")
        rows.append(msgspec.structs.replace(copy, trajectory=again))
        rows.append(made_row(f"failed-{n}", problem, success=False))
        rows.append(made_row(f"harness-{n}", problem, emitted=False, richness=0.0))
        rows.append(made_row(f"stray-{n}", made_problem(f"nobody-{n}")))
    return rows


def test_a_corpus_is_complete_and_accounts_for_every_row(tmp_path: Path) -> None:
    problems = made_problems(12)
    rows = mixed_rows(problems)
    funnel = build(rows, problems, CONFIG, tmp_path, inputs={"suite": "sha256:x"})
    assert funnel.taken == len(rows) == 84
    assert funnel.kept == 24
    assert [(s.name, s.rejected) for s in funnel.steps if s.rejected] == [
        ("known", {"unknown_problem": 12}),
        ("axis", {"axis_subtask": 12}),
        ("outcome", {"outcome_failed": 12}),
        ("duplicates", {"duplicate": 12}),
        ("cap", {"over_cap": 12}),
    ]
    assert read_funnel(tmp_path) == funnel
    kept = [row for pool in POOLS for row in read_rows(tmp_path / f"{pool}.jsonl")]
    dropped = rejects(tmp_path)
    ids = {row.trajectory_id for row in kept} | {row["trajectory_id"] for row in dropped}
    assert ids == {row.trajectory.trajectory_id for row in rows}
    assert len(kept) + len(dropped) == len(rows)
    assert {name for name, count in funnel.agents.items() if count.kept} <= {
        "agent-0",
        "agent-1",
        "agent-2",
        "careful",
    }


def test_rejected_rows_are_kept_whole(tmp_path: Path) -> None:
    problem = made_problem("p", ("7001",))
    row = made_row("t", problem, success=False)
    build([row], [problem], CONFIG, tmp_path / "whole")
    found = rejects(tmp_path / "whole")[0]
    assert (found["step"], found["reason"], found["agent"]) == (
        "outcome",
        "outcome_failed",
        "careful",
    )
    assert msgspec.convert(found["judged"], Judged) == row
    slim = msgspec.structs.replace(CONFIG, keep_bodies=False)
    build([row], [problem], slim, tmp_path / "slim")
    assert "judged" not in rejects(tmp_path / "slim")[0]


def test_the_manifest_names_every_file_and_its_digest(tmp_path: Path) -> None:
    problems = made_problems(6)
    build(mixed_rows(problems), problems, CONFIG, tmp_path, inputs={"suite": "sha256:x"})
    manifest = from_json((tmp_path / "manifest.json").read_bytes(), Provenance)
    assert manifest.kind == "corpus"
    assert manifest.config_digest == CONFIG.digest()
    assert manifest.config["per_problem"] == 2
    assert set(manifest.inputs) == {"suite", "trajectories", "problems"}
    assert manifest.counts["in"] == 42
    assert manifest.counts["rejected:over_cap"] == 6
    files = {path.name for path in tmp_path.iterdir()} - {"manifest.json"}
    assert set(manifest.outputs) == files
    assert files == {
        *(f"{pool}.{kind}" for pool in POOLS for kind in ("jsonl", "parquet")),
        "provenance.jsonl",
        "rejects.jsonl.zst",
        "funnel.json",
        "pools.json",
        "problems.jsonl",
        "certificate.json",
    }
    for name, digest in manifest.outputs.items():
        assert bytes_digest((tmp_path / name).read_bytes()) == digest


def test_every_kept_row_has_its_lineage(tmp_path: Path) -> None:
    problems = made_problems(6)
    build(mixed_rows(problems), problems, CONFIG, tmp_path)
    rows = {
        row.trajectory_id: (pool, row)
        for pool in POOLS
        for row in read_rows(tmp_path / f"{pool}.jsonl")
    }
    lineage = list(read_lineage(tmp_path))
    assert [line.trajectory_id for line in lineage] == sorted(rows)
    for line in lineage:
        pool, row = rows[line.trajectory_id]
        assert (line.pool, line.cluster_id, line.agent.name) == (pool, row.cluster_id, row.agent)
        assert line.coefficient == 1.0
        assert line.richness == 1.0
        assert line.success("oro")
        assert not line.success("strict")


def pool_files(folder: Path) -> dict[str, bytes]:
    names = [*(f"{p}.{kind}" for p in POOLS for kind in ("jsonl", "parquet")), "provenance.jsonl"]
    return {name: (folder / name).read_bytes() for name in (*names, "funnel.json", "manifest.json")}


def test_arrival_order_does_not_matter(tmp_path: Path) -> None:
    problems = made_problems(8)
    rows = mixed_rows(problems)
    build(rows, problems, CONFIG, tmp_path / "one")
    Random(3).shuffle(rows)
    build(rows, list(reversed(problems)), CONFIG, tmp_path / "other")
    one, other = pool_files(tmp_path / "one"), pool_files(tmp_path / "other")
    assert one.keys() == other.keys()
    for name in one:
        if name != "manifest.json":
            assert one[name] == other[name], name
    inputs = [from_json(files["manifest.json"], Provenance).inputs for files in (one, other)]
    assert inputs[0] == inputs[1]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem_sets(most=8), st.data())
def test_in_is_kept_plus_rejected_and_pools_share_nothing(
    tmp_path: Path, problems: tuple[Problem, ...], data: st.DataObject
) -> None:
    rows = []
    for number in range(data.draw(st.integers(0, 12))):
        problem = data.draw(st.sampled_from([*problems, made_problem("stray")]))
        rows.append(
            made_row(
                f"t{number}",
                problem,
                success=data.draw(st.booleans()),
                quality=data.draw(st.sampled_from([None, 0.1, 0.9])),
                richness=data.draw(st.sampled_from([None, 0.0, 0.5, 1.0])),
            )
        )
    funnel = build(rows, problems, CONFIG, tmp_path / "c")
    for step in funnel.steps:
        assert step.taken == step.kept + sum(step.rejected.values())
    assert funnel.taken == len(rows)
    assert len(rejects(tmp_path / "c")) == funnel.taken - funnel.kept
    by_id = {problem.problem_id: problem for problem in problems}
    pools = {
        pool: [by_id[row.problem_id] for row in read_rows(tmp_path / "c" / f"{pool}.jsonl")]
        for pool in POOLS
    }
    check_disjoint(pools)
    assert sum(len(rows) for rows in pools.values()) == funnel.kept


def test_an_earlier_split_is_kept_when_problems_are_added(tmp_path: Path) -> None:
    old, more = made_problems(10), made_problems(40)
    build(mixed_rows(old), old, CONFIG, tmp_path / "old")
    before = read_pools(tmp_path / "old")
    other = msgspec.structs.replace(CONFIG, salt="another")
    build(mixed_rows(more), more, other, tmp_path / "more", previous=before)
    after = read_pools(tmp_path / "more")
    assert {name: after[name] for name in before} == before
    assert len(after) == 40


def test_a_join_of_two_pools_stops_the_build_and_leaves_the_old_corpus(tmp_path: Path) -> None:
    problems = (made_problem("a", ("1",)), made_problem("b", ("2",)))
    build(mixed_rows(problems), problems, CONFIG, tmp_path)
    before = pool_files(tmp_path)
    bridged = (*problems, made_problem("bridge", ("1", "2")))
    with pytest.raises(IntegrityError, match="now joined"):
        build([], bridged, CONFIG, tmp_path, previous={"a": "train", "b": "heldout"})
    assert pool_files(tmp_path) == before


def test_a_leak_in_the_files_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = (made_problem("a", ("1",)), made_problem("b", ("1",)))
    rows = mixed_rows(problems)
    monkeypatch.setattr(
        "palio.corpus.separation.assign_pools", lambda *_: {"a": "train", "b": "heldout"}
    )
    with pytest.raises(IntegrityError, match="share row cluster"):
        build(rows, problems, CONFIG, tmp_path)
    assert not list(tmp_path.iterdir())


def test_equal_user_texts_in_two_pools_are_found_even_without_the_text_edge(tmp_path: Path) -> None:
    problems = tuple(
        made_problem(f"p{n}", (str(n),), query="the  SAME wish" if n % 2 else "the same wish")
        for n in range(30)
    )
    blind = msgspec.structs.replace(CONFIG, edges=("product", "spec"))
    with pytest.raises(IntegrityError, match="share user text 'the same wish'"):
        build(mixed_rows(problems), problems, blind, tmp_path / "blind")
    funnel = build(mixed_rows(problems), problems, CONFIG, tmp_path / "seeing")
    assert sorted(count.rows for count in funnel.pools.values()) == [0, 0, 60]
    assert [count.queries for count in funnel.pools.values() if count.rows] == [1]


def test_the_check_counts_parquet_rows(tmp_path: Path) -> None:
    problems = made_problems(8)
    build(mixed_rows(problems), problems, CONFIG, tmp_path)
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(IntegrityError, match=r"train\.parquet"):
        check_corpus(tmp_path, {problem.problem_id: problem for problem in problems})


def test_a_repeated_id_and_another_wording_are_counted(tmp_path: Path) -> None:
    problem = made_problem("p", ("7001",))
    row = made_row("t", problem)
    reworded = msgspec.structs.replace(row.trajectory, trajectory_id="u", query="other words")
    funnel = build(
        [row, row, msgspec.structs.replace(row, trajectory=reworded)], [problem], CONFIG, tmp_path
    )
    assert funnel.steps[1].rejected == {"other_query": 1, "repeated_id": 1}
    assert funnel.kept == 1


def test_nothing_in_gives_an_empty_corpus(tmp_path: Path) -> None:
    funnel = build([], [], CONFIG, tmp_path)
    assert (funnel.taken, funnel.kept) == (0, 0)
    assert list(read_rows(tmp_path / "train.parquet")) == []


@pytest.mark.parametrize(
    "steps",
    [
        (FunnelStep(name="a", taken=3, kept=1, rejected={"x": 1}),),
        (
            FunnelStep(name="a", taken=3, kept=2, rejected={"x": 1}),
            FunnelStep(name="b", taken=1, kept=1, rejected={}),
        ),
    ],
)
def test_a_funnel_that_lost_a_row_is_refused(steps: tuple[FunnelStep, ...]) -> None:
    with pytest.raises(IntegrityError, match="'[ab]'"):
        Funnel(steps=steps).check()
