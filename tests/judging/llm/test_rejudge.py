"""Stored runs are judged anew without running anything: old verdicts stay, a kill loses nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from typer.testing import CliRunner

pytest.importorskip("openai", reason="a judge that asks a model needs the extra `judge`")

from palio.cli import judge as judge_cli
from palio.judging.llm.injection import packaged_bases
from palio.judging.llm.replies import ReplyCache
from palio.judging.llm.server import Reply
from palio.judging.store import VERDICTS, read_verdicts, reasoning_by_judge
from palio.records import ReasoningVerdict, to_json
from tests.judging.llm.modelserver import GOOD, ModelServer, always, completion

BASES = {run.trajectory_id: run for run in packaged_bases()}
RUNS = 60
TEXT = json.dumps(GOOD)
PALIO = [sys.executable, "-c", "from palio.cli.main import run; run()"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs that all differ, half of them rhetoric; both judged by evidence."""
    made = [
        msgspec.structs.replace(
            BASES["one_candidate" if n % 2 else "rhetoric"], trajectory_id=f"t{n}", query=f"q {n}"
        )
        for n in range(RUNS)
    ]
    rows = b"".join(to_json(run) + b"\n" for run in made)
    (tmp_path / "trajectories.jsonl").write_bytes(rows)
    first = CliRunner().invoke(judge_cli.app, ["run", str(tmp_path)])
    assert first.exit_code == 0, first.output
    return tmp_path


def config(folder: Path, url: str, **fields: Any) -> str:
    extra = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    text = (
        f'name = "model"\nconcurrency = 4\n[[members]]\nmodel = "judge-1"\n{extra}'
        f'endpoints = [{{ url = "{url}" }}]\n[prices."judge-1"]\ninput = 1.0\noutput = 2.0\n'
    )
    path = folder / "judge.toml"
    path.write_text(text)
    return f"llm:{path}"


def rejudge(folder: Path, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(judge_cli.app, ["rejudge", str(folder), *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_what_changed_is_shown_and_old_verdicts_stay(folder: Path) -> None:
    before = (folder / VERDICTS).read_bytes()
    with ModelServer(always(TEXT)) as server:
        judge = config(folder, server.url)
        shown = rejudge(folder, "--judge", judge)
        asked = len(server.bodies)
        again = rejudge(folder, "--judge", judge)
        table = CliRunner().invoke(judge_cli.app, ["rejudge", str(folder), "--judge", judge])
        assert len(server.bodies) == asked, "what is judged already is not asked again"
    assert (folder / VERDICTS).read_bytes().startswith(before)
    assert shown["appended"] == RUNS
    changes = shown["changes"]
    # the model says 0.7 of every run; of rhetoric its quotes do not occur, so the record overrules
    assert changes["transitions"] == {"0.3 -> 0.3": RUNS // 2, "0.7 -> 0.7": RUNS // 2}
    assert (changes["n"], changes["same"]) == (RUNS, RUNS)
    spent = shown["spent"]["total"]
    assert spent["requests"] == asked
    assert spent["cost"] == pytest.approx(asked * (1000 + 2 * 200) / 1e6)
    assert (again["appended"], again["known"]) == (0, RUNS)
    assert "60 the same" in table.stdout
    assert "evidence-v2" in table.stdout
    flags = [v.flags for v in read_verdicts(folder / VERDICTS) if isinstance(v, ReasoningVerdict)]
    assert flags.count(("overruled",)) == RUNS // 2


def test_a_judge_that_sees_otherwise_moves_runs_between_bins(folder: Path) -> None:
    low = {"gates": [{"gate": 1, "passed": True, "step": 0, "quote": "", "data": []},
                     {"gate": 2, "passed": False, "step": None, "quote": "", "data": []}],
           "value": 0.3, "explanation": "nothing"}  # fmt: skip
    with ModelServer(always(json.dumps(low))) as server:
        changes = rejudge(folder, "--judge", config(folder, server.url))["changes"]
    assert changes["transitions"] == {"0.3 -> 0.3": 30, "0.7 -> 0.3": 30}
    assert (changes["rose"], changes["fell"], changes["same"]) == (0, 30, 30)
    assert changes["mean_before"] == pytest.approx(0.5)
    assert len(changes["changed"]) == 30
    back = rejudge(folder, "--against", "model")
    assert back["changes"]["transitions"] == {"0.3 -> 0.3": 30, "0.3 -> 0.7": 30}
    none = CliRunner().invoke(judge_cli.app, ["rejudge", str(folder), "--against", "nobody"])
    assert none.exit_code != 0


def test_unjudged_runs_are_judged_again_and_only_those(folder: Path) -> None:
    with ModelServer(always("?")) as server:
        judge = config(folder, server.url, attempts=1)
        first = rejudge(folder, "--judge", judge)
    assert first["changes"]["transitions"] == {"0.3 -> unjudged": 30, "0.7 -> unjudged": 30}
    assert first["changes"]["mean_after"] is None
    with ModelServer(always(TEXT)) as server:
        second = rejudge(folder, "--judge", config(folder, server.url, attempts=1))
    assert second["known"] == 0
    assert second["changes"]["transitions"] == {"0.3 -> 0.3": 30, "0.7 -> 0.7": 30}


def test_a_killed_call_goes_on_and_pays_for_nothing_twice(folder: Path) -> None:
    async def slow(n: int, _: dict[str, Any], __: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return web.json_response(completion(TEXT))

    with ModelServer(slow) as server:
        judge = config(folder, server.url)
        command = [*PALIO, "judge", "rejudge", str(folder), "--judge", judge]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            deadline = time.monotonic() + 60
            while len(server.bodies) < 25 and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        killed = len(server.bodies)
        assert 25 <= killed < 85
        shown = rejudge(folder, "--judge", judge)
        total = len(server.bodies)
    # half of the runs cost two requests, since a misquoted gate is asked for again
    assert total <= RUNS + RUNS // 2 + 4, "only what was in flight is asked for again"
    assert shown["spent"]["total"]["requests"] == total - killed
    model = next(held for judge_id, held in reasoning_by_judge(folder / VERDICTS).items()
                 if judge_id.name == "model")  # fmt: skip
    assert len(model) == RUNS
    lines = [v.trajectory_id for v in read_verdicts(folder / VERDICTS)
             if isinstance(v, ReasoningVerdict) and v.judge.name == "model"]  # fmt: skip
    assert len(lines) == len(set(lines)), "no verdict stands twice"


def test_kept_replies_survive_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "replies"
    cache = ReplyCache(path)
    cache.put("a", Reply(content="1"))
    cache.put("b", Reply(content="2"))
    cache.close()
    path.write_bytes(path.read_bytes()[:-5])
    torn = ReplyCache(path)
    assert torn.get("a") == Reply(content="1")
    assert torn.get("b") is None
    torn.put("c", Reply(content=None))
    torn.close()
    whole = ReplyCache(path)
    assert [whole.get(key) is not None for key in "abc"] == [True, False, True]
    whole.close()


def test_requests_in_flight_reach_the_configured_number_and_no_more(folder: Path) -> None:
    async def slow(n: int, _: dict[str, Any], __: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return web.json_response(completion(TEXT))

    with ModelServer(slow) as server:
        rejudge(folder, "--judge", config(folder, server.url))
    assert server.most == 4
