"""Whatever is slipped into a finished corpus is found, named by rule, pair and row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from palio.corpus.verify import Finding, verify
from palio.records import Problem, from_json
from tests.leak.making import (
    corpus,
    edited,
    first_of,
    inject,
    lines,
    people,
    reseal,
    wish,
    write,
)
from tests.suites.making import made_problem

PROBLEMS = people(60)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("leak") / "corpus", PROBLEMS)


@pytest.fixture
def spoiled(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "corpus"))


def problem_of(name: str) -> Problem:
    return next(problem for problem in PROBLEMS if problem.problem_id == name)


def foreign(query: str, product: str = "555", name: str = "x") -> Problem:
    return made_problem(name, (product,), query=query, catalogue="", source="people.jsonl")


def found(folder: Path, rule: str) -> list[Finding]:
    reseal(folder)
    return [finding for finding in verify(folder).findings if finding.rule == rule]


def test_an_untouched_corpus_is_good(finished: Path) -> None:
    outcome = verify(finished)
    assert outcome.good, outcome.findings
    assert outcome.checked["problem"] == 60
    assert outcome.checked["row"] == 120
    assert outcome.checked["file"] == 12


def test_a_moved_row_is_found(spoiled: Path) -> None:
    moved = lines(spoiled / "train.jsonl")
    problem, row = moved[0]["problem_id"], moved[0]["trajectory_id"]
    write(spoiled / "heldout.jsonl", [*lines(spoiled / "heldout.jsonl"), moved[0]])
    write(spoiled / "train.jsonl", moved[1:])
    for rule in ("problem", "product", "text"):
        (finding,) = found(spoiled, rule)
        assert finding.pair == (problem, problem)
        assert any(row in place and "heldout.jsonl" in place for place in finding.rows)
        assert any("train.jsonl" in place for place in finding.rows)
    assert found(spoiled, "pool")
    assert found(spoiled, "provenance")


def test_a_copied_row_is_found_even_under_another_id(spoiled: Path) -> None:
    copied = lines(spoiled / "train.jsonl")[0] | {"trajectory_id": "another"}
    write(spoiled / "heldout.jsonl", [*lines(spoiled / "heldout.jsonl"), copied])
    (finding,) = found(spoiled, "conversation")
    assert finding.rows[0].startswith("train.jsonl:1")


VARIANTS: dict[str, tuple[str, Callable[[Problem], Problem]]] = {
    "white space": (
        "text",
        lambda p: foreign("  " + p.query.replace(" ", "\u00a0 \n").upper()),
    ),
    "invisible": ("text", lambda p: foreign(p.query.replace("a", "a\u200b"))),
    "product": ("product", lambda p: foreign(wish(999), p.rewards[0].product_id)),
    "specification": (
        "spec",
        lambda p: msgspec.structs.replace(
            foreign(wish(999)),
            rewards=tuple(msgspec.structs.replace(r, product_id="8") for r in p.rewards),
        ),
    ),
    "reorder": ("lexical", lambda p: foreign(" ".join(reversed(p.query.rstrip(".").split())))),
    "paraphrase": (
        "lexical",
        lambda p: foreign(
            p.query.replace("I am looking for a", "Hi! Could you get me some")
            .replace("priced below", "for at most")
            .replace("pesos", "PHP, thanks")
        ),
    ),
    "inside another": (
        "lexical",
        lambda p: foreign(f"{p.query} Also a purple zebra rug with fringes and tassels, size L."),
    ),
}


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize("pool", ["heldout", "development"])
def test_a_variant_of_a_training_problem_is_found(spoiled: Path, kind: str, pool: str) -> None:
    rule, variant = VARIANTS[kind]
    name, row = first_of(spoiled, "train")
    inject(spoiled, pool, variant(problem_of(name)), like=row)
    (finding,) = found(spoiled, rule)
    assert set(finding.pair) == {name, "x"}
    assert any("injected" in place and f"{pool}.jsonl" in place for place in finding.rows)
    assert any(row in place for place in finding.rows)


def test_a_shared_run_of_words_is_found_where_the_rest_differs(spoiled: Path) -> None:
    name, row = first_of(spoiled, "train")
    run = " ".join(problem_of(name).query.split()[3:17])
    noise = " ".join(f"word{n}" for n in range(80))
    inject(spoiled, "heldout", foreign(f"{noise} {run} {noise[::-1]}"), like=row)
    (finding,) = found(spoiled, "gram")
    assert set(finding.pair) == {name, "x"}


def test_a_row_with_another_request_than_its_problem_is_found_and_compared(spoiled: Path) -> None:
    rows = lines(spoiled / "heldout.jsonl")
    name, _ = first_of(spoiled, "train")
    rows[0]["messages"][0]["content"] = problem_of(name).query
    write(spoiled / "heldout.jsonl", rows)
    assert found(spoiled, "query")[0].rows == ("heldout.jsonl:1",)
    assert found(spoiled, "text")[0].pair == (name, f"row {rows[0]['trajectory_id']}")


@pytest.mark.parametrize(
    "name",
    ["train.jsonl", "heldout.parquet", "problems.jsonl", "pools.json", "funnel.json",
     "provenance.jsonl", "rejects.jsonl.zst", "certificate.json"],
)  # fmt: skip
def test_a_changed_file_is_found_by_its_digest(spoiled: Path, name: str) -> None:
    path = spoiled / name
    path.write_bytes(path.read_bytes() + b"\n")
    findings = [f for f in verify(spoiled).findings if f.rule == "file"]
    assert any(name in finding.what for finding in findings)


@pytest.mark.parametrize("name", ["certificate.json", "manifest.json", "train.jsonl", "pools.json"])
@pytest.mark.parametrize("data", [None, b"", b"{", b"\xff\xfe", b"[" * 5000, b"null"])
def test_a_missing_or_broken_file_is_a_finding(
    spoiled: Path, name: str, data: bytes | None
) -> None:
    if data is None:
        (spoiled / name).unlink()
    else:
        (spoiled / name).write_bytes(data)
    findings = verify(spoiled).findings
    assert any(f.rule == "file" and name in f"{f.what} {f.rows}" for f in findings)


def test_parquet_that_holds_other_rows_is_found(spoiled: Path) -> None:
    rows = lines(spoiled / "train.jsonl")
    jsonl = (spoiled / "train.jsonl").read_bytes()
    rows[3]["problem_id"] = "other"
    write(spoiled / "train.jsonl", rows)
    (spoiled / "train.jsonl").write_bytes(jsonl)
    (finding,) = found(spoiled, "parquet")
    assert "row 4" in finding.what


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["nearest"].update(jaccard=0.01), "greatest similarity"),
        (lambda c: c.update(clusters=59), "clusters = 59, found 60"),
        (lambda c: c["joins"].update(product=5), "joins product = 5"),
        (lambda c: c["rows"].update(train=1), "rows train = 1"),
        (lambda c: c["compared"].update(gram=1), "compared gram = 1"),
        (lambda c: c["guard"]["lexical"].update(jaccard=0.99), "guard is not that"),
        (lambda c: c["guard"].update(lexical=None), "guard is not that"),
        (lambda c: c["request_words"].append("walnut"), "request words are not those"),
        (lambda c: c.update(weights="sha256:0"), "word weights"),
        (lambda c: c.update(algorithm="other"), "'other' is not known"),
    ],
)
def test_a_certificate_that_states_something_else_is_found(
    spoiled: Path, change: Callable[[dict[str, object]], None], message: str
) -> None:
    edited(spoiled / "certificate.json", change)
    assert any(message in finding.what for finding in found(spoiled, "certificate"))


def test_a_quarantined_problem_with_a_row_is_found(spoiled: Path) -> None:
    name, _ = first_of(spoiled, "heldout")
    away = {"problem": name, "pool": "heldout", "kind": "lexical", "key": "", "others": []}
    edited(spoiled / "certificate.json", lambda c: c["quarantine"].append(away))
    assert len(found(spoiled, "quarantine")) == 2


def test_a_canary_of_forty_leaks_is_found_whole(spoiled: Path) -> None:
    rng = Random(5)
    kinds = sorted(VARIANTS)
    train = sorted({row["problem_id"] for row in lines(spoiled / "train.jsonl")})
    rows = {row["problem_id"]: row["trajectory_id"] for row in lines(spoiled / "train.jsonl")}
    planted = {}
    for number in range(40):
        name = rng.choice(train)
        _, variant = VARIANTS[kinds[number % len(kinds)]]
        problem = msgspec.structs.replace(variant(problem_of(name)), problem_id=f"x{number}")
        if problem.rewards[0].product_id == "555":
            own = msgspec.structs.replace(
                problem.rewards[0], product_id=f"7{number}", title=(f"thing {number}",)
            )
            problem = msgspec.structs.replace(problem, rewards=(own,))
        if wish(999) == problem.query:
            problem = msgspec.structs.replace(problem, query=wish(2000 + number))
        pool = rng.choice(["development", "heldout"])
        inject(spoiled, pool, problem, like=rows[name], name=f"canary-{number}")
        planted[problem.problem_id] = name
    reseal(spoiled)
    pairs = {frozenset(finding.pair) for finding in verify(spoiled).findings if finding.pair}
    assert [each for each in planted.items() if frozenset(each) not in pairs] == []


def test_a_whole_forged_history_still_leaks(spoiled: Path) -> None:
    """A forger who also moves the assignment cannot hide that two problems share a product."""
    name, row = first_of(spoiled, "train")
    inject(spoiled, "heldout", foreign(wish(999), problem_of(name).rewards[0].product_id), row)
    reseal(spoiled)
    pools = from_json((spoiled / "pools.json").read_bytes(), dict[str, str])
    assert pools["x"] == "heldout"
    text = json.dumps([f.what for f in verify(spoiled).findings])
    assert "pools share product" in text
    assert "stands in two pools" in text
