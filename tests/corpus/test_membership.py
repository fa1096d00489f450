"""Ids alone make nothing held out: problems and catalogues must be those that the corpus split."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from palio.corpus.membership import check_catalogues, check_problems
from palio.records import InputError, Product
from palio.world.artefacts import MANIFEST, read_manifest, write_manifest
from palio.world.catalogue import Catalogue
from tests.leak.making import CONFIG, corpus, people
from tests.suites.making import VOUCHER

PROBLEMS = people(12)
SUITE = Path("suite.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("membership") / "corpus", PROBLEMS)


def test_its_own_problems_pass_with_other_labels_and_among_others(folder: Path) -> None:
    labelled = [structs.replace(each, difficulty="hard", bank="b") for each in PROBLEMS]
    elsewhere = structs.replace(PROBLEMS[0], problem_id="elsewhere", query="anything")
    check_problems(folder, [*labelled, elsewhere], SUITE)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"query": "I would like a red lamp with a brass foot."}, "text"),
        (
            {"rewards": (structs.replace(PROBLEMS[3].rewards[0], product_id="5"),)},
            "product",
        ),
        (
            {"rewards": (structs.replace(PROBLEMS[3].rewards[0], title=("a lamp",)),)},
            "spec",
        ),
        ({"voucher": VOUCHER}, "voucher"),
    ],
)
def test_another_problem_of_the_same_id_is_refused(
    folder: Path, changed: dict[str, object], rule: str
) -> None:
    given = list(PROBLEMS)
    given[3] = structs.replace(given[3], **changed)
    with pytest.raises(InputError, match=r"suite\.json: problem 4: 'p003' is another") as refused:
        check_problems(folder, given, SUITE)
    assert f"({rule})" in str(refused.value)


def test_a_corpus_that_scrubs_requests_knows_its_own_problems(tmp_path: Path) -> None:
    first, *rest = PROBLEMS
    first = structs.replace(first, query=f"{first.query} Write to maria.santos@example.org then.")
    made = corpus(tmp_path / "corpus", (first, *rest), structs.replace(CONFIG, scrub=("personal",)))
    assert "maria" not in (made / "problems.jsonl").read_text()
    check_problems(made, [first, *rest], SUITE)
    other = structs.replace(first, query=f"{first.query} And a lamp.")
    with pytest.raises(InputError, match=r"\(text\)"):
        check_problems(made, [other, *rest], SUITE)


def test_a_folder_that_publishes_no_problems_cannot_be_compared(tmp_path: Path) -> None:
    (tmp_path / "pools.json").write_text("{}")
    check_problems(tmp_path, PROBLEMS, SUITE)
    check_catalogues(tmp_path, {"shop": Catalogue("shop", {}).digest})


def test_another_catalogue_of_the_same_name_is_refused(folder: Path, tmp_path: Path) -> None:
    product = Product(product_id="1", shop_id="2", title="a lamp", price=3.0)
    own, other = Catalogue("shop", {"1": product}), Catalogue("shop", {})
    assert own.digest != other.digest
    manifest = read_manifest(folder / MANIFEST)
    assert manifest is not None
    listed = structs.replace(manifest, inputs={**manifest.inputs, "catalogue:shop": own.digest})
    write_manifest(listed, tmp_path / MANIFEST)
    check_catalogues(tmp_path, {"shop": own.digest, "another": other.digest})
    with pytest.raises(InputError, match="'shop' is not the one of that name"):
        check_catalogues(tmp_path, {"shop": other.digest})
    grown = structs.replace(listed, inputs={**listed.inputs, "previous": "sha256:0"})
    write_manifest(grown, tmp_path / MANIFEST)
    check_catalogues(tmp_path, {"shop": other.digest})
