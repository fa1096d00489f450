"""The template of a new agent is a file that works as it stands."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from palio.records import InputError


def write_template(path: Path, *, force: bool = False) -> None:
    """Write the template agent to `path`.

    Raises:
        InputError: the file exists and `force` is not set.
    """
    if path.exists() and not force:
        raise InputError("the file exists", where=str(path), remedy="choose another, or --force")
    source = resources.files("palio.agents.template") / "agent.py"
    path.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
