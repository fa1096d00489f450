"""A build takes traces of any format, packed or not, by file, folder, pattern or stdin."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from typer.testing import CliRunner, Result

from palio.cli.corpus import app
from palio.corpus.conversation import calls_of
from palio.corpus.readers.importing import TraceImport
from palio.corpus.reading import TraceReader
from palio.corpus.rows import CorpusRow, read_rows
from palio.corpus.writers.atif import atif_document
from palio.corpus.writers.hugging_face import chat_row
from palio.records import InputError, Product, Suite, Trajectory, to_json
from palio.suites.files import write_suite
from palio.world.catalogue import Catalogue, write_catalogue
from tests.corpus.making import PROBLEMS, made_trajectory

COUNT = 10
RUNS = [made_trajectory(f"t{n}", PROBLEMS[n % 5], agent=f"agent-{n // 5}") for n in range(COUNT)]
CONFIG = "coefficient = 0.0\nthinking = 0.0\noracle_search = false\n"


def logged(at: int, path: str, response: Any, **more: Any) -> dict[str, Any]:
    """One request as the arena's proxy logs it."""
    about = {"kind": "summary", "method": "GET", "path": path, "timestamp": at, "duration_ms": 5}
    return {**about, "status_code": 200, "response": response, **more}


def envelope(run: Trajectory) -> dict[str, Any]:
    """The run as the arena's sandbox writes it, with what its proxy saw."""
    results = {m.tool_call_id: m.content for m in run.messages if m.role == "tool"}
    steps, at = [], 0
    for message in run.messages:
        if message.role != "assistant":
            continue
        at += 1000
        made = [
            {
                "name": call.function.name,
                "parameters": json.loads(call.function.arguments),
                "tool_call_id": call.id,
                "result": results.get(call.id, ""),
            }
            for call in message.tool_calls
        ]
        said = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": call.id, "function": msgspec.to_builtins(call.function)}
                for call in message.tool_calls
            ],
        }
        proxy = [logged(at - 900, "/inference/chat/completions", {"choices": [{"message": said}]})]
        proxy += [
            logged(at - 500, f"/search/{call['name']}", call["result"], params=call["parameters"])
            for call in made
            if call["name"] in ("find_product", "view_product_information")
        ]
        steps.append(
            {
                "completion": {
                    "reasoning_content": message.reasoning_content,
                    "content": "",
                    "message": {"think": message.reasoning_content, "tool_call": made},
                },
                "extra_info": {
                    "step": at // 1000, "query": run.query, "timestamp": at, "proxy_calls": proxy
                },
            }
        )  # fmt: skip
    return {"problem_id": run.problem_id, "status": "SUCCESS", "error": None, "dialogue": steps}


def chat(run: Trajectory) -> Any:
    return {**chat_row(run).rows[0], "problem_id": run.problem_id}


def native(run: Trajectory) -> Any:
    return json.loads(to_json(run))


def atif(run: Trajectory) -> Any:
    return atif_document(run).rows[0]


def anonymous(run: Trajectory) -> Any:
    """Messages and tools and nothing else: the request alone tells the problem."""
    row = chat_row(run).rows[0]
    return {"messages": row["messages"], "tools": row["tools"]}


FORMS: dict[str, Callable[[Trajectory], Any]] = {
    "palio": native,
    "chat": chat,
    "atif": atif,
    "arena-envelope": envelope,
}


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """A folder with suite, catalogue and configuration."""
    products = [
        Product(product_id=p.rewards[0].product_id, shop_id="s1", title="Blue mug", price=12.0)
        for p in PROBLEMS
    ]
    write_catalogue(Catalogue.from_products("compact-1", products), tmp_path / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=PROBLEMS), tmp_path / "suite.json")
    (tmp_path / "corpus.toml").write_text(CONFIG)
    return tmp_path


def build(ground: Path, *sources: object, **options: Any) -> Result:
    named = [word for source in sources for word in ("--trajectories", str(source))]
    return CliRunner().invoke(
        app,
        [
            *("build", *named, "--suite", str(ground / "suite.json"), "--json"),
            *("--catalogue", str(ground / "catalogue"), "--config", str(ground / "corpus.toml")),
            *("--out", str(ground / "corpus"), "--workers", "1"),
        ],
        **options,
    )


def rows_of(ground: Path) -> list[CorpusRow]:
    pools = ("train", "development", "heldout")
    return [row for pool in pools for row in read_rows(ground / "corpus" / f"{pool}.jsonl")]


def lines(rows: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_conversations(ground: Path, form: str) -> None:
    path = ground / "in.jsonl"
    path.write_bytes(lines([FORMS[form](run) for run in RUNS]))
    result = build(ground, path)
    assert result.exit_code == 0, result.output
    funnel = json.loads(result.stdout)
    assert funnel["steps"][-1]["kept"] == COUNT, funnel
    said = {
        row.problem_id: [(c.name, c.arguments) for c in calls_of(run.messages)]
        for run in RUNS
        for row in rows_of(ground)
        if run.problem_id == row.problem_id
    }
    assert len(said) == 5
    for row in rows_of(ground):
        made = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for message in row.messages
            for call in message.get("tool_calls", ())
        ]
        assert made == said[row.problem_id]


