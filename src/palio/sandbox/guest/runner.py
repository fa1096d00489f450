"""Runs one agent file on one problem in this process and gives one JSON report to the host.

Arguments: where the control socket is (see `door`), how the door is made, and for how many seconds
a container may exist at all. Over that socket the host sends one JSON object {agent, problem, seed,
result_bytes} and reads the report. What is written here is the agent's claim: the host trusts none
of it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing costs 3 ms of every start
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def main() -> None:
    """Open the door, read the task, run the agent, write the report."""
    import door  # type: ignore[import-not-found]
    import fixed  # type: ignore[import-not-found]

    door.become_init(float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
    control = door.connect(sys.argv[1])
    door.open_door(control, sys.argv[2])
    import json
    import os

    sys.path.append(sys.path[0] + "/packages.zip")
    task = json.loads(door.read_task(control))
    fixed.fix(task["seed"])
    report = run(task)
    try:
        data = json.dumps(report, ensure_ascii=True).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        what = f"agent_main returned what JSON cannot hold: {error}"
        data = json.dumps({"status": "bad_return", "what": what[:400]}).encode("ascii")
    if len(data) > task["result_bytes"] + 1000:
        data = json.dumps({"status": "output_limit", "size": len(data)}).encode("ascii")
    control.sendall(data)
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - the agent may have closed or replaced it
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(0)  # threads that the agent left running must not keep the sandbox alive


def run(task: dict[str, Any]) -> dict[str, Any]:
    """The report: {status, claim | what}."""
    module, failure = load(task["agent"], "agent")
    if module is None:
        return failure or {}
    try:
        claim = module.agent_main(dict(task["problem"]))
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
