"""A suite file comes back as it was written; a wrong one is refused by file and row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from palio.records import (
    SCHEMA_VERSION,
    InputError,
    IntegrityError,
    PriceRange,
    Problem,
    Reward,
    Suite,
)
from palio.suites import read_suite, write_suite
from tests.suites.making import VOUCHER, made_problem, problem_sets


def suite_of(*problems: Problem) -> Suite:
    return Suite(suite_id="s", version="3", problems=problems)


GOOD = suite_of(
    made_problem("a", ("1",)),
    made_problem("b", ("2", "3")),
    made_problem("c", ("4",), kind="voucher", voucher=VOUCHER, query="naïve ₱ 買"),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(problem_sets())
def test_round_trip(tmp_path: Path, problems: tuple[Problem, ...]) -> None:
    suite = suite_of(*problems)
    digest = write_suite(suite, tmp_path / "suite.json")
    assert read_suite(tmp_path / "suite.json") == suite
    assert digest == suite.content_digest()


def test_the_file_is_one_document_with_schema_and_digest(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "suite.json"
    write_suite(GOOD, path)
    document = json.loads(path.read_text())
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["digest"] == GOOD.content_digest()
    assert len(path.read_text().splitlines()) == len(GOOD.problems) + 2
    assert [entry.name for entry in path.parent.iterdir()] == ["suite.json"]


def edited(tmp_path: Path, change: Any) -> Path:
    """A good file with `change` applied to its parsed document and the digest dropped."""
    path = tmp_path / "suite.json"
    write_suite(GOOD, path)
    document = json.loads(path.read_text())
    del document["digest"]
    change(document)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["problems"][1].update(query=5), r"suite.json: problem 2.*query"),
        (lambda d: d["problems"][1].update(kind="food"), r"problem 2.*'food'"),
        (lambda d: d["problems"][1].update(problem_id="a"), r"problem 2.*'a' occurs twice"),
        (lambda d: d["problems"][0].update(rewards=[]), r"problem 1.*no target"),
        (lambda d: d["problems"][0].update(query=" "), r"problem 1.*query is empty"),
        (lambda d: d["problems"][1].update(kind="product"), r"problem 2.*one target, not 2"),
        (lambda d: d["problems"][2].pop("voucher"), r"problem 3.*without a voucher"),
        (lambda d: d["problems"][0].pop("rewards"), r"problem 1.*rewards"),
        (lambda d: d["problems"][2]["voucher"].update(threshold=-1), r"problem 3.*voucher amount"),
        (
            lambda d: d["problems"][2]["voucher"].update(threshold=float("nan")),
            r"problem 3.voucher.threshold is NaN",
        ),
        (lambda d: d.update(schema_version="9.1"), r"schema 9.1, this palio reads 1"),
        (lambda d: d.pop("problems"), r"suite.json: not a suite document.*problems"),
        (lambda d: d.update(problems={}), r"not a suite document"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_suite(edited(tmp_path, change))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"[1, 2]", "not a suite document"),
        (b'{"suite_id": "s",\n "version": }', "line 2"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[" * 5000 + b"]" * 5000, "not a suite"),
        (b'{"x": "' + b"y" * 10_000_000 + b'"}', "not a suite document"),
    ],
    ids=["empty", "list", "broken", "encoding", "deep", "long line"],
)
def test_bytes_that_are_no_suite_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_suite(path)
    assert caught.value.where == str(path)
    assert len(str(caught.value)) < 1000


def test_an_edited_suite_is_found(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    write_suite(GOOD, path)
    path.write_text(path.read_text().replace("thing called a", "thing called z"))
    with pytest.raises(IntegrityError, match="digest"):
        read_suite(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_suite(tmp_path / "none.json")


def test_a_suite_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    nonsense = Problem(
        problem_id="a",
        kind="product",
        query="q",
        rewards=(Reward(product_id="1", price=(PriceRange(mode="between", low=float("inf")),)),),
    )
    with pytest.raises(InputError, match="price bound"):
        write_suite(suite_of(nonsense), tmp_path / "suite.json")
    assert not list(tmp_path.iterdir())
