"""Whatever `palio eval` is given: file, reason and remedy are said, and nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from palio.agents.solvable import unsolvable
from palio.cli.main import app
from palio.evaluate.rollouts import read_identity
from palio.judging.encoders import default_encoder
from palio.records import (
    ConfigError,
    InputError,
    PalioError,
    ResumeError,
    Suite,
)
from palio.suites.files import read_suite, write_suite
from palio.world.catalogue import Catalogue, read_catalogues, write_catalogue
from palio.world.synthesis import compact_config, synthesise
from tests.evaluate.test_pin import Shop, call, refused

HASTY = ("--model", "scripted-hasty")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def good(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation, greedy and sampled; tests copy it before they break it."""
    out = tmp_path_factory.mktemp("good") / "out"
    call("run", *shop.given, "--out", out, *HASTY, "--k", 2)
    return out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"", "is not JSON"),
        (lambda data: data[: len(data) // 2], "is not JSON"),
        (lambda data: b"[]", "not a suite document"),
        (lambda data: data.replace(b'"product"', b'"nosuch"', 1), "problem 1"),
    ],
    ids=["empty", "cut", "list", "wrong row"],
)
def test_a_broken_suite_is_named(
    shop: Shop, tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    path = tmp_path / "suite.json"
    path.write_bytes(change((shop.folder / "suite.json").read_bytes()))
    words = ("run", "--suite", path, *shop.given[2:], "--out", tmp_path / "out", *HASTY)
    why = refused(PalioError, *words)
    assert str(path) in why
    assert said in why
    assert not (tmp_path / "out").exists()


def test_a_catalogue_of_the_same_name_is_not_taken_for_the_suite_s_own(
    shop: Shop, tmp_path: Path
) -> None:
    (name,) = read_catalogues([shop.folder / "catalogue"])[0]
    other = synthesise(compact_config(9, products=150, problems=6)).catalogue
    named = Catalogue.from_products(name, other.products.values())
    write_catalogue(named, tmp_path / "other")
    words = ("run", *shop.given[:2], "--catalogue", tmp_path / "other", "--out", tmp_path / "out")
    why = refused(InputError, *words, *HASTY)
    assert "not the one that the suite was made with" in why
    assert not (tmp_path / "out").exists()
    write_catalogue(other, tmp_path / "stranger")
    words = ("run", *shop.given[:2], "--catalogue", tmp_path / "stranger", "--out", tmp_path / "o")
    assert f"no world for the catalogue {name!r}" in refused(InputError, *words, *HASTY)


def test_a_few_problems_that_cannot_be_solved_are_told_and_not_refused(shop: Shop) -> None:
    found, _ = read_catalogues([shop.folder / "catalogue"])
    problems = read_suite(shop.folder / "suite.json").problems
    ((name, catalogue),) = found.items()
    assert unsolvable(problems, found, default_encoder()) == {}
    gone = {problems[0].rewards[0].product_id}
    left = [each for each in catalogue.products.values() if each.product_id not in gone]
    fewer = {name: Catalogue.from_products(name, left)}
    assert unsolvable(problems, fewer, default_encoder()) == {name: (problems[0].problem_id,)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "scripted-nobody"), "none is called 'scripted-nobody' (name a server too"),
        ((*HASTY, "--tools", "find_product,nosuch"), "no tool 'nosuch'"),
        ((*HASTY, "--k", "2", "--temperature", "inf"), "temperature must be a number"),
        ((*HASTY, "--floor", "a=bundled", "--floor", "a=bundled"), "would be called 'a'"),
        ((*HASTY, "--floor", "reader=bundled"), "would be called 'reader'"),
        ((*HASTY, "--floor", "scripted-hasty=bundled"), "would be called 'scripted-hasty'"),
        ((*HASTY, "--floor", "..=bundled"), "'..' names no floor"),
        ((*HASTY, "--base-url", "localhost:8000"), "is no URL of a model server"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(
    shop: Shop, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in refused(ConfigError, "run", *shop.given, "--out", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [("--k", "-1"), ("--seed", "-5"), ("--limit", "-2")], ids=str)
def test_negative_numbers_are_usage_errors(shop: Shop, tmp_path: Path, words: Any) -> None:
    line = ["eval", "run", *map(str, shop.given), "--out", str(tmp_path), *HASTY, *words]
    assert CliRunner().invoke(app, line).exit_code == 2


def test_a_name_is_text_and_no_markup(shop: Shop, tmp_path: Path) -> None:
    text = call("run", *shop.given, "--out", tmp_path, *HASTY, "--name", "[/red]x[bold]")
    assert "[/red]x[bold] by intent and difficulty" in text


def test_one_sample_is_a_sample(shop: Shop, tmp_path: Path) -> None:
    told = json.loads(call("run", *shop.given, "--out", tmp_path, *HASTY, "--k", 1, "--json"))
    assert told["stages"][0]["pass_at"]["1"]["samples"] == 6


def broken(path: Path, part: str, value: Any) -> None:
    told = json.loads((path / part).read_text())
    (path / part).write_text(json.dumps({**told, **value}))


def not_a_number(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    name = sorted(weights)[2]
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def cut(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (not_a_number, "hold values that are no numbers"),
        (cut, "no readable weights"),
        (lambda path: broken(path, "config.json", LLAMA), "of another architecture"),
        (lambda path: broken(path, "config.json", GPT2), "of another architecture"),
        (lambda path: broken(path, "config.json", {"hidden_size": 64}), "no readable checkpoint"),
        (lambda path: broken(path, "config.json", {"model_type": "x"}), "no causal language model"),
        (lambda path: (path / "config.json").write_text("[]"), "no readable checkpoint"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "no readable tokenizer"),
        (lambda path: (path / "chat_template.jinja").write_bytes(b"\xff"), "no readable checkp"),
    ],
    ids=["nan", "cut", "llama", "gpt2", "width", "unknown", "list", "tokenizer", "template"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_that_is_none_is_refused_and_never_scored(
    shop: Shop, tmp_path: Path, change: Callable[[Path], Any], said: str
) -> None:
    path = tmp_path / "model"
    shop.checkpoint(path, 1)
    (path / "manifest.json").unlink()
    change(path)
    words = ("run", *shop.given, "--out", tmp_path / "out", "--checkpoint", path)
    why = refused(InputError, *words)
    assert said in why
    assert str(path) in why
    assert not (tmp_path / "out").exists()


def test_broken_folders_are_named_and_mended_where_that_is_safe(
    shop: Shop, good: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(good, bad)
    rows = bad / "greedy" / "rollouts.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(lines[0] + b'{"x": 1}\n' + b"".join(lines[1:]))
    words = ("run", *shop.given, "--out", bad, *HASTY, "--json")
    why = refused(InputError, *words)
    assert f"{rows}:2" in why
    assert "take that line out" in why
    rows.write_bytes(b"".join(lines) + lines[0][:-30])
    assert json.loads(call(*words)) == json.loads(
        call("run", *shop.given, "--out", good, *HASTY, "--json")
    )
    assert rows.read_bytes() == b"".join(lines)
    for text, said in (("{}", "it has no policy"), ("[]", "identity"), ("", "identity")):
        (bad / "greedy" / "evaluation.json").write_text(text)
        why = refused(InputError, "compare", bad, good, *shop.given[:2])
        assert str(bad / "greedy" / "evaluation.json") in why
        assert said in why


def test_what_is_compared_or_read_must_belong_together(
    shop: Shop, good: Path, tmp_path: Path
) -> None:
    made = synthesise(compact_config(9, products=150, problems=6))
    write_catalogue(made.catalogue, tmp_path / "catalogue")
    write_suite(Suite(suite_id="o", version="1", problems=made.problems), tmp_path / "suite.json")
    others = ("--suite", tmp_path / "suite.json", "--catalogue", tmp_path / "catalogue")
    assert "on other problems" in refused(InputError, "compare", good, good, *others[:2])
    assert "6 of its 6 problems" in refused(InputError, "diagnose", good, *others)
    why = refused(InputError, "diagnose", good, *shop.given[:2], *others[2:])
    assert "name it with --catalogue" in why
    held = read_identity(good / "greedy")
    moved = tmp_path / "moved"
    shutil.copytree(good / "greedy", moved)
    worlds = dict.fromkeys(held["worlds"], "sha256:other")
    (moved / "evaluation.json").write_text(json.dumps({**held, "worlds": worlds}))
    assert "other worlds" in refused(InputError, "compare", good, moved, *shop.given[:2])
    assert "made in another world" in refused(InputError, "diagnose", moved, *shop.given)
    sampled = good / "sampled-2"
    assert "name the folder greedy" in refused(
        InputError, "compare", sampled, good, *shop.given[:2]
    )
    for words in (
        ("compare", good, good, *shop.given[:2]),
        ("diagnose", good, *shop.given),
        ("contamination", "--corpus", good, *shop.given[:2]),
    ):
        assert "'stict' is not evaluated" in refused(ConfigError, *words, "--profile", "stict")
    assert "rollouts failed" in call("diagnose", good, *shop.given)


def test_a_folder_that_cannot_be_made_is_one_line(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        call("run", *shop.given, "--out", tmp_path / "file", *HASTY)


def test_the_folder_of_another_policy_is_refused(shop: Shop, good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "out")
    words = ("run", *shop.given, "--out", tmp_path / "out")
    why = refused(ResumeError, *words, "--model", "scripted-careful")
    assert "agent, policy differ" in why
    assert "problems differ" in refused(ResumeError, *words, *HASTY, "--limit", 3)
