"""Runs one agent file on one problem in this process and writes one JSON report to a pipe.

Argument: the number of the report's file descriptor. Standard input: one JSON object {agent, guest,
problem, seed, result_bytes}. What is written here is the agent's claim: the host trusts none of it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing costs 3 ms of every start
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def main() -> None:
    """Read the task, run the agent, write the report."""
    import json
    import os

    report_fd = int(sys.argv[1])
    task = json.loads(sys.stdin.buffer.read())
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    sys.path.insert(0, task["guest"])
    report = run(task)
    try:
        data = json.dumps(report, ensure_ascii=True).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        what = f"agent_main returned what JSON cannot hold: {error}"
        data = json.dumps({"status": "bad_return", "what": what[:400]}).encode("ascii")
    if len(data) > task["result_bytes"] + 1000:
        data = json.dumps({"status": "output_limit", "size": len(data)}).encode("ascii")
    with os.fdopen(report_fd, "wb") as pipe:
        pipe.write(data)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that the agent left running must not keep the sandbox alive


def run(task: dict[str, Any]) -> dict[str, Any]:
    """The report: {status, claim | what}."""
    module, failure = load(task["agent"], "agent")
    if module is None:
        return failure or {}
    agent_main = module.agent_main
    if "random" in sys.modules:
        sys.modules["random"].seed(task["seed"])
    try:
        claim = agent_main(dict(task["problem"]))
    except BaseException as error:  # noqa: BLE001 - whatever the agent raises is its own fault
        return {"status": "crashed", "what": last_line(error, "agent")}
    if not isinstance(claim, list):
        what = f"agent_main returned {type(claim).__name__}, not a list of steps"
        return {"status": "bad_return", "what": what}
    return {"status": "ok", "claim": claim}


def load(
    path: str, name: str, hooks: dict[str, Any] | None = None
) -> tuple[ModuleType | None, dict[str, Any] | None]:
    """Import the agent file as module `name`: (module, None), or (None, report of what is wrong).

    The module stands in sys.modules, as dataclasses need. `hooks` are names put into its namespace
    before it runs.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 5 ms of every start
            code = compile(file.read(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return None, {"status": "bad_source", "what": f"{error.msg} (line {error.lineno})"}
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return None, {"status": "bad_source", "what": f"{type(error).__name__}: {error}"}
    module = type(sys)(name)
    module.__file__ = path
    module.__dict__.update(hooks or {})
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)  # noqa: S102 - running the agent is the purpose
    except BaseException as error:  # noqa: BLE001 - whatever the file raises is its own fault
        return None, {"status": "crashed", "what": "while loading: " + last_line(error, name)}
    if not callable(getattr(module, "agent_main", None)):
        what = "the file defines no function agent_main"
        return None, {"status": "bad_source", "what": what}
    return module, None


def last_line(error: BaseException, name: str) -> str:
    """The last traceback line with its place in module `name`: `Type: text (line n)`."""
    where = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == name:
            where = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    text = str(error)
    return (type(error).__name__ + (": " + text[:400] if text else "")) + where


if __name__ == "__main__":
    main()