def packed(ground: Path) -> list[Any]:
    """One day's traces in many files: each format, each packing, folders in folders."""
    folder = ground / "day"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(lines([native(run) for run in RUNS[:2]]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines([chat(run) for run in RUNS[2:4]])))
    squeezed = zstandard.ZstdCompressor().compress(lines([envelope(run) for run in RUNS[4:6]]))
    (folder / "deep" / "c.jsonl.zst").write_bytes(squeezed)
    (folder / "deep" / "d.json").write_text(json.dumps([atif(run) for run in RUNS[6:8]], indent=1))
    (folder / "manifest.json").write_text("{}")
    return [folder]


def test_a_folder_may_mix_formats_and_packings(ground: Path) -> None:
    folder = packed(ground)
    pattern = ground / "more-*.jsonl"
    (ground / "more-1.jsonl").write_bytes(lines([anonymous(RUNS[8])]))
    (ground / "more-2.jsonl").write_bytes(lines([anonymous(RUNS[9])]))
    result = build(ground, *folder, pattern)
    assert result.exit_code == 0, result.output
    funnel = json.loads(result.stdout)
    assert funnel["steps"][0]["rejected"] == {}
    assert funnel["steps"][-1]["kept"] == COUNT, funnel
    assert "2 of them found their problem by the request alone" in result.stderr
    assert "2 arena-envelope" in result.stderr
    assert "1 files of the folders are no traces" in result.stderr
    manifest = json.loads((ground / "corpus" / "manifest.json").read_bytes())
    assert {name for name in manifest["inputs"] if name.startswith("trajectories:")} == {
        *("trajectories:day/a.jsonl", "trajectories:day/b.jsonl.gz"),
        *("trajectories:deep/c.jsonl.zst", "trajectories:deep/d.json"),
        *(f"trajectories:{ground.name}/more-{n}.jsonl" for n in (1, 2)),
    }


def test_standard_input_is_read_and_digested(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = gzip.compress(lines([native(run) for run in RUNS]))
    result = build(ground, "-", input=data)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps"][-1]["kept"] == COUNT
    manifest = json.loads((ground / "corpus" / "manifest.json").read_bytes())
    (ground / "same").write_bytes(data)
    file = TraceReader([ground / "same"])
    assert len(list(file)) == COUNT
    assert manifest["inputs"]["trajectories:stdin"] in file.digests().values()


def test_a_run_given_twice_is_counted_as_repeated(ground: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (ground / name).write_bytes(lines([native(run) for run in RUNS]))
    result = build(ground, ground / "a.jsonl", ground / "b.jsonl")
    assert json.loads(result.stdout)["steps"][1]["rejected"] == {"repeated_id": COUNT}


def test_a_wrong_suite_is_an_error_and_part_of_one_a_warning(ground: Path) -> None:
    (ground / "a.jsonl").write_bytes(lines([native(run) for run in RUNS]))
    one = Suite(suite_id="s", version="1", problems=PROBLEMS[:1])
    write_suite(one, ground / "suite.json")
    result = build(ground, ground / "a.jsonl")
    assert result.exit_code == 0
    assert "8 of 10 trajectories are of problems that no suite has" in result.stderr
    other = msgspec.structs.replace(PROBLEMS[0], problem_id="x", query="something else")
    write_suite(Suite(suite_id="s", version="1", problems=(other,)), ground / "suite.json")
    before = sorted(p.name for p in (ground / "corpus").iterdir())
    result = build(ground, ground / "a.jsonl")
    assert isinstance(result.exception, InputError)
    assert "none of the 10 trajectories is of a problem of the suites" in str(result.exception)
    assert sorted(p.name for p in (ground / "corpus").iterdir()) == before


def test_own_runs_take_the_short_way_and_damaged_ones_the_long(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    nul = to_json(RUNS[1]).replace(b"blue mug", b"blue\\u0000mug", 1)
    path.write_bytes(to_json(RUNS[0]) + b"\n" + nul + b"\n")
    reader = TraceImport([path])
    first, second = list(reader)
    assert first.trajectory == RUNS[0]
    assert [loss.code for loss in second.losses] == ["nul"] * len(second.losses)
    assert second.losses
    assert reader.formats == {"palio": 2}


def test_no_suite_request_stands_twice_for_a_referral(tmp_path: Path) -> None:
    twin = msgspec.structs.replace(PROBLEMS[0], problem_id="twin")
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines([anonymous(RUNS[0]), anonymous(RUNS[1])]))
    reader = TraceReader([path], problems=(*PROBLEMS, twin))
    assert [run.problem_id for run in reader] == ["", "p001"]
    assert reader.referred == 1
