"""Where `python_execute` runs code is the host's choice; what it answers has one form."""

from __future__ import annotations

from typing import Protocol

from palio.records import PalioError, Record

MAX_CODE = 100_000
"""Characters of one piece of code; real ones stay under 4,000."""
MAX_OUTPUT = 8_000
"""Characters of stdout and of stderr that a model is shown: about 2,000 tokens each."""
MAX_EXCEPTION = 2_000
"""Characters of the exception that a model is shown."""


class Execution(Record, frozen=True, omit_defaults=False):
    """What came of a piece of code; its JSON is the tool's result.

    Attributes:
        stdout, stderr: what it wrote, each cut to `MAX_OUTPUT` characters.
        exception: what ended it, such as "ZeroDivisionError: division by zero (line 2)"; "" when it
            ran to its end.
        truncated: whether anything was cut.
    """

    stdout: str
    stderr: str
    exception: str
    truncated: bool


class ExecutionUnavailableError(PalioError):
    """The host could not start a sandbox: no fault of the code's, and nothing was run."""


class Executor(Protocol):
    """Runs code apart from the host; safe to use from many threads."""

    def execute(self, code: str) -> Execution:
        """Run a piece of Python to its end or its limit.

        Never raises for what the code does.

        Raises:
            ExecutionUnavailableError: there was no sandbox to run it in.
        """
