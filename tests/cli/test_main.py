"""The command line as a stranger meets it: help everywhere, JSON alone, no traceback ever."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from palio.cli import main
from palio.cli.main import app

PALIO = (sys.executable, "-c", "from palio.cli.main import run; run()")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


def palio(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    words = [*PALIO, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert ALL[path].help


@pytest.mark.parametrize(
    "path", [path for path in ALL if path and path[-1] in ("list", "show", "info", "tools")]
)
def test_listing_commands_speak_json(path: tuple[str, ...]) -> None:
    assert any("--json" in option.opts for option in ALL[path].params)


@pytest.mark.parametrize("line", ["agent list", "model list", "world tools", "schema"])
def test_json_stands_alone_on_stdout(line: str, tmp_path: Path) -> None:
    done = palio(*line.split(), "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout)


def test_worlds_are_chosen_alike_everywhere() -> None:
    choosing = {
        path: option.default
        for path, command in ALL.items()
        for option in command.params
        if "--world" in option.opts
    }
    assert set(choosing.values()) == {"auto"}
    assert {("race",), ("replay",), ("world", "call"), ("eval", "run")} <= set(choosing)
    assert not any("--compact" in o.opts for command in ALL.values() for o in command.params)


def test_servers_and_flight_are_named_alike_everywhere() -> None:
    """An option may have an older name too; the one that all commands know comes first."""
    names = {path: [option.opts for option in command.params] for path, command in ALL.items()}
    asking = {path for path, options in names.items() if any("--model-url" in o for o in options)}
    assert {("race",), ("agent", "test"), ("judge", "injection"), ("corpus", "salvage")} <= asking
    assert {("eval", "run"), ("eval", "steps"), ("eval", "diagnose")} <= asking
    for path, options in names.items():
        for opts in options:
            if "--base-url" in opts:
                assert opts[0] == "--model-url", path
            if path in asking and "--threads" in opts:
                assert opts[0] == "--concurrency", path


def test_what_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = palio("schema", "--out", tmp_path / "file")
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'file'}: File exists\n"
    with Path("/dev/full").open("w") as full:
        words = [*PALIO, "world", "tools", "--json"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "make room and run the same command again"), (errno.EACCES, "permissions")],
)
def test_a_full_disk_and_a_closed_folder_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, code: int, remedy: str
) -> None:
    def full() -> None:
        raise OSError(code, os.strerror(code), "out/results.json")

    shown = typer.Typer()
    shown.command()(full)
    monkeypatch.setattr(main, "app", shown)
    monkeypatch.setattr(sys, "argv", ["palio"])
    with pytest.raises(SystemExit) as end:
        main.run()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: out/results.json: {os.strerror(code)} (")
    assert remedy in said


def test_a_pipe_that_closes_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [*PALIO, "world", "tools", "--json"]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.stderr == ""


def test_ctrl_c_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    shown = typer.Typer()
    shown.command()(interrupted)
    monkeypatch.setattr(main, "app", shown)
    monkeypatch.setattr(sys, "argv", ["palio"])
    with pytest.raises(SystemExit) as end:
        main.run()
    assert end.value.code == 130
    assert "run the same command again" in capsys.readouterr().err


def test_a_folder_that_is_not_there_has_no_list_of_suites(tmp_path: Path) -> None:
    done = palio("suite", "list", tmp_path / "nosuch")
    assert done.returncode == 2
    assert "no such folder" in done.stderr


SHOUT = """
import os, sys, warnings
from palio.cli import main
def app():
    for module in ("transformers.trainer", "trl.trainer", "elsewhere"):
        warnings.warn_explicit(f"from {module}", FutureWarning, "x", 1, module=module)
    print(os.environ["HF_HUB_DISABLE_PROGRESS_BARS"])
main.app = app
main.run()
"""


def test_what_the_libraries_below_will_rename_does_not_reach_the_screen() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOUT], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1\n"
    assert "from elsewhere" in done.stderr
    assert "from tr" not in done.stderr
    loud = subprocess.run(
        [sys.executable, "-W", "default", "-c", SHOUT],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "from trl.trainer" in loud.stderr


WITHOUT_TORCH = """
import sys
import tomllib

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "missing_by_mistake"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize(
    "line", ["train demo --dry-run", "serve bundled", "experiment run --plan leak"]
)
def test_what_needs_an_extra_says_which_on_a_machine_without_it(line: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    done = palio(*line.split(), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert "needs torch, which is not installed; pip install 'palio[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_module_that_no_extra_brings_is_a_bug_and_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'x'", name="missing_by_mistake.x")

    monkeypatch.setattr(main, "app", broken)
    with pytest.raises(ModuleNotFoundError):
        main.run()


def test_every_remedy_names_an_extra_that_there_is() -> None:
    root = Path(main.__file__).parents[3]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"].keys()
    found = {
        name
        for path in (*(root / "src").rglob("*.py"), *(root / "docs").glob("*.md"))
        for name in re.findall(r"palio\[([a-z,]+)\]", path.read_text("utf-8"))
    }
    assert found
    assert {part for name in found for part in name.split(",")} <= extras
