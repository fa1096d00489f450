"""A forger who gives every file its right digest again is still named, whatever he did."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from palio.cli.corpus import app
from palio.corpus.verify import verify
from palio.corpus.verify.texts import words
from palio.records import Problem
from palio.suites.words import words_of
from tests.leak.making import (
    corpus,
    edited,
    first_of,
    inject,
    lines,
    people,
    reseal,
    synthetic,
    wish,
    write,
)
from tests.suites.making import made_problem

PROBLEMS = people(40)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("forged") / "corpus", PROBLEMS)


@pytest.fixture
def spoiled(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "corpus"))


def problem_of(name: str) -> Problem:
    return next(problem for problem in PROBLEMS if problem.problem_id == name)


def foreign(query: str) -> Problem:
    return made_problem("x", ("555",), query=query, catalogue="", source="people.jsonl")


def parquet(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Edit the rows of train.parquet alone."""
    path = folder / "train.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), path)


def thinks(rows: list[dict[str, Any]]) -> None:
    rows[2]["messages"][1]["reasoning_content"] = "the answer is 90001"


def calls(rows: list[dict[str, Any]]) -> None:
    rows[0]["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"q":"other"}'


def offers(rows: list[dict[str, Any]]) -> None:
    rows[0]["tools"] = "[]"


def agents(rows: list[dict[str, Any]]) -> None:
    rows[0]["agent"] = "another"


def swapped(folder: Path) -> None:
    """Train is held out and the other way round: rows and Parquet, nothing else."""
    for ending in ("jsonl", "parquet"):
        one, other = folder / f"train.{ending}", folder / f"heldout.{ending}"
        data = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(data)


def dropped(folder: Path) -> None:
    write(folder / "heldout.jsonl", lines(folder / "heldout.jsonl")[1:])


def system(folder: Path) -> None:
    rows = lines(folder / "train.jsonl")
    secret = problem_of(first_of(folder, "heldout")[0]).query
    hint = {"role": "system", "content": f"Remember: {secret.upper()} was solved."}
    rows[0]["messages"].insert(0, hint)
    write(folder / "train.jsonl", rows)


def second_user(folder: Path) -> None:
    rows = lines(folder / "train.jsonl")
    secret = problem_of(first_of(folder, "heldout")[0]).query
    rows[0]["messages"].append({"role": "user", "content": f"And now: {secret}"})
    write(folder / "train.jsonl", rows)


def copied(folder: Path) -> None:
    """A held-out conversation in train, its JSON laid out otherwise, under another id."""
    row = lines(folder / "heldout.jsonl")[0] | {"trajectory_id": "another"}
    path = folder / "train.jsonl"
    row["messages"] = [dict(reversed(list(message.items()))) for message in row["messages"]]
    rows = [*lines(path), row]
    write(path, rows)
    data = path.read_text().splitlines()
    path.write_text("\n".join([*data[:-1], json.dumps(row)]) + "\n")


def extra(name: str) -> Callable[[Path], None]:
    def add(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        rows = (folder / "heldout.jsonl").read_bytes()
        path.write_bytes(gzip.compress(rows) if name.endswith("gz") else rows)

    return add


def unnamed(folder: Path) -> None:
    """The manifest and the certificate forget a file, which then changes."""
    edited(folder / "manifest.json", lambda m: m["outputs"].pop("train.parquet"))
    edited(folder / "certificate.json", lambda c: c["files"].pop("train.parquet"))
    parquet(folder, thinks)


def other_config(folder: Path) -> None:
    edited(folder / "manifest.json", lambda m: m["config"].update(outcome="none"))


def other_count(folder: Path) -> None:
    edited(folder / "manifest.json", lambda m: m["counts"].update({"rows:train": 10**6}))


def other_funnel(folder: Path) -> None:
    edited(folder / "funnel.json", lambda f: f["pools"]["train"].update(rows=10**6))


def uncompared(folder: Path) -> None:
    edited(folder / "certificate.json", lambda c: c["compared"].pop("product"))


def two_lineages(folder: Path) -> None:
    held = lines(folder / "provenance.jsonl")
    write(folder / "provenance.jsonl", [*held, held[0]])


def no_lineage(folder: Path) -> None:
    write(folder / "provenance.jsonl", lines(folder / "provenance.jsonl")[1:])


def linked(folder: Path) -> None:
    path = folder / "heldout.jsonl"
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")


def revived(folder: Path) -> None:
    name = first_of(folder, "train")[1]
    notice = {"trajectories": [name], "why": "asked for"}
    (folder / "takedowns.json").write_text(json.dumps([notice]))
    edited(folder / "manifest.json", lambda m: m["outputs"].update({"takedowns.json": ""}))


def twice(folder: Path) -> None:
    known = lines(folder / "problems.jsonl")
    write(folder / "problems.jsonl", [*known, known[0] | {"query": wish(777)}])


FORGERIES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "thinking in Parquet alone": ("parquet", lambda f: parquet(f, thinks)),
    "arguments in Parquet alone": ("parquet", lambda f: parquet(f, calls)),
    "tools in Parquet alone": ("parquet", lambda f: parquet(f, offers)),
    "agent in Parquet alone": ("parquet", lambda f: parquet(f, agents)),
    "files of two pools swapped": ("pool", swapped),
    "a row left out": ("count", dropped),
    "a held-out request in a system message": ("query", system),
    "a held-out request in a second turn": ("query", second_user),
    "a conversation copied in another layout": ("conversation", copied),
    "one more file of rows": ("file", extra("train-00001.jsonl")),
    "one more packed file": ("file", extra("more.jsonl.gz")),
    "rows in a folder inside": ("file", extra("data/train.jsonl")),
    "a file that nobody names any more": ("file", unnamed),
    "another configuration": ("manifest", other_config),
    "another count in the manifest": ("count", other_count),
    "another count in the funnel": ("count", other_funnel),
    "a rule that is not compared": ("certificate", uncompared),
    "two lineages of a row": ("provenance", two_lineages),
    "a row without lineage": ("provenance", no_lineage),
    "a link in place of a file": ("file", linked),
    "a taken-down row": ("takedown", revived),
    "a problem with two texts": ("problem", twice),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_resealed_forgery_is_named_and_the_command_fails(spoiled: Path, kind: str) -> None:
    rule, forge = FORGERIES[kind]
    forge(spoiled)
    reseal(spoiled)
    outcome = verify(spoiled)
    assert rule in {finding.rule for finding in outcome.findings}, outcome.findings
    result = CliRunner().invoke(app, ["verify", str(spoiled)])
    assert result.exit_code == 1


def marked(text: str) -> str:
    """Every second letter struck through by a combining mark."""
    return "".join(c + "\u0336" * (n % 2) for n, c in enumerate(text))


ALIKE = str.maketrans("aeopc", "\u0430\u0435\u043e\u0440\u0441")
DISGUISES: dict[str, Callable[[str], str]] = {
    "look-alikes": lambda text: text.translate(ALIKE),
    "combining marks": marked,
    "accents": lambda text: text.replace("a", "\u00e1").replace("e", "\u00ea"),
    "variation selectors": lambda text: text.replace("o", "o\ufe0f"),
    "full width": lambda text: "".join(
        chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text
    ),
    "mathematical letters": lambda text: "".join(
        chr(0x1D5BA + ord(c) - 97) if "a" <= c <= "z" else c for c in text
    ),
    "soft hyphens": lambda text: text.replace("t", "t\u00ad"),
    "decomposed": lambda text: unicodedata.normalize("NFD", text.replace("n", "\u00f1")),
}


@pytest.mark.parametrize("kind", DISGUISES)
def test_unicode_disguises_no_request(spoiled: Path, kind: str) -> None:
    name, row = first_of(spoiled, "train")
    inject(spoiled, "heldout", foreign(DISGUISES[kind](problem_of(name).query)), like=row)
    reseal(spoiled)
    pairs = {f.rule for f in verify(spoiled).findings if set(f.pair) == {name, "x"}}
    assert pairs & {"text", "lexical"}


def test_a_voucher_in_other_words_and_another_order_is_found(spoiled: Path) -> None:
    name, row = first_of(spoiled, "train")
    rng = random.Random(3)
    clauses = problem_of(name).query.rstrip(".").split()
    rng.shuffle(clauses)
    query = f"With my coupon of 15 percent above 300: {' '.join(clauses)}"
    inject(spoiled, "heldout", foreign(query), like=row)
    reseal(spoiled)
    assert {name, "x"} in [set(f.pair) for f in verify(spoiled).findings if f.rule == "lexical"]


def test_a_title_family_in_two_pools_is_found(tmp_path: Path) -> None:
    problems = synthetic(40)
    folder = corpus(tmp_path / "c", problems)
    name, row = first_of(folder, "train")
    mother = next(problem for problem in problems if problem.problem_id == name)
    own = msgspec.structs.replace(mother.rewards[0], product_id="4711", title=("else",))
    child = msgspec.structs.replace(
        mother, problem_id="x", query=wish(3), rewards=(own,), families=mother.families[:1]
    )
    inject(folder, "heldout", child, like=row)
    reseal(folder)
    (finding,) = [f for f in verify(folder).findings if f.rule == "family"]
    assert set(finding.pair) == {name, "x"}


def test_what_the_card_adds_is_no_forgery(spoiled: Path) -> None:
    for name in ("README.md", "stats.json", "report.html", "funnel.png"):
        (spoiled / name).write_text("{}")
    assert verify(spoiled).good


@given(st.text(max_size=40))
def test_both_sides_read_the_same_words(text: str) -> None:
    assert words(text) == words_of(text)
