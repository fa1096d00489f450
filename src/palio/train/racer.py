"""A trained checkpoint enters the race: one file is the agent, one says whose weights answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from palio.agents.spec import HARNESS, AgentSpec, agent_from_file
from palio.broker.upstream import Upstream
from palio.records import ConfigError, InputError, IntegrityError, Record, from_json, to_json
from palio.world.artefacts import MANIFEST, file_digest, write_lines

SUFFIX = ".checkpoint.json"
_MARK = re.compile(rb'^CHECKPOINT = "(sha256:[0-9a-f]{64})"$', re.MULTILINE)
"""What an agent's source says of its weights."""


class Racer(Record, frozen=True, omit_defaults=False):
    """Stands beside an agent file.

    Attributes:
        model: the name under which its requests ask for the weights.
        checkpoint: folder of the weights.
        digest: of the checkpoint's manifest, which lists the digest of every file.
    """

    model: str
    checkpoint: str
    digest: str


def write_racer(checkpoint: Path, path: Path, *, force: bool = False) -> Racer:
    """Write an agent file that runs a checkpoint, and the file that names its weights.

    The agent's source holds the checkpoint's digest, so other weights are another agent.

    Args:
        checkpoint: a checkpoint, a stage's or a run's folder, or "bundled".
        path: the agent file, NAME.py.
        force: overwrite.

    Raises:
        InputError: no checkpoint, or the file exists.
        ConfigError: the path does not end in .py.
    """
    from palio.train.checkpoint import checkpoint_folder, checkpoint_name

    if path.suffix != ".py":
        raise ConfigError("an agent is a .py file", where=str(path))
    if path.exists() and not force:
        raise InputError("the file exists", where=str(path), remedy="choose another, or --force")
    folder = checkpoint_folder(checkpoint)
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise InputError(
            "no checkpoint with a manifest", where=str(checkpoint), remedy="train one first"
        )
    racer = Racer(
        model=f"{path.stem}-{checkpoint_name(checkpoint)}",
        checkpoint=str(folder.resolve()),
        digest=file_digest(manifest),
    )
    source = HARNESS.read_text(encoding="utf-8")
    write_lines(path, [source.encode(), f'\nCHECKPOINT = "{racer.digest}"\n'.encode()])
    write_lines(beside(path), [to_json(racer) + b"\n"])
    return racer


def beside(path: Path) -> Path:
    """The file that names an agent file's weights."""
    return path.with_name(path.stem + SUFFIX)


def racer_of(path: Path) -> Racer | None:
    """The weights of an agent file; None where it has none of its own.

    Raises:
        InputError: it was made from a checkpoint, and the file beside it is missing. Without it
            another model would answer in the checkpoint's name.
        IntegrityError: the file beside it names other weights than its source.
    """
    named, made_from = beside(path), _made_from(path)
    if not named.is_file():
        if made_from:
            raise InputError(
                "this agent was made from a checkpoint, and the file that names its weights is "
                "not there",
                where=str(named),
                remedy="copy it too, or make the agent again: palio agent from-checkpoint",
            )
        return None
    racer = from_json(named.read_bytes(), Racer, where=str(named))
    if racer.digest != made_from:
        raise IntegrityError(
            f"the agent says that it was made from {made_from or 'no checkpoint'}, and the file "
            f"beside it names {racer.digest}",
            where=str(path),
            remedy="make the agent again: palio agent from-checkpoint",
        )
    return racer


def _made_from(path: Path) -> str:
    """The digest that an agent's source holds; "" of other agents, and where there is no file."""
    found = _MARK.findall(path.read_bytes()) if path.is_file() else []
    return found[-1].decode() if found else ""


def racer_spec(path: Path) -> AgentSpec | None:
    """The spec of a checkpoint's agent file; None for any other agent file."""
    racer = racer_of(path)
    return agent_from_file(path, kind="policy", model=racer.model) if racer else None


@contextmanager
def with_checkpoints(upstream: Upstream, files: Sequence[Path]) -> Iterator[Upstream]:
    """An upstream in which the agents' checkpoints answer for themselves, others as before.

    Raises:
        ConfigError: two checkpoints would go by one name.
        IntegrityError: a checkpoint is not the one that its agent was made from, file by file.
    """
    racers = [racer for racer in map(racer_of, files) if racer is not None]
    _check_names(racers)
    if not racers:
        yield upstream
        return
    from palio.train.serving import open_checkpoint  # a race without one needs no torch

    with ExitStack() as open_now:
        engines: dict[str, Upstream] = {}
        for racer in racers:
            folder = Path(racer.checkpoint)
            manifest = folder / MANIFEST
            if not manifest.is_file() or file_digest(manifest) != racer.digest:
                raise IntegrityError(
                    "the checkpoint is not the one that this agent was made from",
                    where=racer.checkpoint,
                    remedy="make the agent again: palio agent from-checkpoint",
                )
            engines[racer.model] = open_now.enter_context(open_checkpoint(folder))
        yield Routed(engines, upstream)


def _check_names(racers: Sequence[Racer]) -> None:
    """One name, one checkpoint: else one of them would answer for both."""
    named: dict[str, Racer] = {}
    for racer in racers:
        other = named.setdefault(racer.model, racer)
        if (other.checkpoint, other.digest) != (racer.checkpoint, racer.digest):
            raise ConfigError(
                f"two agents have different checkpoints that are both called {racer.model!r}",
                where=f"{other.checkpoint} and {racer.checkpoint}",
                remedy="give the agent files different names",
            )


class Routed:
    """Sends a request to the model that it names.

    Args:
        named: model name -> who answers for it.
        rest: who answers for all other names.
    """

    def __init__(self, named: dict[str, Upstream], rest: Upstream) -> None:
        self._named, self._rest = named, rest

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One chat completion."""
        return self._named.get(str(body.get("model", "")), self._rest).complete(body)
