"""Public task files and arena suites import whole; every bad row is a reject with its reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.records import InputError, PriceRange
from palio.world.importing import import_suite
from palio.world.rows import BadRowError
from palio.world.tasks import problem_of_row

ITEM: dict[str, Any] = {"product_id": "1", "title": ["Mug"]}
VOUCHER: dict[str, Any] = {
    "voucher_type": "shop",
    "threshold": 10,
    "discount_type": "percentage",
    "face_value": None,
    "discount": 0.3,
    "cap": 5,
    "price_after_voucher": 9.5,
    "budget": 10,
}
ROW: dict[str, Any] = {"query": "a mug", "reward": ITEM}


def row(**changes: Any) -> bytes:
    return json.dumps({**ROW, **changes}).encode()


BAD = [
    (b"{broken", "json"),
    (b"[]", "type"),
    (row(query=None), "type"),
    (row(query=" "), "query"),
    (row(query="a\x00b"), "text"),
    (row(query="\ud800"), "encoding"),
    (row(reward=None), "type"),
    (row(reward=[]), "type"),
    (row(reward={"title": ["x"]}), "type"),
    (row(category="Bundle"), "kind"),
    (row(category="Voucher"), "kind"),
    (row(category="Shop"), "kind"),
    (row(voucher=VOUCHER), "type"),
    (row(reward=[ITEM], voucher={**VOUCHER, "voucher_type": "mall"}), "type"),
    (row(reward=[ITEM], voucher={**VOUCHER, "discount": 34}), "voucher"),
    (row(reward=[ITEM], voucher={**VOUCHER, "discount_type": "fixed"}), "voucher"),
    (row(reward=[ITEM], voucher={**VOUCHER, "budget": float("nan")}), "number"),
    (row(reward=[ITEM], voucher={**VOUCHER, "threshold": -1}), "voucher"),
    (row(reward={**ITEM, "service": ["LazMall"]}), "service"),
    (row(reward={**ITEM, "price": [{"around": [1, 2]}]}), "price"),
    (row(reward={**ITEM, "price": [{"between": [2, 1]}]}), "price"),
    (row(reward={**ITEM, "price": [{"less than": [None, None]}]}), "price"),
    (row(reward={**ITEM, "price": [{"less than": [5]}]}), "price"),
    (row(reward={**ITEM, "price": [{"less than": [None, "5"]}]}), "type"),
    (row(reward={**ITEM, "attributes": {"a": ["b"]}}), "type"),
]


class TestRows:
    @pytest.mark.parametrize(("data", "reason"), BAD)
    def test_bad_rows_have_their_reason(self, data: bytes, reason: str) -> None:
        with pytest.raises(BadRowError) as caught:
            problem_of_row(data, 0, "f")
        assert caught.value.reason == reason

    def test_the_kind_follows_from_the_shape(self) -> None:
        for changes, kind in (
            ({}, "product"),
            ({"reward": [ITEM, ITEM]}, "shop"),
            ({"reward": [ITEM], "voucher": VOUCHER}, "voucher"),
            (
                {"Knowledge_Attribute": 1989, "reward": {**ITEM, "title": "Mug", "price": 3.5}},
                "web",
            ),
            ({"category": "Product", "difficulty": "easy"}, "product"),
        ):
            made = problem_of_row(row(**changes), 4, "file.jsonl")
            assert (made.kind, made.problem_id) == (kind, f"{kind}-4")
            assert made.source == "file.jsonl"

    def test_a_reward_in_full(self) -> None:
        reward = {
            "product_id": 12,
            "title": ["Mug"],
            "sku_options": [{"color": "red"}],
            "attributes": [{"material": ["clay"]}, {"year": 2011}],
            "service": ["COD"],
            "price": [{"less than": [None, 5]}, {"greater than": [2, None]}],
        }
        (made,) = problem_of_row(row(reward=reward), 0, "").rewards
        assert made.product_id == "12"
        assert made.attributes == ({"material": ("clay",)}, {"year": ("2011",)})
        assert made.price == (
            PriceRange(mode="less than", high=5.0),
            PriceRange(mode="greater than", low=2.0),
        )

    @given(st.binary(max_size=100) | st.text(max_size=60).map(str.encode))
    def test_any_bytes_are_refused_with_a_reason(self, data: bytes) -> None:
        with pytest.raises(BadRowError):
            problem_of_row(data, 0, "")


class TestFiles:
    def test_lines_with_every_fault(self, tmp_path: Path) -> None:
        path = tmp_path / "tasks.jsonl.gz"
        rows = [row(), *(data for data, _ in BAD), row(query="x" * 10**7), row(problem_id="p")]
        path.write_bytes(gzip.compress(b"\n".join([*rows, row(problem_id="p")]), 1))
        suite, rejects = import_suite(path)
        assert [problem.problem_id for problem in suite.problems] == ["product-0", "p"]
        reasons = [reason for _, reason in BAD] + ["too_long", "duplicate_id"]
        assert [reject.reason for reject in rejects] == reasons
        assert [reject.line for reject in rejects][-2:] == [len(BAD) + 2, len(BAD) + 4]
        assert suite.suite_id == "tasks"

    def test_arrays_with_every_fault(self, tmp_path: Path) -> None:
        path = tmp_path / "suite.json"
        whole = [data for data, reason in BAD if reason not in ("json", "encoding")]
        rows = [row(category="Product"), *whole, row(query="x" * 10**7), row()]
        path.write_bytes(b"\xef\xbb\xbf [\n" + b"\n,\n".join(rows) + b"]\n")
        suite, rejects = import_suite(path, suite_id="arena")
        expected = ["product-0", f"product-{len(rows) - 1}"]
        assert [problem.problem_id for problem in suite.problems] == expected
        assert [reject.line for reject in rejects] == list(range(2, len(rows)))

    @pytest.mark.parametrize(
        "tail", [b", {broken", b" {}", b"", b", ", b", [[[[", b"] junk", b"," + b"[" * 10**5]
    )
    def test_a_broken_array_keeps_the_rows_before_the_break(
        self, tmp_path: Path, tail: bytes
    ) -> None:
        path = tmp_path / "cut.json"
        path.write_bytes(b"[" + row() + b"," + row() + tail)
        suite, rejects = import_suite(path)
        assert len(suite.problems) == 2
        assert [reject.reason for reject in rejects] == ["json"]

    def test_files_that_hold_nothing(self, tmp_path: Path) -> None:
        for name, data in {
            "empty": b"",
            "list": b"[]",
            "blank": b"\n \n",
            "utf": b"[\xff]",
        }.items():
            (tmp_path / name).write_bytes(data)
            suite, rejects = import_suite(tmp_path / name)
            assert suite.problems == ()
            assert len(rejects) == (name == "utf")
        with pytest.raises(InputError, match="no such file"):
            import_suite(tmp_path / "missing")
        with pytest.raises(InputError, match="no task file"):
            import_suite()


@pytest.mark.shared
class TestReal:
    def test_the_900_public_tasks(self, shared_data: Path) -> None:
        names = ("product", "shop", "voucher", "web_simpleqa")
        suite, rejects = import_suite(
            *(shared_data / f"tasks_shoppingbench_{name}.jsonl" for name in names)
        )
        assert rejects == ()
        kinds = [problem.kind for problem in suite.problems]
        assert {kind: kinds.count(kind) for kind in kinds} == {
            "product": 250,
            "shop": 250,
            "voucher": 250,
            "web": 150,
        }
        by_id = {problem.problem_id: problem for problem in suite.problems}
        assert by_id["product-2"].rewards[0].price == (PriceRange(mode="greater than", low=375.0),)
        assert by_id["web-0"].knowledge == "Violin"
        assert sum(p.kind == "web" and (p.knowledge or "").isdigit() for p in suite.problems) == 11

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_the_arena_suites(self, shared_data: Path, version: int) -> None:
        suite, rejects = import_suite(shared_data / f"oro_suite_v{version}.json")
        assert rejects == ()
        assert [problem.kind for problem in suite.problems].count("shop") == 10
        assert len({problem.problem_id for problem in suite.problems}) == 30
        assert all(problem.difficulty and problem.title for problem in suite.problems)
