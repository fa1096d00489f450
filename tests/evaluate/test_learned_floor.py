"""A checkpoint, or an evaluation of one, stands in the table as a floor, paired, on equal terms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.cli.main import app
from palio.evaluate.rollouts import read_rollouts
from palio.records import ConfigError, InputError, Suite
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.suites.files import write_suite
from palio.train.checkpoint import save_checkpoint
from palio.train.model import ModelConfig, Qwen3
from palio.train.tokenizer import train_tokenizer
from palio.world.catalogue import write_catalogue
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Suite, catalogue, and an untrained model in the folder `formed`."""
    folder = tmp_path_factory.mktemp("shop")
    made = synthesise(compact_config(5, products=400, problems=9))
    write_catalogue(made.catalogue, folder / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=made.problems), folder / "suite.json")
    some = Suite(suite_id="s", version="1", problems=made.problems[:5])
    write_suite(some, folder / "some.json")
    world, agent = World.build(made.catalogue, COMPACT), find_agent("careful")
    talks = [
        run_problem(
            agent, problem, world, driver=InlineDriver(), upstream=ScriptedUpstream()
        ).messages
        for problem in made.problems[:4]
    ]
    tokenizer = train_tokenizer(talks, size=500)
    shape = ModelConfig(
        vocab_size=tokenizer.size, hidden_size=32, intermediate_size=48, layers=1, head_dim=16
    )
    model = Qwen3(shape)
    model.initialise(5)
    save_checkpoint(folder / "formed", model, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return folder


def run(shop: Path, out: Path, *words: str, suite: str = "suite.json") -> str:
    given = ("--suite", str(shop / suite), "--catalogue", str(shop / "catalogue"))
    line = ["eval", "run", *given, "--model", "scripted-careful", "--out", str(out), *words]
    result = CliRunner().invoke(app, line, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_checkpoint_is_rolled_out_and_paired(shop: Path, tmp_path: Path) -> None:
    floor = ("--floor", str(shop / "formed"), "--max-tokens", "24")
    plain = json.loads(run(shop, tmp_path, *floor, "--json"))
    assert [stage["name"] for stage in plain["stages"]] == ["scripted-careful"]
    formed = plain["floors"][0]
    assert (formed["name"], formed["kind"]) == ("formed", "floor")
    assert formed["intent"]["overall"]["n"] == 9
    assert formed["intent"]["overall"]["asr"] == 0
    rows = [row for row in plain["comparisons"] if row["b"] == "formed"]
    assert [row["intent"] for row in rows] == ["overall", "product", "shop", "voucher"]
    assert rows[0]["rate_a"]["n"] == rows[0]["rate_b"]["n"] == 9
    assert rows[0]["difference"]["difference"] == 1
    held = tmp_path / "floors" / "formed" / "greedy"
    before = (held / "rollouts.jsonl").read_bytes()
    assert len(list(read_rollouts(held))) == 9
    text = run(shop, tmp_path, *floor)
    assert (held / "rollouts.jsonl").read_bytes() == before  # resumed, not rolled out again
    assert "formed (floor)" in text
    assert "scripted-careful against formed, paired, oro" in text


def test_an_evaluation_is_read_and_paired(shop: Path, tmp_path: Path) -> None:
    run(shop, tmp_path / "below", "--model", "scripted-hasty")
    for named in ("below", "below/greedy"):
        plain = json.loads(
            run(shop, tmp_path / "above", "--floor", str(tmp_path / named), "--json")
        )
        assert plain["floors"][0]["name"] == "scripted-hasty"
        assert plain["floors"][0]["kind"] == "floor"
        assert [row["b"] for row in plain["comparisons"]][::4] == ["first-hit", "scripted-hasty"]
    assert not (tmp_path / "above" / "floors").exists()


@pytest.mark.parametrize(
    ("words", "suite", "message"),
    [
        (("--tools", "4"), "suite.json", "other tools"),
        (("--world", "full"), "suite.json", "other worlds"),
        ((), "some.json", "other problems"),
    ],
)
def test_other_terms_are_refused_before_any_rollout(
    shop: Path, tmp_path: Path, words: tuple[str, ...], suite: str, message: str
) -> None:
    run(shop, tmp_path / "below", *words, "--model", "scripted-hasty", suite=suite)
    with pytest.raises(InputError, match=message):
        run(shop, tmp_path / "above", "--floor", str(tmp_path / "below"))
    assert not (tmp_path / "above").exists()


def test_a_floor_has_the_name_that_it_is_given(shop: Path, tmp_path: Path) -> None:
    run(shop, tmp_path / "below", "--model", "scripted-hasty")
    named = ("--floor", f"one={shop / 'formed'}", "--floor", f"two={tmp_path / 'below'}")
    plain = json.loads(run(shop, tmp_path / "above", *named, "--max-tokens", "24", "--json"))
    assert [floor["name"] for floor in plain["floors"]][:2] == ["one", "two"]
    assert [row["b"] for row in plain["comparisons"]][4::4] == ["one", "two"]
    assert (tmp_path / "above" / "floors" / "one" / "greedy").is_dir()
    with pytest.raises(ConfigError, match="names no floor"):
        run(shop, tmp_path / "above", "--floor", f"../out={shop / 'formed'}")


def test_samples_are_no_floor_and_neither_is_any_folder(shop: Path, tmp_path: Path) -> None:
    run(shop, tmp_path / "below", "--model", "scripted-hasty", "--k", "2")
    with pytest.raises(InputError, match="other decoding"):
        run(shop, tmp_path / "above", "--floor", str(tmp_path / "below" / "sampled-2"))
    with pytest.raises(InputError, match="neither a checkpoint nor a greedy evaluation"):
        run(shop, tmp_path / "above", "--floor", str(shop / "catalogue"))


def test_a_floor_that_had_less_to_spend_is_refused(shop: Path, tmp_path: Path) -> None:
    run(shop, tmp_path / "below", "--model", "scripted-hasty", "--seconds", "60")
    above = ("--floor", str(tmp_path / "below"))
    run(shop, tmp_path / "above", *above)  # none of its rollouts was stopped by the clock
    rows = tmp_path / "below" / "greedy" / "rollouts.jsonl"
    whole = rows.read_text()
    rows.write_text(whole.replace('"timed_out":false', '"timed_out":true', 1))
    assert rows.read_text() != whole
    with pytest.raises(InputError, match="other seconds"):
        run(shop, tmp_path / "above", *above)
    rows.write_text(whole)
    identity = tmp_path / "below" / "greedy" / "evaluation.json"
    told = json.loads(identity.read_text())
    told["settings"]["limits"]["calls"] = 3
    identity.write_text(json.dumps(told))
    with pytest.raises(InputError, match="other limits"):
        run(shop, tmp_path / "above", *above)
    del told["settings"]["limits"]
    identity.write_text(json.dumps(told))
    run(shop, tmp_path / "above", *above)  # an identity without limits had the usual ones


def test_a_floor_that_is_not_finished_or_was_kept_short_is_refused(
    shop: Path, tmp_path: Path
) -> None:
    run(shop, tmp_path / "below", "--model", "scripted-hasty", "--max-tokens", "99")
    above = ("--floor", str(tmp_path / "below"), "--max-tokens")
    with pytest.raises(InputError, match="other max-tokens"):
        run(shop, tmp_path / "above", *above, "100")
    with pytest.raises(InputError, match="other max-tokens"):
        run(shop, tmp_path / "above", *above, "0")
    rows = tmp_path / "below" / "greedy" / "rollouts.jsonl"
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:4]))
    with pytest.raises(InputError, match="not finished: 5 problems are missing"):
        run(shop, tmp_path / "above", *above, "99")
    assert not (tmp_path / "above").exists()
