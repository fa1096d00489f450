"""Reads what /proc tells of any process that it can see: environment, command line, mounts."""

import os

FILES = """
environ cmdline mountinfo mounts mountstats maps cgroup comm status auxv stack wchan
sessionid loginuid uid_map net/unix net/tcp net/route net/fib_trie
""".split()
LINKS = ("exe", "cwd", "root", "ns/net", "ns/user", "ns/pid")


def text_of(path):
    try:
        with open(path, "rb") as file:
            return file.read(200_000).decode("utf-8", "replace")
    except OSError:
        return ""


def agent_main(problem):
    told = {}
    names = [*os.listdir("/proc"), "self", "thread-self", str(os.getppid())]
    for name in problem.get("only", "").split() or names:
        if not os.path.isdir(f"/proc/{name}"):
            continue
        for file in FILES:
            told[f"{name}/{file}"] = text_of(f"/proc/{name}/{file}")
        for link in LINKS:
            try:
                told[f"{name}/{link}"] = os.readlink(f"/proc/{name}/{link}")
            except OSError:
                pass
    for name in ("keys", "key-users", "locks", "sched_debug", "kallsyms", "net/arp"):
        told[name] = text_of(f"/proc/{name}")[:10_000]
    return [{"told": {key: text for key, text in told.items() if text}}]
