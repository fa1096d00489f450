"""Bytes enter once: every bad line becomes a reject with its reason, and the good ones stay."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.records import (
    InputError,
    IntegrityError,
    Product,
    Provenance,
    Reject,
    from_json,
    to_json,
)
from palio.world.catalogue import Catalogue, read_catalogue, write_catalogue
from palio.world.rows import BadRowError, product_of_line
from palio.world.streaming import import_catalogue
from tests.world.shelf import product, shelf

GOOD: dict[str, Any] = {
    "product_id": "7",
    "shop_id": "s",
    "title": "mug",
    "price": 5,
    "service": ["COD"],
    "attributes": {"material": "clay", "use": ["tea", "milk"], "year": [2011]},
    "sku_options": {"1": {"color": "red", "volume": 2.0}},
    "_meta": {"source": "anywhere"},
}


def line(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


BAD = [
    (b'{"product_id": "1", "shop', "json"),
    (b"[1, 2]", "type"),
    (b"not json at all", "json"),
    (b'{"a":' + b"[" * 100_000, "json"),
    (line(price="5"), "type"),
    (line(price=None), "type"),
    (line(price=True), "type"),
    (line(price=float("nan")), "number"),
    (line(price=float("inf")), "number"),
    (line().replace(b'"price": 5', b'"price": 1e999'), "number"),
    (line(price=-1), "price"),
    (line(service=["LazMall"]), "service"),
    (line(service=[1]), "type"),
    (line(sold_count=-3), "sold_count"),
    (line(sold_count=1.5), "sold_count"),
    (line(product_id=""), "id"),
    (line(product_id="1,2"), "id"),
    (line(product_id=" 1"), "id"),
    (line(product_id="a\tb"), "id"),
    (line(product_id=1.5), "type"),
    (line(product_id=None), "id"),
    (line(shop_id=["s"]), "type"),
    (line(title=None), "type"),
    (line(title="a\x00b"), "text"),
    (line(title="a\ud800b"), "encoding"),
    (line(title="\udfff\ud800"), "encoding"),
    (line().replace(b"mug", b"m\xffg"), "encoding"),
    (line().replace(b"mug", b"m\x00g"), "json"),
    (line(attributes=[1]), "type"),
    (line(attributes={"a": {"b": 1}}), "type"),
    (line(sku_options={"1": ["red"]}), "type"),
    (b'{"id": "9", "contents": "x", "product": {"product_id": "8"}}', "type"),
    (b'{"id": "9", "contents": "x", "product": ' + line() + b"}", "id"),
    (b'{"id": "9", "contents": "x", "product": [1]}', "type"),
]


class TestRows:
    @pytest.mark.parametrize(("data", "reason"), BAD)
    def test_bad_lines_have_their_reason(self, data: bytes, reason: str) -> None:
        with pytest.raises(BadRowError) as caught:
            product_of_line(data)
        assert caught.value.reason == reason
        assert 0 < len(caught.value.detail) < 400

    def test_a_row_in_its_many_spellings(self) -> None:
        made = product_of_line(line())
        assert made.attributes == {"material": ("clay",), "use": ("tea", "milk"), "year": ("2011",)}
        assert made.sku_options == {"1": {"color": "red", "volume": "2"}}
        assert made.price == 5.0
        assert isinstance(made.price, float)
        plain = product_of_line(line(sku_options=[], attributes=[], service=None, brand=None))
        assert (plain.sku_options, plain.attributes, plain.service) == ({}, {}, ())
        listed = product_of_line(
            line(sku_options=[{"a": "x"}, {"a": "y"}], service="COD, official")
        )
        assert listed.sku_options == {"1": {"a": "x"}, "2": {"a": "y"}}
        assert listed.service == ("COD", "official")

    def test_ids_may_be_numbers_and_documents_wrap_products(self) -> None:
        wrapped = {"id": 7, "contents": "mug", "product": {**GOOD, "product_id": 7, "shop_id": 12}}
        made = product_of_line(json.dumps(wrapped).encode())
        assert (made.product_id, made.shop_id) == ("7", "12")
        del wrapped["product"]["product_id"]
        assert product_of_line(json.dumps(wrapped).encode()).product_id == "7"

    @given(st.binary(max_size=200))
    def test_any_bytes_are_a_product_or_a_reason(self, data: bytes) -> None:
        with pytest.raises(BadRowError):
            product_of_line(data)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=6,
        ),
        st.sampled_from(sorted(GOOD)),
    )
    @settings(max_examples=300)
    def test_any_value_in_any_field_is_a_product_or_a_reason(self, value: Any, field: str) -> None:
        try:
            made = product_of_line(json.dumps({**GOOD, field: value}).encode())
        except BadRowError:
            return
        else:
            assert from_json(to_json(made), Product) == made
            assert product_of_line(to_json(made)) == made


def messy_file(folder: Path, name: str = "messy.jsonl") -> Path:
    rows = [line(product_id=str(n)) for n in (9, 3, 10)]
    rows += [data for data, _ in BAD if b"\n" not in data]
    rows += [b"", line(product_id="3", title="again"), line(product_id="11", title="x" * 10**7)]
    rows += [line(product_id="1")]
    path = folder / name
    data = b"\xef\xbb\xbf" + b"\r\n".join(rows)
    if name.endswith(".gz"):
        data = gzip.compress(data, 1)
    if name.endswith(".zst"):
        half = len(data) // 2
        data = b"".join(zstandard.compress(part) for part in (data[:half], data[half:]))
    path.write_bytes(data)
    return path


class TestFiles:
    @pytest.mark.parametrize("name", ["messy.jsonl", "messy.jsonl.gz", "messy.jsonl.zst"])
    def test_a_messy_file_keeps_the_good_lines_and_names_the_bad(
        self, tmp_path: Path, name: str
    ) -> None:
        source = messy_file(tmp_path, name)
        catalogue, rejects = read_catalogue(source)
        assert list(catalogue.products) == ["1", "10", "3", "9"]
        assert catalogue.products["3"].title == "mug"
        assert catalogue.catalogue_id == "messy"
        reasons = [reason for _, reason in BAD] + ["duplicate_id", "too_long"]
        assert [reject.reason for reject in rejects] == reasons
        assert [r.line for r in rejects if r.reason in ("duplicate_id", "too_long")] == [39, 40]
        assert {reject.file for reject in rejects} == {str(source)}

    @pytest.mark.parametrize(
        ("data", "why"), [(b"", "no product .check"), (b"\xff\xfe\x00", "line 1: .*UTF-8")]
    )
    def test_a_file_without_products_is_refused(
        self, tmp_path: Path, data: bytes, why: str
    ) -> None:
        (tmp_path / "none.jsonl").write_bytes(data)
        with pytest.raises(InputError, match=why) as caught:
            read_catalogue(tmp_path / "none.jsonl")
        assert caught.value.where.endswith("none.jsonl")

    def test_import_writes_folder_rejects_and_manifest(self, tmp_path: Path) -> None:
        source = messy_file(tmp_path, "documents.jsonl.gz")
        seen: list[tuple[int, int, int]] = []
        manifest = import_catalogue(
            source, tmp_path / "out", run_bytes=100, progress=lambda *at: seen.append(at)
        )
        catalogue, nothing = read_catalogue(tmp_path / "out")
        assert nothing == ()
        assert catalogue.products == read_catalogue(source)[0].products
        assert catalogue.catalogue_id == "documents"
        assert manifest.outputs["products.jsonl"] == catalogue.digest
        counts = dict(manifest.counts)
        assert counts.pop("in") == sum(counts.values()) == 4 + len(BAD) + 2
        rows = (tmp_path / "out" / "rejects.jsonl").read_bytes().splitlines()
        assert len([from_json(row, Reject) for row in rows]) == len(BAD) + 2
        assert from_json((tmp_path / "out" / "manifest.json").read_bytes(), Provenance) == manifest
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            "manifest.json",
            "products.jsonl",
            "rejects.jsonl",
        ]
        assert seen[-1][0] == seen[-1][1] == source.stat().st_size

    def test_a_truncated_archive_gives_what_it_holds(self, tmp_path: Path) -> None:
        whole = gzip.compress(b"\n".join(line(product_id=str(n)) for n in range(5000)), 1)
        (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
        catalogue, rejects = read_catalogue(tmp_path / "cut.gz")
        assert 100 < len(catalogue) < 5000
        assert [reject.reason for reject in rejects] == ["compression"]

    def test_files_without_a_product_are_refused_with_their_reasons(self, tmp_path: Path) -> None:
        (tmp_path / "bad.jsonl").write_bytes(b"nothing\nhere\n")
        with pytest.raises(InputError, match="2 json"):
            import_catalogue(tmp_path / "bad.jsonl", tmp_path / "out")
        assert not (tmp_path / "out" / "manifest.json").exists()
        with pytest.raises(InputError, match="no such file"):
            import_catalogue(tmp_path / "missing", tmp_path / "out")
        with pytest.raises(InputError, match="no such file"):
            read_catalogue(tmp_path)

    def test_round_trip_and_a_changed_file_is_noticed(self, tmp_path: Path) -> None:
        made = shelf()
        manifest = write_catalogue(made, tmp_path / "shelf")
        back, rejects = read_catalogue(tmp_path / "shelf")
        assert (back.products, back.digest, rejects) == (made.products, made.digest, ())
        assert manifest.outputs == {"products.jsonl": made.digest}
        path = tmp_path / "shelf" / "products.jsonl"
        path.write_bytes(path.read_bytes().replace(b"kettle", b"bottle"))
        with pytest.raises(IntegrityError, match="manifest"):
            read_catalogue(tmp_path / "shelf")

    def test_a_single_file_round_trips(self, tmp_path: Path) -> None:
        write_catalogue(shelf(), tmp_path / "one.jsonl")
        assert read_catalogue(tmp_path / "one.jsonl")[0].digest == shelf().digest
        assert (tmp_path / "one.jsonl.manifest.json").exists()


class TestCatalogue:
    def test_products_are_sorted_and_grouped_by_shop(self) -> None:
        catalogue = shelf()
        assert list(catalogue.products) == ["20", "21", "22", "3", "30", "4", "5"]
        assert catalogue.by_shop["s2"] == ("21", "30")
        assert len(catalogue) == 7

    @pytest.mark.parametrize(
        "wrong",
        [
            {"price": float("nan")},
            {"price": float("inf")},
            {"price": -1.0},
            {"service": ("fast",)},
            {"shop_id": ""},
        ],
    )
    def test_bad_products_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="catalogue c, product 2"):
            Catalogue.from_products("c", [product("1"), product("2", **wrong)])

    def test_duplicate_ids_are_refused(self) -> None:
        with pytest.raises(InputError, match="twice"):
            Catalogue.from_products("c", [product("1"), product("1")])

    def test_the_digest_is_about_products_only(self) -> None:
        products = list(shelf())
        assert Catalogue.from_products("other", products[::-1]).digest == shelf().digest
        assert Catalogue.from_products("other", products[1:]).digest != shelf().digest
        whole = Catalogue.from_products("c", [product("1", price=10)])
        assert whole.digest == Catalogue.from_products("c", [product("1")]).digest


@pytest.mark.shared
def test_real_products_import_without_a_reject(shared_data: Path, tmp_path: Path) -> None:
    manifest = import_catalogue(shared_data / "products_real.jsonl", tmp_path / "real")
    assert manifest.counts == {"in": 1844, "kept": 1844}
