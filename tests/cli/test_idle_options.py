"""An option that nothing would read is refused before anything is read or made."""

import pytest
from typer.testing import CliRunner

from palio.cli.main import app
from palio.records import ConfigError, PalioError

EVAL = "eval run --suite s --catalogue c --out o --model scripted-careful"
STEPS = "eval steps --corpus c --suite s --catalogue c --out o --model scripted-careful"
TRAIN = "--corpus c --out o"


@pytest.fixture(autouse=True)
def nothing_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not [path for path in tmp_path.iterdir() if path.name != "lab"]


def refused(line):
    found = CliRunner().invoke(app, line.split())
    assert isinstance(found.exception, PalioError), found.output
    return found.exception


@pytest.mark.parametrize(
    ("line", "idle"),
    [
        (f"{EVAL} --workers 2", "--workers does nothing in this process"),
        (f"{EVAL} --address a --gpus 0", "--address and --gpus do nothing in this process"),
        (f"{EVAL} --temperature 1.0", "--temperature does nothing without --k"),
        (f"{EVAL} --api-key k", "--api-key does nothing without --model-url"),
        (f"{STEPS} --api-key k", "--api-key does nothing without --model-url"),
        ("eval diagnose e --suite s --catalogue c --api-key k", "nothing without --model-url"),
        ("eval contamination --corpus c --suite s --profile oro", "nothing without an evaluation"),
        ("experiment prepare --address a", "--address does nothing with --executor processes"),
        ("experiment prepare --executor inline --address a", "with --executor inline"),
        ("experiment sealed --reason r --who w", "--reason and --who do nothing where the log"),
        (f"train tiny {TRAIN} --catalogue c", "--catalogue does nothing without --suite"),
        (f"train tiny {TRAIN} --pools p --encoder lexical", "--pools and --encoder do nothing"),
        (f"train demo {TRAIN} --suite s --catalogue c", "a recipe that rolls nothing out"),
        ("train demo --dry-run --encoder lexical", "--encoder does nothing in a dry run"),
        ("train demo --dry-run --uncertified", "--uncertified does nothing in a dry run"),
        ("train demo --dry-run --teacher-key k", "--teacher-key does nothing in a dry run"),
        ("train audit r --corpus c --suite s --plan p", "--plan does nothing for a run"),
        ("train card r --suite s --corpus c", "--suite and --corpus do nothing without results"),
        ("train curve r --out o.png --json", "--json does nothing beside --out"),
    ],
)
def test_an_option_that_does_nothing_is_refused(line, idle):
    error = refused(line)
    assert isinstance(error, ConfigError)
    assert idle in error.what
    assert error.remedy.endswith(("leave it out", "leave them out"))


def test_what_a_lab_holds_itself_is_not_named_beside_it(tmp_path):
    (tmp_path / "lab" / "world").mkdir(parents=True)
    (tmp_path / "lab" / "world" / "pools.json").write_text("{}")
    (tmp_path / "lab" / "firehose").mkdir()
    error = refused("train audit lab --corpus c --suite s --also d")
    assert "--corpus and --suite and --also do nothing for a lab" in error.what


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (f"{EVAL} --executor ray --workers 2 --gpus 0", "s"),
        (f"{EVAL} --k 2 --temperature 0.5", "s"),
        (EVAL, "s"),
        (f"train tiny {TRAIN} --suite s --catalogue c --pools p --encoder lexical", "s"),
        ("experiment sealed --out lab --checkpoint c --reason r", "lab"),
    ],
)
def test_what_is_read_goes_on_to_be_read(line, read, monkeypatch):
    monkeypatch.setenv("PALIO_API_KEY", "for other commands, which are not refused for it")
    monkeypatch.setenv("USER", "somebody")
    assert str(refused(line).where).startswith(read)
