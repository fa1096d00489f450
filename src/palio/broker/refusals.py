"""The two ways in which a session says no: to a request, and to a run."""

from __future__ import annotations

from palio.records import PalioError


class RunOver(BaseException):
    """The run is closed, past its deadline, or its record cannot be written.

    Not an `Exception`, so that an agent's ``except Exception`` cannot swallow it in process.
    """


class RefusedError(PalioError):
    """The request is not carried out: over budget, or not a chat request. Blame: the agent.

    Attributes:
        status: the HTTP status that the server answers, 400, 403 or 404.
        code: OpenAI's error code, "" for the general one.
    """

    def __init__(self, what: str, *, status: int, code: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.code = code
