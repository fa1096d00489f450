"""The agent file of `python_execute`: runs the code that the task holds, says what ended it.

It is the same in every sandbox; the code comes as the task, so nothing has to be written to disk.
What the code prints goes straight to the sandbox's own output, which the host reads and caps.
"""

import sys
from typing import Any

MAX_EXCEPTION = 2_000
NAME = "<code>"


def agent_main(task: dict[str, Any]) -> list[dict[str, str]]:
    """Run ``task["code"]``: one entry {exception}."""
    for stream in (sys.stdout, sys.stderr):
        # What was printed before a time-out shall be seen, and no text must fail to be written.
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = compile(task["code"], NAME, "exec", dont_inherit=True)
        exec(code, {"__name__": "__main__", "__builtins__": __builtins__})  # noqa: S102 - the purpose
    except SystemExit as leave:
        if leave.code in (None, 0):
            return [{"exception": ""}]
        return [{"exception": _told(leave)}]
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its result
        return [{"exception": _told(error)}]
    return [{"exception": ""}]


def _told(error: BaseException) -> str:
    """`Type: text (line n)`, with the innermost line of the code itself."""
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except BaseException:  # noqa: BLE001 - its own __str__ may raise
        text = ""
    where = f" (line {line})" if line else ""
    return f"{type(error).__name__}{': ' + text[:MAX_EXCEPTION] if text else ''}{where}"
