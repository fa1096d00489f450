"""The template of a new agent is a file that works as it stands."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from palio.agents.spec import HARNESS
from palio.records import InputError


def write_template(path: Path, *, force: bool = False) -> None:
    """Write the template agent to `path`.

    Raises:
        InputError: the file exists and `force` is not set.
    """
    if path.exists() and not force:
        raise InputError("the file exists", where=str(path), remedy="choose another, or --force")
    path.write_text(_template(), encoding="utf-8")


def starting_points() -> tuple[bytes, ...]:
    """Files that everybody may start from: the template, and the harness of trained models."""
    return (_template().encode("utf-8"), HARNESS.read_bytes())


def _template() -> str:
    source = resources.files("palio.agents.template") / "agent.py"
    return source.read_text(encoding="utf-8")
