"""Looks on disk for the suite, its answers and what other people's agents are made of.

It was even told where they lie on the host.
"""

import os


def text_of(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(fd, 20_000).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def ways_to(path):
    yield path
    yield "../" * 12 + path
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        for start in ("root", "cwd"):
            yield f"/proc/{pid}/{start}{path}"
            yield f"/proc/{pid}/{start}/../../../../..{path}"
    for fd in range(10):
        yield f"/proc/self/fd/{fd}/../../../../../..{path}"
        yield f"/dev/fd/{fd}{path}"


def lying_about():
    seen = 0
    for folder, names, files in os.walk("/"):
        if folder == "/":
            names[:] = [name for name in names if name not in ("proc", "sys", "usr")]
        for name in files:
            seen += 1
            if seen > 3000:
                return
            yield f"{folder}/{name}"


def agent_main(problem):
    read = {}
    for told in (problem["suite"], problem["other"]):
        for number, path in enumerate(ways_to(told)):
            text = text_of(path)
            if text:
                read[f"way {number}"] = text
    for path in lying_about():
        read[path] = text_of(path)[:2000]
    folders = {name: len(os.listdir(name)) for name in ("/tmp", "/dev/shm", "/agent")
               if os.path.isdir(name)}  # fmt: skip
    return [{"read": read, "folders": folders}]
