"""Assembled shards pass the gates of a build: judged, scrubbed and counted by the same code."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from msgspec.structs import replace
from typer.testing import CliRunner

from palio.cli.main import app
from palio.corpus.build import build
from palio.corpus.card import About, measure
from palio.corpus.config import POOLS, CorpusConfig
from palio.corpus.reading import TraceReader
from palio.corpus.shards import ShardConfig, plan, run
from palio.corpus.shards.assembly import Judge, assemble
from palio.corpus.verify import verify
from palio.judging.encoders import default_encoder
from palio.records import (
    JudgeId,
    Product,
    ReasoningVerdict,
    Suite,
    Trajectory,
    to_json,
)
from palio.rollout.verdicts import Judged, Panel, judge_all
from palio.suites import write_suite
from palio.world.artefacts import read_manifest
from palio.world.catalogue import Catalogue, write_catalogue
from tests.corpus.making import good_turns, made_problems, made_trajectory
from tests.shards.making import chat_row

PROBLEMS = made_problems(24)
PRODUCTS = {
    p.rewards[0].product_id: Product(
        product_id=p.rewards[0].product_id, shop_id="s1", title=p.rewards[0].title[0], price=12.0
    )
    for p in PROBLEMS
}
SECRETS = (
    "write to ann.lee@example.org",
    "call +63 917 555 0134 now",
    "Authorization: Bearer abcdefghijklmnopqrstuvwx0123",
    "my key is sk-or-v1-0123456789abcdef0123456789abcdef",
    "from 93.184.216.34",
)
PLAIN = ("ann.lee@example.org", "917 555 0134", "abcdefghijklmnopqrstuvwx0123", "0123456789abcdef0",
         "93.184.216.34")  # fmt: skip
CONFIG = CorpusConfig(
    scrub=("secrets", "personal"), per_problem=9, token_budget=20_000, coefficient=0.5
)


class Moody:
    """A judge whose coefficient follows from the run's id: a third of the runs is too low."""

    judge_id = JudgeId(name="moody", version="1")

    def verdict(self, trajectory: Trajectory) -> ReasoningVerdict:
        low = random.Random(trajectory.trajectory_id).random() < 0.33
        return ReasoningVerdict(
            trajectory_id=trajectory.trajectory_id,
            problem_id=trajectory.problem_id,
            judge=self.judge_id,
            status="judged",
            quality=0.1 if low else 0.9,
            coefficient=0.3875 if low else 1.0,
        )


def own_run(number: int) -> Trajectory:
    """A run of palio's own with one fault, or none, and in one of four a secret."""
    problem = PROBLEMS[number % 24]
    product = problem.rewards[0].product_id
    fault = number % 10
    note = f"try {number}" + (f" {SECRETS[number % 5]}" if number % 4 == 0 else "")
    turns = list(good_turns("4711" if fault == 1 else product, note))
    if fault == 2:
        turns = turns[:2]  # nothing is recommended
    fields: dict[str, Any] = {"emitted": False} if fault == 3 else {}
    name = f"r{number:03}" if fault != 4 else f"r{number - 1:03}"
    return made_trajectory(name, problem, turns, agent=f"agent-{number % 3}", **fields)


