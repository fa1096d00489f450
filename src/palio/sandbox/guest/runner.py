"""Runs one agent file on one problem in this process and writes one JSON report to a pipe.

Argument: the number of the report's file descriptor. Standard input: one JSON object {agent, guest,
problem, seed, result_bytes}. What is written here is the agent's claim: the host trusts none of it.
"""

import sys


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


def run(task):  # type: ignore[no-untyped-def]
    """The report: {status, claim | what}."""
    try:
        module = load(task["agent"])
    except SyntaxError as error:
        return {"status": "bad_source", "what": f"{error.msg} (line {error.lineno})"}
    except BaseException as error:  # noqa: BLE001 - whatever the file raises is its own fault
        return {"status": "crashed", "what": "while loading: " + last_line(error)}
    agent_main = getattr(module, "agent_main", None)
    if not callable(agent_main):
        return {"status": "bad_source", "what": "the file defines no function agent_main"}
    if "random" in sys.modules:
        sys.modules["random"].seed(task["seed"])
    try:
        claim = agent_main(dict(task["problem"]))
    except BaseException as error:  # noqa: BLE001 - whatever the agent raises is its own fault
        return {"status": "crashed", "what": last_line(error)}
    if not isinstance(claim, list):
        what = f"agent_main returned {type(claim).__name__}, not a list of steps"
        return {"status": "bad_return", "what": what}
    return {"status": "ok", "claim": claim}


def load(path):  # type: ignore[no-untyped-def]
    """Import the agent file as module "agent"; it stands in sys.modules, as dataclasses need."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 5 ms of every start
        source = file.read()
    code = compile(source, path, "exec", dont_inherit=True)
    module = type(sys)("agent")
    module.__file__ = path
    sys.modules["agent"] = module
    exec(code, module.__dict__)  # noqa: S102 - running the agent is the purpose
    return module


def last_line(error):  # type: ignore[no-untyped-def]
    """The last traceback line with the place in the agent file, as `Type: text (line n)`."""
    where = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "agent":
            where = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    text = str(error)
    return (type(error).__name__ + (": " + text[:400] if text else "")) + where


if __name__ == "__main__":
    main()
