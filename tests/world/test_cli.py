"""palio world and palio suite: counts on the screen, JSON for programs, clear errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.cli.main import app
from palio.records import ConfigError, InputError
from palio.world import read_catalogue, write_catalogue
from tests.world.shelf import shelf

RUN = CliRunner()


def run(*arguments: object) -> str:
    result = RUN.invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_import_shows_counts_by_reason(tmp_path: Path) -> None:
    source = tmp_path / "some.jsonl"
    source.write_text('{"product_id":1,"shop_id":2,"title":"mug","price":3}\nnonsense\n{}\n')
    shown = run("world", "import", source, "--out", tmp_path / "cat")
    assert "rejected:json" in shown
    manifest = json.loads(run("world", "import", source, "--out", tmp_path / "cat", "--json"))
    assert manifest["counts"] == {"in": 3, "kept": 1, "rejected:json": 1, "rejected:type": 1}
    about = json.loads(run("world", "info", tmp_path / "cat", "--json"))
    assert (about["products"], about["shops"], about["catalogue_id"]) == (1, 1, "some")


def test_search_tools_and_call(tmp_path: Path) -> None:
    write_catalogue(shelf(), tmp_path / "shelf")
    found = json.loads(run("world", "search", tmp_path / "shelf", "wool", "--shop", "s2", "--json"))
    assert [row["product_id"] for row in found] == ["30", "21"]
    assert "wool hat wool" in run("world", "search", tmp_path / "shelf", "hat")
    assert len(json.loads(run("world", "tools", "--json"))) == 7
    assert "terminate(status)" in run("world", "tools", "terminate")
    seen = run("world", "call", tmp_path / "shelf", "view_product_information", '{"product_id":20}')
    assert json.loads(seen)[0]["product_id"] == "20"
    wrong = RUN.invoke(app, ["world", "call", str(tmp_path / "shelf"), "fly"])
    assert wrong.exit_code == 1
    assert "there is no tool" in wrong.stdout


@pytest.mark.parametrize("config", ["compact", "full"])
def test_a_generated_world_shows_the_rows_it_was_made_for(tmp_path: Path, config: str) -> None:
    size = ("--config", config, "--products", 100, "--problems", 3)
    run("world", "generate", "--out", tmp_path / "made", *size)
    catalogue, _ = read_catalogue(tmp_path / "made")
    assert catalogue.rows == config
    write_catalogue(catalogue, tmp_path / "copy")
    title = next(iter(catalogue)).title
    for folder in (tmp_path / "made", tmp_path / "copy"):
        for choice in ([], ["--world", "compact"], ["--world", "full"]):
            row = json.loads(run("world", "search", folder, title, "--json", *choice))[0]
            assert ("service" in row) == ((choice[1:] or [config])[0] == "full")
            arguments = json.dumps({"q": title})
            called = run("world", "call", folder, "find_product", arguments, *choice)
            assert json.loads(called)[0] == row
    run("world", "import", tmp_path / "made" / "products.jsonl", "--out", tmp_path / "imported")
    assert read_catalogue(tmp_path / "imported")[0].rows == "full"
    with pytest.raises(ConfigError, match="no world is called 'huge'"):
        run("world", "search", tmp_path / "made", title, "--world", "huge")


def test_suites_are_imported_listed_and_described(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"query":"mug","reward":{"product_id":"1","title":["Mug"]}}\n{}\n')
    imported = json.loads(run("suite", "import", tasks, "--out", tmp_path / "s.json", "--json"))
    assert (imported["problems"], imported["rejected"]) == (1, {"type": 1})
    assert imported["suite_id"] == "s"
    (listed,) = json.loads(run("suite", "list", tmp_path, "--json"))
    assert listed["kinds"] == {"product": 1}
    assert "product" in run("suite", "info", tmp_path / "s.json")
    tasks.write_text("{}\n")
    with pytest.raises(InputError, match="no problem"):
        run("suite", "import", tasks, "--out", tmp_path / "s.json")


def test_requests_are_made_in_the_words_of_a_named_bank(tmp_path: Path) -> None:
    size = ("--products", 200, "--problems", 6, "--json")
    made = run("world", "generate", "--out", tmp_path / "kept", "--bank", "compact-letter", *size)
    assert json.loads(made)["banks"] == {"compact-letter": 6}
    asked = ["world", "generate", "--out", str(tmp_path / "web"), "--kind", "web", "--bank", "x"]
    with pytest.raises(ConfigError, match="no paraphrase banks"):
        RUN.invoke(app, asked, catch_exceptions=False)
