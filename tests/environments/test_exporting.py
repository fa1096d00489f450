"""Exports for verl and verifiers: their formats, and that held-out problems stay out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from msgspec.structs import replace
from typer.testing import CliRunner

from palio.cli.corpus import app
from palio.corpus.build import read_pools
from palio.records import (
    ConfigError,
    InputError,
    IntegrityError,
    Problem,
    Provenance,
    Reward,
    Suite,
    from_json,
)
from palio.suites.files import write_suite
from palio.train.environments.exporting import POOLS, export_shop, rl_row, rl_schema
from palio.train.environments.shop import Shop, ShopSettings, read_settings, shop_at
from palio.train.environments.verl_reward import CALLS, calls_of, noted, score
from palio.world.catalogue import Catalogue, write_catalogue
from palio.world.tools import FOUR_TOOLS, SEVEN_TOOLS
from tests.environments.conftest import Made, calls

GOLDEN = Path(__file__).with_name("rl_row.json")


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def exported(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("exported")
    for to in ("verl", "verifiers"):
        words = ["export", made.folder / "corpus", "--format", to, *made.options]
        result = run(*words, "--out", out / to, "--json")
        assert result.exit_code == 0, result.output
    return {to: out / to for to in ("verl", "verifiers")}


def test_a_row_of_verl_is_the_golden_one() -> None:
    problem = Problem(
        problem_id="p1",
        kind="shop",
        query="two mugs of one shop",
        rewards=(Reward(product_id="1", title=("blue mug",)), Reward(product_id="2")),
        catalogue="compact-3",
    )
    row = rl_row(problem, 4, "train", system="Be brief.", tools=FOUR_TOOLS)
    assert row == json.loads(GOLDEN.read_text())
    assert from_json(row["reward_model"]["ground_truth"].encode(), Problem) == problem


@pytest.mark.parametrize("edited", ["pools.json", "train.jsonl", "development.jsonl"])
def test_a_corpus_that_was_edited_lets_no_held_out_problem_into_an_export(
    made: Made, tmp_path: Path, edited: str
) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(made.folder / "corpus", corpus)
    if edited == "pools.json":
        pools = (corpus / edited).read_text()
        assert '"heldout"' in pools
        (corpus / edited).write_text(pools.replace('"heldout"', '"train"'))
    else:
        with (corpus / edited).open("ab") as rows:
            rows.write((corpus / "heldout.jsonl").read_bytes())
    suite, catalogues = made.folder / "suite.json", tuple(str(made.folder / n) for n in made.worlds)
    for to in ("verl", "verifiers"):
        with pytest.raises(IntegrityError, match=f"{edited} is not the one that"):
            export_shop(to, corpus, suite, ShopSettings(catalogues=catalogues), tmp_path / to)
        assert not (tmp_path / to).exists()


def test_verl_s_pools_are_the_corpus_and_held_out_is_nowhere(
    made: Made, exported: dict[str, Path]
) -> None:
    out, pools = exported["verl"], read_pools(made.folder / "corpus")
    seen = []
    for pool in POOLS:
        table = pq.read_table(out / "rl" / f"{pool}.parquet")
        assert table.schema.equals(rl_schema(SEVEN_TOOLS))
        rows = table.to_pylist()
        lines = [json.loads(x) for x in (out / "rl" / f"{pool}.jsonl").read_text().splitlines()]
        assert rows == lines
        assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
        for row in rows:
            info = row["extra_info"]
            problem = from_json(row["reward_model"]["ground_truth"].encode(), Problem)
            assert pools[info["problem_id"]] == info["split"] == pool
            assert row["prompt"] == [{"role": "user", "content": problem.query}]
            for tool in SEVEN_TOOLS:
                told = info["tools_kwargs"][tool]["create_kwargs"]["catalogue"]
                assert told == problem.catalogue
        seen += [row["extra_info"]["problem_id"] for row in rows]
        talks = pq.read_table(out / "sft" / f"{pool}.parquet").to_pylist()
        assert talks
        assert {pools[talk["problem_id"]] for talk in talks} == {pool}
        assert [t["function"]["name"] for t in json.loads(talks[0]["tools"])] == [*SEVEN_TOOLS]
    assert sorted(seen) == sorted(name for name, pool in pools.items() if pool in POOLS)
    text = b"".join(path.read_bytes() for path in out.rglob("*.jsonl")).decode()
    held = [each for each in made.problems if pools[each.problem_id] == "heldout"]
    assert held
    assert not [each for each in held if f'"{each.problem_id}"' in text or each.query in text]


def test_both_folders_say_what_they_are(exported: dict[str, Path], made: Made) -> None:
    for to, out in exported.items():
        manifest = from_json((out / "manifest.json").read_bytes(), Provenance)
        files = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
        assert set(manifest.outputs) == files - {"manifest.json"}
        assert manifest.counts["problems:train"] > 0
        settings = read_settings(next(out.rglob("shop.json")))
        assert len(settings.catalogues) == len(made.worlds)
        digests = {name: world.catalogue.digest for name, world in made.worlds.items()}
        assert settings.digests == digests
        listed = {f"catalogue:{name}": found for name, found in digests.items()}
        assert listed.items() <= manifest.inputs.items()
        assert to in (out / "README.md").read_text()
    config = yaml.safe_load((exported["verl"] / "tools.yaml").read_text())
    assert [tool["config"]["tool"] for tool in config["tools"]] == [*SEVEN_TOOLS]


def test_the_reward_file_scores_what_the_tools_left_or_the_text_says(
    made: Made, exported: dict[str, Path]
) -> None:
    out = exported["verl"]
    names: dict[str, Any] = {"__file__": str(out / "reward.py")}
    exec(compile((out / "reward.py").read_text(), "reward.py", "exec"), names)
    rewards = []
    for problem, record in made.runs[:24]:
        text = "\n".join(
            f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>\n'
            f"<tool_response>\nnoise <tool_call>{{}}</tool_call>\n</tool_response>"
            for tool, arguments in calls(record)
        )
        left = {CALLS: [noted(tool, json.loads(given)) for tool, given in calls(record)]}
        truth = json.dumps(json.loads(problem_json(problem)))
        told = {"data_source": "palio", "solution_str": text, "ground_truth": truth}
        first = names["compute_score"](**told, extra_info=left)
        second = names["compute_score"](**told, extra_info={"num_turns": 3}, reward_router=None)
        assert first == second
        assert set(first) == {"score", "strict", "rule", "unscored"}
        rewards.append(first["score"])
    assert {*rewards} == {0.0, 1.0}


def problem_json(problem: Problem) -> bytes:
    from palio.records import to_json

    return to_json(problem)


def test_calls_of_an_earlier_rollout_are_not_this_one_s() -> None:
    left = {CALLS: [["recommend_product", "{}"]]}
    assert calls_of("I give up.", left) == ()
    left = {CALLS: [["recommend_product", "{}"]]}
    assert len(calls_of("<tool_call>{}</tool_call>", left)) == 1
    assert calls_of("<tool_call>{oops</tool_call>", left) == (), "they were the first one's"


def test_a_shop_is_opened_with_the_catalogues_that_it_was_exported_for(
    made: Made, tmp_path: Path
) -> None:
    """Prices, and so rewards, come from them."""
    name, world = next(iter(made.worlds.items()))
    one, *rest = world.catalogue.products.values()
    dearer = Catalogue.from_products(name, [replace(one, price=one.price + 1), *rest])
    write_catalogue(dearer, tmp_path / name)
    own = ShopSettings(catalogues=(str(made.folder / name),))
    held = replace(own, digests=Shop.open(own).digests)
    assert held.digests == {name: world.catalogue.digest}
    moved = replace(held, catalogues=(str(tmp_path / name),))
    with pytest.raises(IntegrityError, match="not the one that this was exported for"):
        Shop.open(moved)
    assert Shop.open(held).digests == held.digests
    assert Shop.open(replace(moved, digests={})).digests, "an export of an older version"


def test_what_is_missing_is_said(made: Made, tmp_path: Path) -> None:
    corpus = made.folder / "corpus"
    result = run("export", corpus, "--to", "verl", "--out", tmp_path)
    assert isinstance(result.exception, ConfigError)
    result = run("export", corpus, "--to", "csv", "--out", tmp_path)
    assert "verifiers" in str(result.exception)
    other = tmp_path / "other.json"
    write_suite(Suite(suite_id="o", version="1", problems=(made.problems[0],)), other)
    pools = read_pools(corpus)
    stranger = next(each for each in made.problems if pools[each.problem_id] != "train")
    write_suite(Suite(suite_id="o", version="1", problems=(stranger,)), other)
    folders = tuple(str(made.folder / name) for name in made.worlds)
    with pytest.raises(InputError, match="training pool"):
        export_shop("verl", corpus, other, ShopSettings(catalogues=folders), tmp_path / "out")
    with pytest.raises(InputError, match="no settings"):
        shop_at(str(tmp_path / "none.json"))


def test_the_modules_for_other_packages_say_what_they_need() -> None:
    import importlib.util

    from palio.records import MissingDependencyError

    for name, needs in (
        ("verl_tools", "verl"),
        ("verl_data", "verl"),
        ("verifiers_env", "verifiers"),
    ):
        if importlib.util.find_spec(needs) is None:
            with pytest.raises(MissingDependencyError, match=needs):
                importlib.import_module(f"palio.train.environments.{name}")


def test_a_success_is_scored(made: Made, exported: dict[str, Path]) -> None:
    shop = shop_at(str(exported["verl"] / "shop.json"))
    problem, record = made.runs[0]
    left = {CALLS: [[*call] for call in calls(record)]}
    marks = score(shop, "<tool_call>", problem_json(problem).decode(), left)
    assert marks == {"score": 1.0, "strict": 1.0, "rule": 1.0, "unscored": 0.0}
