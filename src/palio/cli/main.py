"""The `palio` command: one sub-command a noun; every palio error becomes one clear line."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from importlib import metadata

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from palio import __version__
from palio.records.faults import PalioError

NOUNS = (
    "world",
    "suite",
    "agent",
    "model",
    "race",
    "score",
    "judge",
    "leak",
    "corpus",
    "train",
    "eval",
    "experiment",
)
COMMANDS = ("demo", "doctor", "replay", "schema", "serve")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

app = typer.Typer(
    name="palio",
    help="A race that makes training data, and the recipe that distils a small agent from it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"palio {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """A race that makes training data, and the recipe that distils a small agent from it."""


def _collect() -> None:
    for noun in NOUNS:
        app.add_typer(importlib.import_module(f"palio.cli.{noun}").app, name=noun)
    for command in COMMANDS:
        app.command(command)(getattr(importlib.import_module(f"palio.cli.{command}"), command))


_collect()


KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
"""torch keeps 1,024 compiled kernels, one a shape; batches of text hardly ever repeat a shape.

Measured on the tiny recipe's first 70,000 tokens: 1,724 MiB with the defaults, 1,270 to 1,340 MiB
with either set to 64, at equal speed. Read when torch is imported, so set before.
"""


QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Our own progress is on the screen; bars of transformers would run through it."""


def run() -> None:
    """Entry point: exit code 2 and one clear message for what palio or the system refuses.

    The same for a package that one of palio's extras brings. 130 after Ctrl-C. Other exceptions
    are bugs of palio and keep their traceback.
    """
    for name, value in (KERNEL_CACHES | QUIET).items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:  # what they will rename is no user's business; -W shows it
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl)\.")
    try:
        app()
    except PalioError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        package = canonicalize_name((error.name or "").partition(".")[0])
        extras = extras_with(package)
        if not extras:
            raise
        how = " or ".join(f"pip install 'palio[{extra}]'" for extra in extras)
        typer.secho(
            f"error: this needs {package}, which is not installed; {how}", fg="red", err=True
        )
        sys.exit(2)
    except OSError as error:  # a path that cannot be made, a full disk
        typer.secho(f"error: {_system_error(error)}", fg="red", err=True)
        sys.exit(2)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer has turned the KeyboardInterrupt into it
            typer.secho("interrupted; run the same command again to go on", fg="yellow", err=True)
        raise


def extras_with(package: str) -> list[str]:
    """The extras of palio that install a package, without that of its developers."""
    found = []
    for line in metadata.requires("palio") or []:
        needed = Requirement(line)
        if canonicalize_name(needed.name) == package and needed.marker:
            extras = metadata.metadata("palio").get_all("Provides-Extra") or []
            found += [name for name in extras if needed.marker.evaluate({"extra": name})]
    return [name for name in found if name != "dev"]


def _system_error(error: OSError) -> str:
    where = " -> ".join(str(name) for name in (error.filename, error.filename2) if name)
    what = error.strerror or str(error) or type(error).__name__
    told = f"{where}: {what}" if where else what
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{told} ({remedy})" if remedy else told


_ROOM = "make room and run the same command again: what was written whole is kept"
_RIGHTS = "name a folder that you may write to, or change its permissions"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
}
