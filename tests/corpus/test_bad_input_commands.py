"""Every command that takes traces takes bad ones: all counted, none lost, nothing crashes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from typer.testing import CliRunner

from palio.cli.main import app
from palio.records import Product, Suite, to_json
from palio.suites import write_suite
from palio.world.catalogue import Catalogue, write_catalogue
from tests.corpus.making import PROBLEMS, made_trajectory
from tests.corpus.test_bad_input import CASES, OWN, chat

EARLIER = 5
COMMANDS = ("build", "shard", "assemble", "daily", "salvage", "replay")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite with its catalogue, a corpus of another day, and a folder of bad traces."""
    folder = tmp_path_factory.mktemp("bad")
    products = [
        Product(product_id=p.rewards[0].product_id, shop_id="s1", title="Blue mug", price=12.0)
        for p in PROBLEMS
    ]
    write_catalogue(Catalogue.from_products("compact-1", products), folder / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=PROBLEMS), folder / "suite.json")
    (folder / "c.toml").write_text('outcome = "none"\ncoefficient = 0.0\nthinking = 0.0\n')
    days = [to_json(made_trajectory(f"e{n}", PROBLEMS[n])) for n in range(EARLIER)]
    (folder / "earlier.jsonl").write_bytes(b"\n".join(days) + b"\n")
    result = palio("build", "--trajectories", folder / "earlier.jsonl", *judged(folder, "earlier"))
    assert result[0] == 0
    (folder / "in").mkdir()
    return folder


def judged(folder: Path, out: str) -> list[object]:
    options = ["--suite", folder / "suite.json", "--catalogue", folder / "catalogue"]
    options += ["--config", folder / "c.toml", "--out", folder / out, "--workers", 1]
    return options


def palio(*words: object) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a command; anything but a clean end is raised."""
    noun = [] if words[0] == "replay" else ["corpus"]
    ended = CliRunner().invoke(app, [*noun, *map(str, words), "--json"])
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert "Traceback" not in ended.output
    return ended.exit_code, json.loads(ended.stdout)


def accounted(folder: Path, command: str, traces: Path, out: str) -> int:
    """Run a command over traces; how many records it took, once they are all accounted for."""
    if command == "replay":
        code, told = palio("replay", traces, "--catalogue", folder / "catalogue")
        assert code == 1, "something could not be read, or drifted"
        missing = sum(told["catalogue_missing"].values())
        return int(told["trajectories"] + missing + told["unreadable"])
    if command == "salvage":
        into = ("--catalogue", folder / "catalogue", "--out", folder / out)
        _, told = palio("salvage", traces, *into)
        assert told["taken"] == told["salvaged"] + sum(told["rejected"].values())
        assert len(rejects(folder / out)) == sum(told["rejected"].values())
        return int(told["taken"])
    if command in ("shard", "assemble"):
        made = ("--config", folder / "c.toml", "--executor", "inline", "--out", folder / f"{out}-s")
        _, told = palio("shard", traces, *made)
        assert told["in"] == told["kept"] + sum(told["rejected"].values())
        if command == "shard":
            return int(told["in"])
        code, funnel = palio("assemble", folder / f"{out}-s", *judged(folder, out))
    else:
        grow = ("--previous", folder / "earlier") if command == "daily" else ()
        code, funnel = palio(command, *grow, "--trajectories", traces, *judged(folder, out))
    assert code == 0
    first, last = funnel["steps"][0], funnel["steps"][-1]
    gone = sum(sum(step["rejected"].values()) for step in funnel["steps"])
    assert first["taken"] == last["kept"] + gone
    beside = sum(first["rejected"].values()) if command == "assemble" else 0  # in the shards' files
    assert len(rejects(folder / out)) == gone - beside
    return int(first["taken"]) - (EARLIER if command == "daily" else 0)


def rejects(folder: Path) -> list[bytes]:
    packed = (folder / "rejects.jsonl.zst").read_bytes()
    return zstandard.ZstdDecompressor().stream_reader(packed).read().splitlines()


FILES: dict[str, bytes] = {
    "cut.jsonl.gz": gzip.compress(b"\n".join(OWN))[:-300],
    "cut.jsonl.zst": zstandard.compress(b"\n".join(OWN))[:-300],
    "table.jsonl": b"PAR1 is not all of it",
    "nothing.jsonl": b"",
    "bytes.jsonl": bytes(range(256)) * 40,
    "document.json": json.dumps([chat(0), chat(1), 5], indent=2).encode(),
    "cut-document.json": json.dumps([chat(0), chat(1)], indent=2).encode()[:-40],
    "null.json": b"null",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_bad_record_is_accounted_for(world: Path, command: str) -> None:
    folder = world / "in" / f"records-{command}"
    folder.mkdir()
    for number, (data, *_) in enumerate(CASES.values()):
        (folder / f"{number:02}.jsonl").write_bytes(b"\n".join(data) + b"\n")
    records = sum(len(data) for data, *_ in CASES.values())
    assert accounted(world, command, folder, f"{command}-records") == records


def test_bad_files_are_the_same_to_all_commands(world: Path) -> None:
    folder = world / "in" / "files"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "good.jsonl").write_bytes(OWN[0] + b"\n")
    counts = {one: accounted(world, one, folder, f"{one}-files") for one in COMMANDS}
    assert len(set(counts.values())) == 1, counts
    assert counts["build"] > len(FILES)


@pytest.mark.slow
def test_a_record_of_100_megabytes(world: Path) -> None:
    path = world / "in" / "huge.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(OWN[1] + b'\n{"trajectory_id": "')
        for _ in range(100):
            stream.write(b"x" * (1 << 20))
        stream.write(b'"}\n' + OWN[0] + b"\n")
    for command in COMMANDS:
        assert accounted(world, command, path, f"{command}-huge") == 3
