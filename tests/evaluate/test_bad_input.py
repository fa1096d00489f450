"""What `palio eval` cannot score it does not score 0: it says which file it is, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palio.broker.upstream import RejectedError
from palio.corpus.rows import read_rows
from palio.evaluate.rollouts import ROWS
from palio.evaluate.steps import answer_steps
from palio.records import ConfigError, InputError, IntegrityError, Suite, UpstreamError
from palio.suites.files import write_suite
from palio.train.checkpoint import load_checkpoint, save_checkpoint
from palio.train.model import ModelConfig, Qwen3
from palio.train.serving import open_checkpoint
from palio.world.artefacts import replacing
from tests.evaluate.test_pin import Shop, call, refused
from tests.evaluate.test_rollouts import evaluate

FULL = Path("/dev/full")
HASTY = ("--model", "scripted-hasty")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.mark.parametrize("command", ["run", "floors"])
def test_a_suite_of_no_problems_is_no_result(shop: Shop, tmp_path: Path, command: str) -> None:
    path = tmp_path / "suite.json"
    write_suite(Suite(suite_id="none", version="1", problems=()), path)
    more = ("--out", tmp_path / "out", *HASTY) if command == "run" else ()
    why = refused(InputError, command, "--suite", path, *shop.given[2:], *more)
    assert str(path) in why
    assert "has no problem" in why
    assert not (tmp_path / "out").exists()


# ---- checkpoints


def test_another_tokenizer_beside_the_weights_is_noticed(shop: Shop, tmp_path: Path) -> None:
    """It reads and writes other words with the same ids: all problems would be failures."""
    path = tmp_path / "model"
    shop.checkpoint(path, 1)
    told = json.loads((path / "tokenizer.json").read_text())
    vocabulary = told["model"]["vocab"]
    names = [name for name in vocabulary if len(name) > 2][:2]
    one, two = names
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (path / "tokenizer.json").write_text(json.dumps(told))
    words = ("run", *shop.given, "--out", tmp_path / "out", "--checkpoint", path)
    assert "tokenizer.json: a file of a checkpoint is not" in refused(IntegrityError, *words)
    assert not (tmp_path / "out").exists()
    with pytest.raises(IntegrityError, match=r"tokenizer\.json"), open_checkpoint(path):
        pass


def test_a_tokenizer_with_more_entries_than_the_model_is_another_s(
    shop: Shop, tmp_path: Path
) -> None:
    size = {"hidden_size": 32, "intermediate_size": 48, "layers": 1, "head_dim": 16}
    model = Qwen3(ModelConfig(vocab_size=shop.tokenizer.size - 1, **size))
    model.initialise(0)
    save_checkpoint(tmp_path, model, shop.tokenizer, config={}, inputs={}, counts={}, seed=0)
    with pytest.raises(InputError, match="entries and the model") as error:
        load_checkpoint(tmp_path)
    assert error.value.where == str(tmp_path / "tokenizer.json")


def test_a_configuration_that_is_no_table_is_no_traceback(shop: Shop, tmp_path: Path) -> None:
    shop.checkpoint(tmp_path, 1)
    for text in ("[]", "{}", '{"model_type": "qwen3", "tie_word_embeddings": true}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=str(tmp_path)):
            load_checkpoint(tmp_path)


# ---- folders


def test_an_identity_that_is_no_text_is_named(shop: Shop, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call("run", *shop.given, "--out", out, *HASTY, "--limit", 2)
    path = out / "greedy" / "evaluation.json"
    held = json.loads(path.read_bytes())
    path.write_bytes(b'{"policy": "\xff"}')
    words = ("compare", out, out, *shop.given[:2])
    assert f"{path}: not an evaluation's identity" in refused(InputError, *words)
    path.write_text(json.dumps({**held, "model": {"weights": 3}}))
    assert "which model was evaluated" in refused(InputError, *words, "--limit", 2)


def test_departures_have_a_file_before_the_teacher_is_asked(shop: Shop, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call("run", *shop.given, "--out", out, *HASTY, "--limit", 2)
    why = refused(ConfigError, "diagnose", out, *shop.given, "--out", tmp_path)
    assert f"{tmp_path}: --out names a folder" in why


@pytest.mark.skipif(not FULL.exists(), reason="a file that is always full is Linux' own")
def test_a_full_disk_is_told_with_the_file_and_scores_nobody(tmp_path: Path) -> None:
    (tmp_path / ROWS).symlink_to(FULL)
    with pytest.raises(OSError, match="No space left") as error:
        evaluate(tmp_path)
    assert error.value.filename == str(tmp_path / ROWS)
    (tmp_path / ROWS).unlink()
    assert len(evaluate(tmp_path).scores) == 20, "what was lost is run again"


def test_what_replaces_a_file_names_it_when_the_disk_is_full(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(OSError, match="No space left") as error, replacing(tmp_path / "a"):
        raise OSError(28, "No space left on device")
    assert error.value.filename == str(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# ---- servers


class Refusing:
    """A server that takes no tools, or none so long."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        said = sum(each["role"] == "assistant" for each in body["messages"])
        if said >= self.turns:
            raise RejectedError("400: no tools", where="http://a/v1", remedy="--enable-tools")
        return {"choices": [{"message": {"role": "assistant", "content": "no"}}]}


def test_a_server_that_refuses_every_first_turn_makes_no_answers_of_zero(
    shop: Shop,
) -> None:
    rows = list(read_rows(shop.folder / "heldout.jsonl"))
    with pytest.raises(UpstreamError, match="first request of a conversation is refused") as error:
        list(answer_steps(rows, Refusing(0), "m", lambda _: None, {}))  # type: ignore[arg-type, return-value]
    assert (error.value.where, error.value.remedy) == ("http://a/v1", "--enable-tools")
    later = answer_steps(rows[:1], Refusing(1), "m", lambda _: None, {})  # type: ignore[arg-type, return-value]
    told = [answer.difference for answer in later]
    assert told[0] == "no call"
    assert set(told[1:]) == {"request refused"}, "a history that is too long is the model's own"
