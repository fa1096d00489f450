"""A run folder holds runs of one configuration; a changed one is refused by naming what differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from palio import __version__
from palio.agents.spec import AgentSpec
from palio.records import Provenance, ResumeError, digest
from palio.world.artefacts import read_manifest, write_manifest

FILE = "run.json"
_SHOWN = 8


def hold_config(folder: Path, kind: str, config: Mapping[str, Any], command: str = "") -> None:
    """Write the folder's configuration, or check that it is the same as before.

    Args:
        folder: the run folder.
        kind: what is run in it, e.g. "suite-run".
        config: plain JSON data; everything that decides what a run comes out as.
        command: how to make the same run again, shown in the refusal.

    Raises:
        ResumeError: the folder was made under another configuration; names the keys that differ.
    """
    wanted: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(config)))
    path = folder / FILE
    held = read_manifest(path)
    if held is None:
        provenance = Provenance(
            kind=kind,
            tool_version=__version__,
            config=wanted,
            config_digest=digest(wanted),
            inputs={"command": command} if command else {},
        )
        write_manifest(provenance, path)
        return
    if held.kind == kind and held.config == wanted:
        return
    differing = list(differences(held.config, wanted)) or [f"kind: {held.kind} -> {kind}"]
    more = len(differing) - _SHOWN
    shown = "; ".join(differing[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    before = held.inputs.get("command", "")
    again = f", or go on with the old one: {before}" if before else ""
    raise ResumeError(
        f"this folder holds runs of another configuration: {shown}",
        where=str(folder),
        remedy=f"choose a new folder for the new configuration{again}",
    )


def agents_config(specs: Iterable[AgentSpec]) -> dict[str, Any]:
    """What of agents decides how their runs come out, by name, in the order of the names."""
    return {
        name: {
            "digest": spec.ref.digest,
            "version": spec.ref.version,
            "model": spec.model,
            "seed": spec.seed,
            "sampling": spec.sampling,
        }
        for name, spec in sorted({spec.name: spec for spec in specs}.items())
    }


def differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """``key.key: old -> new`` of each leaf that differs, in the order of the sorted keys."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = f"{at}.{key}" if at else str(key)
            if key not in old:
                yield f"{place}: absent -> {_short(new[key])}"
            elif key not in new:
                yield f"{place}: {_short(old[key])} -> absent"
            else:
                yield from differences(old[key], new[key], place)
    elif old != new:
        yield f"{at}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
