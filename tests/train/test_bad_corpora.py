"""A corpus that is none, or another's, is refused with file and row before anything is trained."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from palio.corpus.rows import read_rows
from palio.judging.encoders import default_encoder
from palio.records import InputError, IntegrityError, Provenance, Suite, to_json
from palio.suites.files import read_suite, write_suite
from palio.train.ground import open_ground
from palio.train.inputs import open_corpus
from palio.train.run import Options, train
from palio.world.artefacts import file_digest
from palio.world.catalogue import Catalogue, write_catalogue
from palio.world.synthesis import compact_config, synthesise
from tests.train.conftest import Shop
from tests.train.test_stages import SHORT, chain, corpus  # noqa: F401 - a fixture

BARE = Options(uncertified=True)


def certified(folder: Path, **files: bytes) -> Path:
    """A corpus of some files with a certificate and a manifest that lists them all."""
    for name, data in {"train": b"", "heldout": b"", **files}.items():
        (folder / f"{name}.jsonl").write_bytes(data)
    (folder / "certificate.json").write_text("{}")
    (folder / "pools.json").write_text('{"a": "train"}')
    listed = {path.name: file_digest(path) for path in folder.iterdir()}
    manifest = Provenance(kind="corpus", tool_version="t", outputs=listed)
    (folder / "manifest.json").write_bytes(to_json(manifest))
    return folder


@pytest.mark.parametrize("pool", ["heldout", "development"])
def test_the_rows_that_measure_are_not_trained_on_under_their_own_certificate(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    pool: str,
) -> None:
    folder = certified(tmp_path, **{pool: corpus.read_bytes()})
    with pytest.raises(InputError, match=f"rows of pool '{pool}'") as error:
        open_corpus(folder / f"{pool}.jsonl")
    assert str(folder) in error.value.remedy
    assert open_corpus(folder / "train.jsonl").digests == open_corpus(folder).digests
    assert open_corpus(folder / f"{pool}.jsonl", uncertified=True).path.stem == pool


def first(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """Changes the second row of a corpus."""

    def changed(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        row = json.loads(lines[1])
        change(row)
        return b"".join([lines[0], json.dumps(row).encode() + b"\n", *lines[2:]])

    return changed


@pytest.mark.parametrize(
    ("change", "row", "said"),
    [
        (first(lambda row: row["messages"][0].update(role="wizard")), 2, "'wizard'"),
        (first(lambda row: row["messages"][1].update(reasoning_content=3)), 2, "'1': messages are"),
        (first(lambda row: row.update(tools="[")), 2, "not a valid"),
        (first(lambda row: row.pop("problem_id")), 2, "problem_id"),
        (lambda data: data + data[:50], 61, "not a valid CorpusRow"),
        (lambda data: b"\n" + data, 1, "not a valid CorpusRow"),
    ],
    ids=["role", "thinking", "tools", "column", "torn", "blank"],
)
def test_a_row_that_is_none_is_named(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    change: Callable[[bytes], bytes],
    row: int,
    said: str,
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(change(corpus.read_bytes()))
    with pytest.raises(InputError, match=said) as error:
        train(chain({"kind": "sft", **SHORT}), path, tmp_path / "run", options=BARE)
    assert error.value.where == f"{path}:{row}"
    assert not (tmp_path / "run" / "sft" / "checkpoint").exists()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("train.jsonl", gzip.compress, "compressed with gzip"),
        ("train.jsonl", lambda data: b"\xef\xbb\xbf" + data, "byte order mark"),
        ("train.jsonl", lambda data: b"PAR1" + data, "is a Parquet file"),
        ("train.parquet", lambda data: data, "no readable corpus file"),
    ],
    ids=["gzip", "mark", "parquet", "no parquet"],
)
def test_a_file_of_another_form_is_told(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    name: str,
    change: Callable[[bytes], bytes],
    said: str,
) -> None:
    path = tmp_path / name
    path.write_bytes(change(corpus.read_bytes()))
    with pytest.raises(InputError, match=said) as error:
        list(read_rows(path))
    assert error.value.where == str(path)
    assert error.value.remedy


def test_lines_of_windows_are_lines(corpus: Path, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "train.jsonl"
    path.write_bytes(corpus.read_bytes().replace(b"\n", b"\r\n"))
    assert list(read_rows(path)) == list(read_rows(corpus))


def test_a_row_that_stands_twice_is_told(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(corpus.read_bytes() + corpus.read_bytes().splitlines(keepends=True)[0])
    with caplog.at_level(logging.WARNING):
        assert len(list(open_corpus(path, uncertified=True).rows())) == 61
    assert "1 rows have the trajectory id of an earlier one" in caplog.text


def test_a_run_that_was_refused_before_it_did_anything_is_held_to_nothing(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    path, recipe = tmp_path / "train.jsonl", chain({"kind": "sft", **SHORT})
    path.write_bytes(b"{}\n")
    with pytest.raises(InputError, match="not a valid CorpusRow"):
        train(recipe, path, tmp_path / "run", options=BARE)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="no rows"):
        train(recipe, path, tmp_path / "run", options=BARE)
    path.write_bytes(corpus.read_bytes())
    assert train(recipe, path, tmp_path / "run", options=BARE).final.is_dir()


# ---- problems to roll out


@pytest.fixture
def suite(shop: Shop, tmp_path: Path) -> Path:
    write_suite(Suite(suite_id="s", version="1", problems=shop.problems), tmp_path / "suite.json")
    write_catalogue(shop.world.catalogue, tmp_path / "catalogue")
    return tmp_path / "suite.json"


def test_a_catalogue_of_the_same_name_is_not_what_rollouts_are_made_in(
    shop: Shop, suite: Path, tmp_path: Path
) -> None:
    encoder = default_encoder()
    assert open_ground(suite, [tmp_path / "catalogue"], encoder=encoder).problems == shop.problems
    other = synthesise(compact_config(9, products=150, problems=6)).catalogue
    named = Catalogue.from_products(shop.world.catalogue.catalogue_id, other.products.values())
    write_catalogue(named, tmp_path / "other")
    with pytest.raises(InputError, match="not the one that the suite was made with"):
        open_ground(suite, [tmp_path / "other"], encoder=encoder)


def test_lines_of_a_catalogue_that_are_no_products_are_told(
    suite: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "catalogue"
    lines = (folder / "products.jsonl").read_bytes()
    (folder / "manifest.json").unlink()
    named = tmp_path / f"{read_suite(suite).problems[0].catalogue}.jsonl"
    named.write_bytes(lines + b"{}\n")
    with caplog.at_level(logging.WARNING):
        assert open_ground(suite, [named], encoder=default_encoder()).problems
    assert f"1 lines of the catalogues are no products, {named}:401 first" in caplog.text


def test_pools_that_were_edited_open_no_problem(shop: Shop, suite: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    folder = certified(tmp_path / "corpus")
    pools = dict.fromkeys((each.problem_id for each in shop.problems), "train")
    (folder / "pools.json").write_text(json.dumps(pools))
    with pytest.raises(IntegrityError, match=r"pools\.json is not the one"):
        open_ground(suite, [tmp_path / "catalogue"], folder, encoder=default_encoder())


def test_another_suite_with_the_ids_of_the_corpus_opens_no_problem(
    shop: Shop, suite: Path, tmp_path: Path
) -> None:
    """Its problems may be anybody's held-out ones: the pools were told of others."""
    (tmp_path / "corpus").mkdir()
    folder = certified(tmp_path / "corpus")
    lines = [to_json(replace(each, query=f"{each.query} now")) + b"\n" for each in shop.problems]
    (folder / "problems.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=r"another problem than that of the corpus \(text\)"):
        open_ground(suite, [tmp_path / "catalogue"], folder, encoder=default_encoder())