def foreign(number: int) -> dict[str, Any]:
    """A stranger's chat row of a problem that its request tells."""
    problem = PROBLEMS[number % 24]
    text = json.dumps(chat_row(number, id=f"f{number % 50}", problem_id=""))
    text = text.replace(f'"{1000 + number}"', f'"{problem.rewards[0].product_id}"')
    row: dict[str, Any] = json.loads(
        text.replace(f'\\"{1000 + number}\\"', f'\\"{problem.rewards[0].product_id}\\"')
    )
    row["messages"][0]["content"] = problem.query
    if number % 4 == 0:
        row["messages"][1]["reasoning_content"] += f" {SECRETS[number % 5]}"
    return row


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files with 360 traces of two formats, and a line that nobody can read."""
    folder = tmp_path_factory.mktemp("traces")
    for part in range(4):
        lines = [to_json(own_run(n)) for n in range(part * 60, part * 60 + 60)]
        lines += [json.dumps(foreign(n)).encode() for n in range(part * 30, part * 30 + 30)]
        data = b"\n".join([*lines, b"not json", b""])
        (folder / f"{part}.jsonl.zst").write_bytes(zstandard.compress(data))
    return folder


def judge() -> Judge:
    panel = Panel(PROBLEMS, {"compact-1": PRODUCTS}, encoder=default_encoder(), judge=Moody())

    def judged(trajectories: Iterator[Trajectory]) -> Iterator[Judged]:
        return judge_all(trajectories, panel)

    return judged


def texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(data).read()
        yield path.name, data


def test_hundreds_of_traces_become_what_a_build_makes_of_them(traces: Path, tmp_path: Path) -> None:
    pytest.importorskip("detect_secrets", reason="scrubbing needs the extra `scrub`")
    reader = TraceReader([traces], problems=PROBLEMS)
    wanted = build(
        judge()(iter(reader)), PROBLEMS, CONFIG, tmp_path / "theirs", unread=reader.rejects
    )
    shards = tmp_path / "shards"
    run(plan([str(traces)], ShardConfig(corpus=CONFIG), str(shards)), executor="inline")
    funnel = assemble(shards, PROBLEMS, CONFIG, tmp_path / "ours", judge=judge())
    assert (funnel.taken, funnel.kept) == (wanted.taken, wanted.kept)
    assert 100 < funnel.kept < 250
    for name in (*(f"{p}.{end}" for p in POOLS for end in ("jsonl", "parquet")), "pools.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    assert funnel.steps[0].name == "shards"
    told = funnel.counts()
    assert told == wanted.counts()
    for reason in ("coefficient_low", "unresolved_product", "repeated_id", "recommend_missing",
                   "axis_subtask", "unreadable_json"):  # fmt: skip
        assert told[f"rejected:{reason}"] > 0, reason
    steps = {step.name: step for step in funnel.steps}
    assert steps["reasoning"].rejected["coefficient_low"] > 20
    ours, theirs = (read_manifest(tmp_path / each / "manifest.json") for each in ("ours", "theirs"))
    assert ours is not None
    assert theirs is not None
    assert ours.counts == theirs.counts
    assert ours.counts["scrubbed:email"] > 0
    stats = measure(tmp_path / "ours", About())
    assert stats.scrubbed == measure(tmp_path / "theirs", About()).scrubbed
    assert {step.name for step in stats.funnel.steps} >= {"shards", "reasoning"}
    for name, data in texts(tmp_path / "ours"):
        assert not any(secret.encode() in data for secret in PLAIN), name
    outcome = verify(tmp_path / "ours")
    assert outcome.whole, outcome


def test_what_is_scrubbed_and_not_judged_has_the_verdicts_at_hand(
    traces: Path, tmp_path: Path
) -> None:
    pytest.importorskip("detect_secrets", reason="scrubbing needs the extra `scrub`")
    given = {
        one.trajectory.trajectory_id: one.verdicts
        for one in judge()(iter(TraceReader([traces], problems=PROBLEMS)))
    }
    shards = tmp_path / "shards"
    run(plan([str(traces)], ShardConfig(corpus=CONFIG), str(shards)), executor="inline")
    scrubbed = assemble(shards, PROBLEMS, CONFIG, tmp_path / "a", verdicts=given)
    plain = replace(CONFIG, scrub=())
    fast = assemble(shards, PROBLEMS, plain, tmp_path / "b", verdicts=given)
    assert scrubbed.kept == fast.kept > 100
    assert scrubbed.steps[0] == fast.steps[0]


def test_the_command_judges_scrubs_and_a_day_can_follow(traces: Path, tmp_path: Path) -> None:
    pytest.importorskip("detect_secrets", reason="scrubbing needs the extra `scrub`")
    write_catalogue(Catalogue.from_products("compact-1", PRODUCTS.values()), tmp_path / "cat")
    write_suite(Suite(suite_id="s", version="1", problems=PROBLEMS), tmp_path / "suite.json")
    (tmp_path / "c.toml").write_text(
        'scrub = ["secrets", "personal"]\nper_problem = 9\n'
        "token_budget = 20000\ncoefficient = 0.3\n"
    )
    shared = ["--suite", tmp_path / "suite.json", "--catalogue", tmp_path / "cat", "--json"]
    shared += ["--config", tmp_path / "c.toml", "--workers", "1"]

    def palio(*words: object) -> dict[str, Any]:
        ended = CliRunner().invoke(app, ["corpus", *map(str, words)], catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    shard = ("shard", traces, "--config", tmp_path / "c.toml", "--executor", "inline", "--json")
    palio(*shard, "--out", tmp_path / "shards")
    ours = palio("assemble", tmp_path / "shards", *shared, "--out", tmp_path / "ours")
    theirs = palio("build", "--trajectories", traces, *shared, "--out", tmp_path / "theirs")
    assert ours["pools"] == theirs["pools"]
    assert sum(pool["rows"] for pool in ours["pools"].values()) > 100
    more = [to_json(replace(own_run(n), trajectory_id=f"d{n}")) for n in range(0, 60, 10)]
    (tmp_path / "day.jsonl").write_bytes(b"\n".join([*more, b""]))
    days = [
        palio("daily", "--previous", tmp_path / name, "--trajectories", tmp_path / "day.jsonl",
              *shared, "--out", tmp_path / f"{name}-2")
        for name in ("ours", "theirs")
    ]  # fmt: skip
    assert days[0]["pools"] == days[1]["pools"]
    for pool in POOLS:
        grown = [
            (tmp_path / f"{name}-2" / f"{pool}.jsonl").read_bytes() for name in ("ours", "theirs")
        ]
        assert grown[0] == grown[1]
    assert days[0]["steps"][0]["name"] == "shards"
    assert days[0]["steps"][0]["taken"] == ours["steps"][0]["taken"] + 6
    assert verify(tmp_path / "ours-2").good
