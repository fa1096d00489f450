"""One exception tree: what happened, where, who is to blame, what to do next."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Blame(StrEnum):
    """Who caused a fault. Codes: agent 1000-1999, validator 2000-2999, platform 3000-3999."""

    agent = "agent"
    validator = "validator"
    platform = "platform"


def blame_of(code: int) -> Blame:
    """The party that a fault code charges (architecture, rule 4)."""
    parties = {1: Blame.agent, 2: Blame.validator, 3: Blame.platform}
    if code // 1000 not in parties:
        raise ValueError(f"fault code {code} is outside 1000-3999")
    return parties[code // 1000]


class PalioError(Exception):
    """Base of every error that palio raises on purpose.

    Attributes:
        what: what happened, one sentence.
        where: file, row or run, "" when there is none.
        remedy: what to do next, "" when nothing can be suggested.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        head = f"{where}: {what}" if where else what
        super().__init__(f"{head} ({remedy})" if remedy else head)


class InputError(PalioError):
    """A file, row or argument that came from outside is not what it should be."""


class ConfigError(PalioError):
    """A configuration asks for something that does not exist or contradicts itself."""


class MissingDependencyError(PalioError):
    """An optional part was chosen whose package or file is not installed; the remedy names it."""


class ResumeError(PalioError):
    """A run folder holds work made under another configuration; names the keys that differ."""


class IntegrityError(PalioError):
    """An artefact does not match its manifest, or an invariant that must hold does not."""


class UpstreamError(PalioError):
    """The model server failed; carries the fault code that the record will show.

    Attributes:
        code: 3000-3999 (platform), see `palio.records.trajectory.FaultCode`.
        retryable: whether the same request may succeed later.
    """

    def __init__(
        self, what: str, *, code: int, retryable: bool = False, where: str = "", remedy: str = ""
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.code = code
        self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        """What pickle needs: without it one that leaves a worker process breaks the pool."""
        return _raised, (self.what, self.code, self.retryable, self.where, self.remedy)


def _raised(what: str, code: int, retryable: bool, where: str, remedy: str) -> UpstreamError:
    return UpstreamError(what, code=code, retryable=retryable, where=where, remedy=remedy)
