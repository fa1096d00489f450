"""A corpus made of shards is the corpus that a build makes of the same traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from palio.cli.main import app
from palio.corpus.build import build
from palio.corpus.config import POOLS, CorpusConfig
from palio.corpus.funnel import Funnel, read_funnel
from palio.corpus.lineage import read_lineage
from palio.corpus.readers.sources import RawRecord
from palio.corpus.reading import TraceReader
from palio.corpus.rows import read_rows
from palio.corpus.shards import plan, run
from palio.corpus.shards.assembly import assemble
from palio.corpus.shards.columns import Kept, calls_in, table_of, trajectories_of
from palio.corpus.shards.screen import Screen
from palio.corpus.shards.shard import ROWS
from palio.corpus.verify import verify
from palio.judging.richness import richness_verdict
from palio.records import InputError, OutcomeVerdict, Problem, Reward, Suite
from palio.rollout.verdicts import Judged, Verdicts
from palio.suites import write_suite
from palio.world.artefacts import file_digest, read_manifest, write_manifest
from tests.corpus.making import JUDGE
from tests.shards.making import LENIENT, chat_row, write_rows

OPEN = replace(LENIENT.corpus, outcome="none", coefficient=0.0)


def problem(number: int) -> Problem:
    return Problem(
        problem_id=f"p{number}",
        kind="product",
        query=f"I want thing number {number} of colour {number * 7919}",
        rewards=(Reward(product_id=str(number), title=(f"secret{number} thing",)),),
        catalogue="c",
    )


PROBLEMS = tuple(problem(number) for number in range(12))


def rows() -> list[dict[str, Any]]:
    """Runs of the problems: equal ones, unknown ones, one that knew too much, one repeated id."""
    made = []
    for number in range(72):
        row = chat_row(number % 48, id=f"t{number:03}", problem_id=f"p{number % 12}")
        row["messages"][0]["content"] = PROBLEMS[number % 12].query
        made.append(row)
    made[3]["problem_id"] = ""  # its request tells
    made[5]["messages"][0]["content"] = "another text"
    made[7] |= {"problem_id": "nobody", "messages": chat_row(7)["messages"]}
    knowing = made[20]["messages"][1]["tool_calls"][0]["function"]
    knowing["arguments"] = json.dumps({"q": f"secret{20 % 12} thing"})
    made[30]["id"] = "t029"
    made[31]["messages"].pop()
    return made


def expected(path: Path, out: Path, config: CorpusConfig, given: dict[str, Verdicts]) -> Funnel:
    """The corpus that a build makes."""
    reader = TraceReader([path], problems=PROBLEMS)
    judged = (
        Judged(
            trajectory=one,
            verdicts=replace(
                given.get(one.trajectory_id, Verdicts()), richness=richness_verdict(one)
            ),
        )
        for one in reader
    )
    return build(judged, PROBLEMS, config, out)


def sharded(tmp_path: Path, made: Sequence[Any], parts: int = 3) -> Path:
    for part in range(parts):
        size = -(-len(made) // parts)
        rows_of = made[part * size : (part + 1) * size]
        write_rows(tmp_path / "in" / f"{part}.jsonl.zst", rows_of)
    run(plan([str(tmp_path / "in")], LENIENT, str(tmp_path / "shards")), executor="inline")
    return tmp_path / "shards"


def verdicts() -> dict[str, Verdicts]:
    def one(name: str, good: bool) -> Verdicts:
        ids: Any = {"trajectory_id": name, "problem_id": "", "judge": JUDGE}
        return Verdicts(
            outcomes=(OutcomeVerdict(**ids, profile="oro", status="scored", success=good),)
        )

    return {f"t{number:03}": one(f"t{number:03}", number % 3 > 0) for number in range(70)}


@pytest.mark.parametrize(
    "config",
    [
        OPEN,
        replace(OPEN, per_problem=2),
        replace(OPEN, outcome="oro"),
        replace(OPEN, near_duplicates=0.6, same_calls=True),
        replace(OPEN, fractions={"train": 0.5, "heldout": 0.2, "never-touch": 0.3}),
        replace(OPEN, oracle_search=False, per_cluster=3),
    ],
)
def test_shards_become_what_a_build_makes(tmp_path: Path, config: CorpusConfig) -> None:
    made = rows()
    given = verdicts() if config.outcome != "none" else {}
    shards = sharded(tmp_path, made)
    funnel = assemble(shards, PROBLEMS, config, tmp_path / "ours", verdicts=given)
    whole = write_rows(tmp_path / "whole.jsonl", made)
    theirs = expected(whole, tmp_path / "theirs", config, given)
    assert funnel.kept == theirs.kept > 0
    for pool in POOLS:
        ours = {row.trajectory_id: row for row in read_rows(tmp_path / "ours" / f"{pool}.jsonl")}
        wanted = {
            row.trajectory_id: row for row in read_rows(tmp_path / "theirs" / f"{pool}.jsonl")
        }
        assert ours == wanted
        table = {row.trajectory_id: row for row in read_rows(tmp_path / "ours" / f"{pool}.parquet")}
        assert table == wanted
    kept = {one.trajectory_id: one for one in read_lineage(tmp_path / "ours")}
    for one in read_lineage(tmp_path / "theirs"):
        same = replace(one, source=kept[one.trajectory_id].source)
        assert kept[one.trajectory_id] == same
    outcome = verify(tmp_path / "ours")
    assert outcome.good, outcome.findings
    assert read_funnel(tmp_path / "ours") == funnel


def test_an_older_corpus_leaves_no_file_behind(tmp_path: Path) -> None:
    shards, out = sharded(tmp_path, rows()), tmp_path / "out"
    assemble(shards, PROBLEMS, OPEN, out)
    held = read_manifest(out / "manifest.json")
    assert held is not None
    (out / "takedowns.json").write_text("[]")
    outputs = {**held.outputs, "takedowns.json": file_digest(out / "takedowns.json")}
    write_manifest(replace(held, outputs=outputs), out / "manifest.json")
    assemble(shards, PROBLEMS, OPEN, out)
    assert not (out / "takedowns.json").exists()
    assert read_manifest(out / "manifest.json") == held


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no shards"):
        assemble(tmp_path, PROBLEMS, OPEN, tmp_path / "out")
    shards = sharded(tmp_path, rows())
    other = replace(LENIENT, level=1)
    run(plan([str(tmp_path / "in" / "0.jsonl.zst")], other, str(shards)), executor="inline")
    with pytest.raises(InputError, match="several configurations"):
        assemble(shards, PROBLEMS, OPEN, tmp_path / "out")
    run(plan([str(tmp_path / "in")], LENIENT, str(shards)), executor="inline")
    victim = next(shards.glob(f"*{ROWS}"))
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(InputError, match="differs from its manifest"):
        assemble(shards, PROBLEMS, OPEN, tmp_path / "out")


def test_assemble_from_the_command_line(tmp_path: Path) -> None:
    shards = sharded(tmp_path, rows())
    suite = Suite(suite_id="s", version="1", problems=PROBLEMS)
    write_suite(suite, tmp_path / "suite.jsonl")
    (tmp_path / "c.toml").write_text('outcome = "none"\ncoefficient = 0.0\n')
    command = ["corpus", "assemble", str(shards), "--suite", str(tmp_path / "suite.jsonl")]
    command += ["--config", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out"), "--json"]
    ended = CliRunner().invoke(app, command, catch_exceptions=False)
    funnel = json.loads(ended.stdout)
    assert funnel["steps"][0]["name"] == "shards"
    assert verify(tmp_path / "out").good


def test_trajectories_of_any_part_of_a_table() -> None:
    """Slices, chunks and batches give the rows that the whole gives, calls with them."""
    screen = Screen("rows.jsonl", LENIENT)
    lines = [json.dumps(chat_row(number)).encode() for number in range(9)]
    kept = [row for n, line in enumerate(lines) for row in screen.take(RawRecord(n, line))]
    tables = [
        table_of([row for row in part if isinstance(row, Kept)]) for part in (kept[:4], kept[4:])
    ]
    whole = pa.concat_tables(tables).unify_dictionaries()
    every = list(trajectories_of(whole))
    assert [one.trajectory_id for one in every] == [f"t{n}" for n in range(9)]
    assert list(trajectories_of(whole.slice(3, 4))) == every[3:7]
    assert list(trajectories_of(tables[1].slice(1).to_batches()[0])) == every[5:]
    assert list(trajectories_of(whole.take([8, 2]))) == [every[8], every[2]]
    calls = [
        [(c.function.name, c.function.arguments) for m in one.messages for c in m.tool_calls]
        for one in every
    ]
    assert calls_in(whole["messages"]) == calls
    assert calls_in(whole.slice(3, 4)["messages"]) == calls[3:7]
