"""A stage goes on with the model's server that it began with, as far as that tells what it serves.

One address may have another model behind it tomorrow. What the server says of the model when a
stage begins stands in the stage's `run.json`, and at the end in its `stage.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from palio.broker.pin import endpoint_pin
from palio.records import Record, ResumeError, UpstreamError
from palio.rollout.config import FILE, differences, hold_config
from palio.train.rollouts import FILE as ROLLOUTS
from palio.train.rollouts import SETTLED
from palio.train.stage import STATES, Endpoint, Keys, read_metrics
from palio.world.appended import whole_records
from palio.world.artefacts import read_manifest

ENDPOINT = "endpoint"
"""Key of what the two files tell of a server, a `broker.pin.ModelPin`; never a key or password."""
TEACHER = "teacher"
"""Key of whether that is one model for all runs (`Endpoint.teacher`), where runs share teachers."""
_REDO = "name another --out, or say --redo: this stage and all after it again"

Said = Mapping[str, Any]
"""A `ModelPin` as plain data, empty where nobody was asked."""


class Servers:
    """The servers that the stages of one run ask.

    Args:
        keys: bearer tokens for them.
        again: what else than the server of before a user may choose, in words.
    """

    def __init__(self, keys: Keys, *, again: str = _REDO) -> None:
        self._keys, self._again = keys, again
        self._teachers: dict[tuple[str, str], tuple[str, Said]] = {}

    def meet(self, folders: Iterable[Path], within: Path) -> None:
        """Learn of the teachers that other runs have had answers of: a stage has no other ones.

        Args:
            folders: of those runs' stages.
            within: messages call them by their path below it.

        Raises:
            InputError: what one of them wrote down when it began cannot be read.
        """
        for folder in folders:
            begun = read_manifest(folder / FILE)
            said: Said = begun.config.get(ENDPOINT, {}) if begun is not None else {}
            if begun is not None and said and begun.config.get(TEACHER) and _answered(folder):
                self._teachers.setdefault(_place(said), (str(folder.relative_to(within)), said))

    def hold(
        self, folder: Path, config: Mapping[str, Any], endpoint: Endpoint | None, *, finished: bool
    ) -> Said:
        """Hold a stage to its configuration, and then to the server that it asks.

        A stage that is finished, or whose rollouts are settled, has no more to ask. While a server
        has given it nothing, there may be another one; one that did nothing at all may be changed.

        Args:
            folder: of the stage.
            config: what decides it, but for the server.
            endpoint: its server; None: it asks nobody.
            finished: whether it is.

        Returns:
            What its server says of itself, empty where an older version of palio did not note it.

        Raises:
            ResumeError: another configuration, or another model behind the same address than this
                stage began with, or than an earlier one had for its teacher; names what differs.
            UpstreamError: the server cannot be reached.
        """
        begun = read_manifest(folder / FILE)
        then: Said = begun.config.get(ENDPOINT, {}) if begun is not None else {}
        if begun is not None or endpoint is None:
            self._begin(folder, config, then)
        if endpoint is None:
            return {}
        said = then
        if begun is None or not (finished or _settled(folder, then)):
            said = self._said(endpoint, folder.name)
            if said != then and _answered(folder):
                raise self._changed(folder, then, said)
            self._check_teacher(folder, endpoint, said)
            if said != then:
                (folder / FILE).unlink(missing_ok=True)
                self._begin(folder, config, said)
        if endpoint.teacher and said:
            self._teachers.setdefault(_place(said), (folder.name, said))
        return said

    def _said(self, endpoint: Endpoint, stage: str) -> Said:
        try:
            pin = endpoint_pin(endpoint.base_url, self._keys.of(endpoint), endpoint.model)
        except UpstreamError as error:
            raise UpstreamError(
                f"stage {stage!r} has nobody to ask: {error.what}",
                code=error.code,
                retryable=error.retryable,
                where=error.where,
                remedy="start the model's server, or correct its address; then the same command "
                "goes on",
            ) from error
        told: dict[str, Any] = msgspec.to_builtins(pin)
        return told

    def _check_teacher(self, folder: Path, endpoint: Endpoint, said: Said) -> None:
        stage, then = self._teachers.get(_place(said), ("", said))
        if not endpoint.teacher or then == said:
            return
        raise ResumeError(
            f"the teacher {said['name']!r} of stage {folder.name!r} is another than that of stage "
            f"{stage!r}: {_differing(then, said)}",
            where=said["base_url"],
            remedy=f"put that of {stage!r} back, or give the other one a `model` name of its own",
        )

    def _begin(self, folder: Path, config: Mapping[str, Any], said: Said) -> None:
        told = {**config, ENDPOINT: said} if said else config
        try:
            hold_config(folder, "stage", told)
        except ResumeError as error:
            if [path.name for path in folder.glob("*")] != [FILE]:
                raise ResumeError(error.what, where=error.where, remedy=self._again) from error
            (folder / FILE).unlink()
            hold_config(folder, "stage", told)

    def _changed(self, folder: Path, then: Said, now: Said) -> ResumeError:
        return ResumeError(
            f"stage {folder.name!r} began with another model behind {then['base_url']}: "
            f"{_differing(then, now)}",
            where=str(folder),
            remedy=f"put that one back, {self._again}",
        )


def _place(said: Said) -> tuple[str, str]:
    return said["base_url"], said["name"]


def _differing(then: Said, now: Said) -> str:
    return "; ".join(differences(dict(then), dict(now)))


def _settled(folder: Path, then: Said) -> bool:
    """Whether a stage asks no more, or had answers before it was noted whose they are."""
    return (folder / SETTLED).exists() or (not then and _answered(folder))


def _answered(folder: Path) -> bool:
    """Whether a stage has something of its server's: a scored rollout, or an update."""
    from palio.train.preference.labels import LABELLED

    if read_metrics(folder) or any((folder / STATES).glob("checkpoint-*")):
        return True
    files = (folder / name for name in (ROLLOUTS, LABELLED))
    rows = chain.from_iterable(whole_records(path, _Row) for path in files)
    return any(row.scored or row.label is not None for row in rows)


class _Row(Record, frozen=True):
    """What a rollout of `rollouts.jsonl` or `labelled.jsonl` tells of its own end."""

    scored: bool = False
    label: bool | None = None
