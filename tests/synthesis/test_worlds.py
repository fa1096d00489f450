"""Worlds are reproducible, shaped as declared, hard for plain search and solvable by reading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.cli.world import app
from palio.records import ConfigError
from palio.suites import read_suite
from palio.world import read_catalogue
from palio.world.synthesis import compact_config, full_config, preset, synthesise
from palio.world.synthesis.wording import Bank, banks_for, load_banks, request_words
from tests.synthesis.measure import measured

COMPACT = synthesise(compact_config(7))


def frames(bank: Bank) -> tuple[str, ...]:
    """What a bank says around the things that are wanted."""
    several = (each.text for each in (*bank.shop, *bank.several))
    return (*bank.openers, *several, *bank.voucher.text)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("config", ["compact", "full"])
def test_equal_seeds_give_byte_identical_files(tmp_path: Path, config: str) -> None:
    size = ["--config", config, "--products", "700", "--problems", "40"]
    for name, seed in (("one", "5"), ("two", "5"), ("other", "6")):
        out = ["--out", str(tmp_path / name), "--seed", seed]
        result = CliRunner().invoke(app, ["generate", *size, *out])
        assert result.exit_code == 0, result.output
    one, two, other = (files(tmp_path / name) for name in ("one", "two", "other"))
    assert one == two
    assert all(one[name] != other[name] for name in one)
    catalogue, rejects = read_catalogue(tmp_path / "one")
    suite = read_suite(tmp_path / "one" / "suite.json")
    assert (catalogue.catalogue_id, rejects) == (f"{config}-5", ())
    assert (len(catalogue), len(suite.problems)) == (700, 40)
    assert {problem.catalogue for problem in suite.problems} == {f"{config}-5"}
    assert set(one) == {
        "products.jsonl", "suite.json", "decoys.jsonl", "families.json", "manifest.json"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--kind", "webb"], "no kind of problems is called 'webb'"),
        (["--config", "small"], "no world is named 'small'"),
        (["--kind", "web", "--config", "small"], "no world is named 'small'"),
    ],
)
def test_what_is_not_known_is_not_generated(tmp_path: Path, options: list[str], what: str) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["generate", "--out", str(out), *options])
    assert isinstance(result.exception, ConfigError)
    assert what in str(result.exception)
    assert not out.exists()


def test_compact_products_are_compact() -> None:
    shops = {product.shop_id for product in COMPACT.catalogue}
    assert not shops & set(COMPACT.catalogue.products)
    assert all(re.fullmatch(r"\d{4}", shop) for shop in shops)
    for product in COMPACT.catalogue:
        assert re.fullmatch(r"\d{4}", product.product_id)
        assert re.fullmatch(r"[a-z]+ [a-z]+ [a-z]+", product.title)
        assert product.price.is_integer()
        assert 20 <= product.price <= 990
        assert set(product.sku_options) == {"1"}
        assert set(product.sku_options["1"]) == {"color", "size"}
        assert set(product.attributes) == {"material", "pattern"}


def test_compact_requests_are_short_and_spell_few_words() -> None:
    brands = {product.brand for product in COMPACT.catalogue}
    known = set(request_words("compact")) | brands
    lengths = []
    for problem in COMPACT.problems:
        assert re.fullmatch(r"[a-z0-9 .,:;?()']+", problem.query)
        words = re.findall(r"[a-z]+", problem.query)
        assert set(words) <= known
        lengths.append(len(problem.query.split()))
    assert 15 <= sum(lengths) / len(lengths) <= 25
    assert max(lengths) <= 40


def test_full_products_look_like_a_marketplace() -> None:
    world = synthesise(full_config(9, products=2_000, problems=90))
    products = list(world.catalogue)
    titles = [len(product.title.split()) for product in products]
    assert 8 <= sum(titles) / len(titles) <= 20
    assert any(len(product.sku_options) > 3 for product in products)
    assert all(1 <= len(product.sku_options) <= 9 for product in products if product.sku_options)
    assert len({product.category for product in products}) > 80
    assert all(product.description and product.brand for product in products)
    kinds = {(p.kind, len(p.rewards)) for p in world.problems}
    assert {("shop", 2), ("shop", 4), ("voucher", 1), ("voucher", 4)} <= kinds
    assert any("My budget is only `" in p.query for p in world.problems)


@pytest.mark.parametrize(("kind", "first", "careful"), [
    ("product", 0.4, 0.95), ("shop", 0.1, 0.95), ("voucher", 0.45, 0.95),
])  # fmt: skip
def test_the_compact_world_is_hard_for_first_hit_and_solvable(
    kind: str, first: float, careful: float
) -> None:
    shares = measured(COMPACT, kind)
    assert shares["n"] == 100
    assert shares["first"] < first
    assert shares["careful"] >= careful


def test_full_product_problems_meet_the_issue_s_bounds_on_a_thousand() -> None:
    world = synthesise(full_config(0, products=10_000, counts=(1_000, 0, 0)))
    shares = measured(world, "product")
    assert shares["n"] == 1_000
    assert shares["first"] < 0.40
    assert shares["careful"] >= 0.90
    assert shares["top50"] >= 0.95


def test_reachability_is_decided_by_the_pool() -> None:
    import msgspec

    deep = compact_config(3, products=400, problems=60)
    shallow = msgspec.structs.replace(deep, pool=1)
    assert all(problem.reachable for problem in synthesise(deep).problems)
    flags = [problem.reachable for problem in synthesise(shallow).problems]
    assert 0 < flags.count(False) < len(flags)


def test_banks_can_be_held_back() -> None:
    world = synthesise(compact_config(3, products=400, problems=30, banks=("compact-ask",)))
    assert world.composition["banks"] == {"compact-ask": 30}
    with pytest.raises(ConfigError, match="no paraphrase bank 'haiku'"):
        synthesise(compact_config(3, banks=("haiku",)))


@pytest.mark.parametrize("world", ["compact", "full"])
def test_special_banks_are_drawn_from_only_where_they_are_named(world: str) -> None:
    make = {"compact": compact_config, "full": full_config}[world]
    measuring = banks_for(world, "measuring")
    usual = synthesise(make(4, products=700, problems=60))
    assert {problem.bank for problem in usual.problems} == set(banks_for(world, "usual"))
    asked = synthesise(make(4, products=700, problems=60, banks=measuring))
    assert {problem.bank for problem in asked.problems} == set(measuring)


@pytest.mark.parametrize("world", ["compact", "full"])
def test_words_for_measuring_frame_requests_as_no_other_bank_does(world: str) -> None:
    said: dict[bool, set[str]] = {True: set(), False: set()}
    for bank in load_banks(world):
        said[bank.use == "measuring"].update(frames(bank))
    assert said[True]
    assert not said[True] & said[False]


def test_the_brand_seed_alone_decides_brands() -> None:
    brands = [
        {product.brand for product in synthesise(compact_config(seed, brand_seed=1)).catalogue}
        for seed in (3, 4)
    ]
    assert len(brands[0] & brands[1]) > 100
    assert len(brands[0] & {product.brand for product in COMPACT.catalogue}) < 12


def test_what_cannot_be_made_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"need \d+ products.*at least"):
        synthesise(compact_config(1, products=300, problems=300))
    with pytest.raises(ConfigError, match="4-digit"):
        compact_config(1, products=8_000)
    with pytest.raises(ConfigError, match="negative"):
        full_config(1, products=-1)
    with pytest.raises(ConfigError, match="compact, full"):
        preset("moon", 1)


def test_composition_adds_up() -> None:
    composition = COMPACT.composition
    assert composition["problems"] == {"product": 100, "shop": 100, "voucher": 100}
    for label in ("banks", "difficulty", "reachable"):
        assert sum(composition[label].values()) == 300
    shares = composition["share of problems with a decoy that violates"]
    assert set(shares) == {"trait", "service", "price", "shop", "budget"}
