"""Whatever a recipe says wrongly is refused when it is read, by the name of the setting."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from palio.cli.train import _pools_of
from palio.records import ConfigError, InputError, MissingDependencyError
from palio.train.backends.choice import backend_of
from palio.train.backends.weights import located
from palio.train.checkpoint import BUNDLED, checkpoint_folder
from palio.train.context import Context
from palio.train.ranges import RANGES, Range
from palio.train.reading import load_recipe, read_recipe
from palio.train.run import Options, train
from tests.train.test_stages import SMALL, chain, corpus  # noqa: F401 - a fixture

SFT = '[[stage]]\nkind = "sft"\ntokens = 10\n'
BARE = '[[stage]]\nkind = "sft"\n'
REJECTION = '[[stage]]\nkind = "rejection"\ntokens = 10\n'
OURS = '[model]\nbackend = "palio"\n'
THEIRS = '[model]\nbackend = "transformers"\npath = "x"\n'
TRL = THEIRS + '[[stage]]\nkind = "sft"\n[stage.trl]\n'


def why(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        read_recipe(tomllib.loads(text), where="r.toml")
    assert error.value.where == "r.toml", "the file is named"
    return str(error.value)


@pytest.mark.parametrize("model", ['"x"', "3", "[1]"])
def test_a_model_that_is_no_table_is_told(model: str) -> None:
    assert "model: Expected `object`" in why(f"model = {model}\n{SFT}")


def test_a_kind_that_is_no_text_is_told() -> None:
    assert "unknown kind ['sft']" in why('[[stage]]\nkind = ["sft"]\n')


@pytest.mark.parametrize(
    "text",
    [
        SFT + "[stage.optimiser]\nmatrix_rat = 0.1\n",
        SFT + "[stage.trl]\nlearning_rat = 0.1\n",
        REJECTION + "[stage.sampling]\nsampels = 3\n",
        "[data]\nlongets = 3\n" + SFT,
        "[model]\nlayer = 3\n" + SFT,
        THEIRS + "[model.lora]\nrnak = 3\n" + SFT,
        THEIRS + "[model.rehearsal]\nshap = {}\n" + SFT,
    ],
)
def test_an_unknown_key_is_refused_at_every_depth(text: str) -> None:
    assert "unknown field" in why(text)


def test_a_teacher_s_key_that_is_written_wrongly_is_not_another_teacher() -> None:
    pytest.importorskip("trl", reason="the settings of GRPO come with trl")
    assert "base_ulr" in why('[[stage]]\nkind = "grpo"\n[stage.teacher]\nbase_ulr = "http://a/v1"')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SFT + "warmup = nan\n", "stage 'sft': `warmup` is nan; it has to be in [0, 1]"),
        (SFT + "[stage.optimiser]\nmatrix_rate = inf\n", "`optimiser.matrix_rate` is inf"),
        (SFT + "[stage.optimiser]\nother_betas = [0.9, 1.0]\n", "`optimiser.other_betas` is 1.0"),
        (SFT.replace("10", "-5"), "`tokens` is -5"),
        (SFT + "batch = 0\n", "`batch` is 0"),
        (SFT + "kinds = { copy = -1.0 }\ndocuments = 0.5\n", "`kinds.copy` is -1.0"),
        (SFT + "minutes = -1.0\n", "`minutes` is -1.0"),
        ("[data]\nrows_a_problem = -1\n" + SFT, "data: `rows_a_problem` is -1"),
        ("[data]\nlongest = 0\n" + SFT, "data: `longest` is 0"),
        ("[data]\nreserve = nan\n" + SFT, "data: reserve must be in [0, 1)"),
        (OURS + "sample = 0\n" + SFT, "model: `sample` is 0"),
        (OURS + "parts = 0\n" + SFT, "model: `parts` is 0"),
        (OURS + "layers = -1\n" + SFT, "model: `layers` is -1"),
        (OURS + "heads = 0\n" + SFT, "model: `heads` is 0"),
        (OURS + "kv_heads = 3\n" + SFT, "4 heads cannot share 3 kv_heads"),
        (OURS + "head_dim = 7\n" + SFT, "head_dim = 7"),
        (OURS + "max_positions = 100\n" + SFT, "rows of 1000 tokens are longer than"),
        (THEIRS + "[model.lora]\nrank = 0\n" + BARE, "model: `lora.rank` is 0"),
        (THEIRS + 'dtype = "flaot32"\n' + SFT, "cannot be of dtype 'flaot32'"),
        (TRL + "learning_rate = nan\n", "`trl.learning_rate` is nan"),
        (TRL + "save_steps = 0\n", "`trl.save_steps` is 0"),
        (TRL + "gradient_accumulation_steps = 0\n", "`trl.gradient_accumulation_steps` is 0"),
        (TRL + "extra = { adam_beta2 = nan }\n", "`trl.extra.adam_beta2` is nan, which is no"),
        (REJECTION + "mix = nan\n", "stage 1 (rejection): mix must be in [0, 1)"),
        (REJECTION + "[stage.sampling]\ntemperature = nan\n", "`sampling.temperature` is nan"),
        (REJECTION + "[stage.sampling]\nseconds = 0.0\n", "`sampling.seconds` is 0.0"),
        ("seed = -1\n" + SFT, "seed = -1: it has to be in [0, 4.29497e+09)"),
        (SFT + "seed = 4294967296\n", "`seed` is 4294967296"),
        ("seed = 3\n" + SFT + "seed = 4294967295\n", "the recipe's seed + its = 4294967298"),
    ],
)
def test_a_number_that_training_cannot_mean_is_refused_by_its_name(text: str, said: str) -> None:
    assert said in why(text)


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        ("kto", "beta = inf", "`beta` is inf"),
        ("grpo", "probe_every = 0", "`probe_every` is 0"),
        ("grpo", "max_tokens = 0", "a turn has tokens"),
        ("grpo", "teacher = { model = 'scripted-nobody' }", "none is called 'scripted-nobody'"),
        ("distill", "threads = 0", "`threads` is 0"),
    ],
)
def test_so_is_one_of_the_later_stages(kind: str, line: str, said: str) -> None:
    pytest.importorskip("trl", reason="the settings of KTO and GRPO come with trl")
    assert said in why(f'[[stage]]\nkind = "{kind}"\n{line}\n')


def test_a_teacher_and_a_bucket_that_there_are_not_are_refused() -> None:
    lessons = '[[stage]]\nkind = "teacher"\ntokens = 10\n'
    assert "'scripted-nobody'" in why(lessons + '[stage.sampling]\nmodel = "scripted-nobody"\n')
    assert "no problem is of kind 'vouchr'" in why(lessons + "buckets = { vouchr = 3 }\n")


@pytest.mark.parametrize("name", ["output_dir", "save_strategy", "seed", "learning_rate"])
def test_extra_cannot_take_a_stage_out_of_its_folder(name: str) -> None:
    pytest.importorskip("trl", reason="pretrained models are trained by TRL")
    assert f"cannot set '{name}'" in why(TRL + f'extra = {{ {name} = "x" }}\n')


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("é".encode("latin-1"), "codec can't decode"),
        (b"x = " + b"[" * 5000, "cannot be read"),
        (b"[[stage]\n", "cannot be read"),
        (b"", "has no stage"),
    ],
    ids=["latin-1", "deep", "torn", "empty"],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=said) as error:
        load_recipe(str(path))
    assert error.value.where == str(path)


@pytest.mark.parametrize("name", ["", ".", "a\0b", "x" * 300])
def test_a_name_that_is_no_file_is_told(name: str) -> None:
    with pytest.raises(ConfigError, match="no such recipe"):
        load_recipe(name)


def test_a_recipe_of_an_editor_of_windows_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(SFT.encode())
    (tmp_path / "b.toml").write_bytes(b"\xef\xbb\xbf" + SFT.replace("\n", "\r\n").encode())
    one, two = (load_recipe(str(tmp_path / name)) for name in ("a.toml", "b.toml"))
    assert one.digest() == two.digest()


def test_a_range_has_no_place_for_nan() -> None:
    assert not any(wanted.holds(math.nan) for wanted in RANGES.values())
    assert Range(0, 1, open_low=True, open_high=True).holds(0.5)
    assert not Range(0, open_low=True).holds(0)
    assert not Range(0, 1, open_high=True).holds(1)
    assert [str(r) for r in (Range(0), Range(0, open_low=True))] == ["at least 0", "above 0"]


def test_a_stage_of_no_tokens_is_refused_before_the_run_has_a_folder(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """It would make one update and call the weights trained."""
    bare = Options(uncertified=True)
    with pytest.raises(ConfigError, match="'sft' has no `tokens`"):
        train(chain({"kind": "sft"}), corpus, tmp_path / "run", options=bare)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["package:", "package:no_such.inside/x"])
def test_a_package_without_a_name_is_none(name: str) -> None:
    with pytest.raises(MissingDependencyError, match="is not installed") as error:
        located(name)
    assert error.value.where == name


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="reads it")
    from palio.train.backends.weights import load_tokenizer
    from palio.train.recipe import PretrainedModel

    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    for start in (None, tmp_path):
        with pytest.raises(InputError, match="no readable tokenizer") as error:
            load_tokenizer(PretrainedModel(path=str(tmp_path)), start)
        assert error.value.where == str(tmp_path)


def test_a_seed_of_the_command_line_is_held_to_the_same(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from palio.cli.main import app

    path = tmp_path / "r.toml"
    path.write_text(SFT)
    given: list[Any] = ["train", str(path), "--corpus", tmp_path, "--out", tmp_path / "run"]
    for more, said in ((["--seed", "-1"], "seed = -1"), (["--minutes", "inf"], "`minutes` is inf")):
        with pytest.raises(ConfigError, match=said):
            CliRunner().invoke(app, [*map(str, given), *more], catch_exceptions=False)
    assert not (tmp_path / "run").exists()


def test_rows_that_a_checkpoint_has_no_places_for_are_refused_before_any_is_read() -> None:
    recipe = read_recipe(
        tomllib.loads(f"[data]\nlongest = 6000\n[model]\nstart = 'bundled'\n{SFT}")
    )
    backend = backend_of(recipe)
    context = Context(recipe, "sft", 1, seed=0, rows=(), ground=None, backend=backend)
    with pytest.raises(
        ConfigError, match="rows of 6000 tokens are longer than the checkpoint's 4096"
    ):
        backend.open(checkpoint_folder(Path(BUNDLED)), context)


def test_pools_are_looked_for_beside_a_corpus_file_and_missed_aloud(tmp_path: Path) -> None:
    rows = tmp_path / "train.jsonl"
    rows.touch()
    assert _pools_of(tmp_path) == tmp_path, "what a folder lacks is told where it is read"
    with pytest.raises(ConfigError, match=r"no pools\.json beside the rows.*--pools"):
        _pools_of(rows)
    (tmp_path / "pools.json").write_text("{}")
    assert _pools_of(rows) == tmp_path
