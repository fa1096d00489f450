"""Every bundled recipe reads, rehearses, and leaves a card; a corpus without proof is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from palio.cli.main import app
from palio.records import (
    ConfigError,
    InputError,
    IntegrityError,
    Message,
    PalioError,
    Provenance,
    to_json,
)
from palio.train.card import Measured, write_card
from palio.train.dry import rehearsed
from palio.train.inputs import open_corpus
from palio.train.reading import bundled_recipes, load_recipe, read_recipe
from palio.train.run import Options, train
from palio.train.settings import TrlSettings
from palio.train.stages.teacher import TeacherSettings
from palio.world.artefacts import file_digest
from tests.train.test_stages import SHORT, SMALL, chain, corpus  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", bundled_recipes())
def test_a_bundled_recipe_reads_and_has_a_digest(name: str) -> None:
    if find_spec("trl") is None:
        pytest.skip("the settings of KTO and GRPO come with trl")
    found = load_recipe(name)
    assert found.digest() == load_recipe(str(ROOT / "recipes" / f"{name}.toml")).digest()
    small = rehearsed(found)
    assert small.dry
    assert small.digest() != found.digest()
    assert [stage.kind for stage in small.stages] == [stage.kind for stage in found.stages]


def test_the_4b_rehearsal_has_the_published_width() -> None:
    if find_spec("trl") is None:
        pytest.skip("the settings of KTO and GRPO come with trl")
    small = rehearsed(load_recipe("qwen3-4b"))
    assert small.pretrained is not None
    shape = small.pretrained.shape
    assert (shape["hidden_size"], shape["intermediate_size"]) == (2560, 9728)
    assert (shape["num_attention_heads"], shape["num_key_value_heads"]) == (32, 8)
    assert shape["vocab_size"] == 151_936
    assert small.pretrained.tokenizer.endswith("qwen.tiktoken")


DIGESTS = {
    "demo": "a5faaf4f4731",
    "qwen3-4b": "e93ac29e37c8",
    "qwen3-4b-full": "12fe7d079b44",
    "smollm2": "7721f4cf68fd",
    "tiny": "d78b5f3d55a7",
}


@pytest.mark.parametrize("name", bundled_recipes())
def test_what_a_bundled_recipe_settles_is_what_was_published(name: str) -> None:
    """A new default must not change a run that is named by its digest; a new recipe comes here."""
    if find_spec("trl") is None:
        pytest.skip("the settings of KTO and GRPO come with trl")
    assert load_recipe(name).digest().removeprefix("sha256:")[:12] == DIGESTS[name]


def stage_of(**table: Any) -> Any:
    """The settings of the one stage of a recipe."""
    return read_recipe({"stage": [table]}).stages[0].settings


def test_a_part_of_a_table_changes_only_what_it_names() -> None:
    pytest.importorskip("trl", reason="the settings of KTO and GRPO come with trl")
    from palio.train.preference.kto import KtoSettings
    from palio.train.rl.distill import DistillSettings
    from palio.train.rl.settings import GrpoSettings

    steps = {"max_steps": 7}
    for kind, record in (
        ("kto", KtoSettings),
        ("grpo", GrpoSettings),
        ("distill", DistillSettings),
    ):
        default = record().trl
        assert default != TrlSettings(), "or the test shows nothing"
        found = stage_of(kind=kind, trl=steps)
        assert found.trl == msgspec.structs.replace(default, max_steps=7)
        assert stage_of(kind=kind) == record()
    assert stage_of(kind="sft", trl=steps).trl == TrlSettings(max_steps=7)
    lessons = stage_of(kind="teacher", sampling={"problems": 9}).sampling
    assert lessons == msgspec.structs.replace(TeacherSettings().sampling, problems=9)
    assert lessons.samples == 1, "a teacher is asked once"
    named = stage_of(kind="teacher", buckets={"shop": 4})
    assert named.buckets == {"shop": 4}, "a table of names is the author's, whole"
    with pytest.raises(ConfigError, match="max_stepz"):
        stage_of(kind="kto", trl={"max_stepz": 7})


@pytest.mark.slow
def test_a_dry_run_goes_through_every_stage_and_says_what_it_is() -> None:
    short = {
        "name": "t",
        "model": SMALL,
        "stage": [
            {"kind": "base", "kinds": {"copy": 1.0, "lookup": 1.0}, **SHORT},
            {"kind": "sft", **SHORT},
            {"kind": "rejection", **SHORT},
            {"kind": "teacher", **SHORT},
        ],
    }
    from palio.train.dry import dry_run

    made = dry_run(read_recipe(short), threads=1)
    assert [stage.kind for stage in made.stages] == ["base", "sft", "rejection", "teacher"]
    assert made.named("rejection").counts["rolled out"] == 2


def test_the_card_tells_the_lineage(corpus: Path, tmp_path: Path) -> None:  # noqa: F811
    recipe = chain({"kind": "sft", **SHORT})
    made = train(recipe, corpus, tmp_path / "run", options=Options(uncertified=True))
    told = Measured(measure="greedy ASR (oro), held-out", value=0.5, low=0.4, high=0.6, n=90)
    text = write_card(tmp_path / "run", [told]).read_text()
    inputs = json.loads((tmp_path / "run" / "sft" / "stage.json").read_bytes())["inputs"]
    assert all(value in text for value in inputs.values())
    assert "has no certificate" in text
    assert "50.0 % | 40.0 to 60.0 | 90" in text
    lines = text.splitlines()
    ends = [after for row, after in pairwise(lines) if row.startswith("|")]
    assert all(after.startswith("|") or not after for after in ends), (
        "else it is a row of the table"
    )
    assert all(not before for before, line in pairwise(lines) if line.startswith("##"))
    ran = CliRunner().invoke(app, ["train", "card", str(tmp_path / "run")])
    assert ran.exit_code == 0, ran.output
    assert "Not measured yet" in (made.final / "README.md").read_text()
    with pytest.raises(InputError, match="no run"):
        write_card(tmp_path)


def test_a_corpus_is_taken_with_its_proof_only(corpus: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "train.jsonl").write_bytes(corpus.read_bytes())
    with pytest.raises(InputError, match="certificate"):
        open_corpus(tmp_path)
    assert set(open_corpus(tmp_path, uncertified=True).digests) == {"corpus"}
    (tmp_path / "certificate.json").write_text("{}")
    listed = {name: file_digest(tmp_path / name) for name in ("train.jsonl", "certificate.json")}
    manifest = Provenance(kind="corpus", tool_version="t", outputs=listed)
    (tmp_path / "manifest.json").write_bytes(to_json(manifest))
    assert set(open_corpus(tmp_path).digests) == {"corpus", "certificate"}
    (tmp_path / "train.jsonl").write_bytes(corpus.read_bytes() + b"\n")
    with pytest.raises(IntegrityError, match=r"train\.jsonl"):
        open_corpus(tmp_path)


def test_a_full_disk_leaves_the_last_state(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    recipe = chain({"kind": "sft", **SHORT})
    saved: list[int] = []
    whole = torch.save

    def full(state: object, file: object) -> None:
        if saved:
            raise OSError(28, "No space left on device")
        saved.append(1)
        whole(state, file)

    monkeypatch.setattr(torch, "save", full)
    options = Options(uncertified=True, save_every=0.0)
    with pytest.raises(PalioError, match="make room"):
        train(recipe, corpus, tmp_path / "run", options=options)
    assert (tmp_path / "run" / "sft" / "state.pt").exists()
    assert not (tmp_path / "run" / "sft" / "checkpoint").exists()
    monkeypatch.setattr(torch, "save", whole)
    made = train(recipe, corpus, tmp_path / "run", options=options)
    straight = train(recipe, corpus, tmp_path / "other", options=options)
    weights = [run.final / "model.safetensors" for run in (made, straight)]
    assert file_digest(weights[0]) == file_digest(weights[1])


def test_every_answer_has_its_end_token_trained(talks: Sequence[Sequence[Message]]) -> None:
    from palio.train.text import END, segments

    for messages in talks:
        trained = [part.text for part in segments(messages) if part.trained]
        assert len(trained) == sum(message.role == "assistant" for message in messages)
        assert all(text.endswith(END) for text in trained)


def test_rows_over_the_budget_are_left_out_and_counted(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    recipe = chain({"kind": "sft", **SHORT}, data={"longest": 260})
    made = train(recipe, corpus, tmp_path / "run", options=Options(uncertified=True))
    counts = made.stages[0].counts
    assert counts["dropped"] > 0
    assert counts["trajectories"] > 0
    rows = len(corpus.read_bytes().splitlines())
    assert counts["trajectories"] + counts["dropped"] == rows


def test_bundled_names_the_checkpoint_that_ships() -> None:
    from palio.train.checkpoint import BUNDLED, WEIGHTS, checkpoint_folder

    try:
        found = checkpoint_folder(Path(BUNDLED))
    except InputError as error:
        pytest.skip(error.what)
    assert (found / WEIGHTS).stat().st_size < 10_000_000
