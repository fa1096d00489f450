"""What an enclosing driver holds in: memory, processes, disk, files of the host, network."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palio.records import FaultCode
from palio.sandbox.spec import STRANGERS, Driver
from tests.sandbox.conftest import Outcome
from tests.sandbox.enclosures import outcome_of, tiny_session

MIB = 1 << 20


def test_it_declares_everything(enclosed_driver: Driver) -> None:
    assert enclosed_driver.capabilities.lacking(STRANGERS) == ()
    assert enclosed_driver.capabilities.isolation not in ("none", "inline")


@pytest.mark.parametrize(
    "source",
    [
        """
        def agent_main(p):
            held = []
            while True:
                held.append(bytearray(4_000_000))
        """,
        """
        import os, time
        def agent_main(p):
            for _ in range(12):
                if os.fork() == 0:
                    held = bytearray(os.urandom(1000) * 20_000)
                    time.sleep(30)
                    os._exit(0)
            time.sleep(30)
        """,
    ],
    ids=["one process", "many children"],
)
def test_memory_of_the_whole_tree_is_capped(enclosed: Outcome, source: str) -> None:
    outcome = enclosed(source, memory_bytes=160 * MIB)
    assert outcome.reason == "oom", outcome
    assert outcome.fault is not None
    assert outcome.fault.code == FaultCode.agent_crashed
    assert outcome.fault.what == "the agent was stopped: more than 160 MiB of memory"
    assert outcome.usage.peak_rss_mb is not None
    assert 160 < outcome.usage.peak_rss_mb < 400


def test_memory_shared_by_forks_is_counted_once(enclosed: Outcome) -> None:
    source = """
        import os, time
        def agent_main(p):
            held = bytearray(60_000_000)
            for _ in range(8):
                if os.fork() == 0:
                    time.sleep(30)
                    os._exit(0)
            time.sleep(0.5)
            return []
        """
    assert enclosed(source, memory_bytes=200 * MIB).claim == []


def test_memory_outside_processes_cannot_be_had(enclosed: Outcome) -> None:
    source = """
        import os, ctypes
        def agent_main(p):
            libc = ctypes.CDLL(None, use_errno=True)
            return [{"shm": libc.shmget(0, 1 << 20, 0o1600), "memfd": libc.memfd_create(b"x", 0)}]
        """
    assert enclosed(source).claim == [{"shm": -1, "memfd": -1}]


BOMB = """
import os, threading, time
def agent_main(p):
    made = 0
    try:
        while True:
            {one}
            made += 1
    except (OSError, RuntimeError):
        return [{{"made": made}}]
"""
FORK = "if os.fork() == 0: time.sleep(60); os._exit(0)"
THREAD = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"


@pytest.mark.parametrize("one", [FORK, THREAD], ids=["fork", "thread"])
def test_processes_and_threads_are_capped(enclosed: Outcome, one: str) -> None:
    outcome = enclosed(BOMB.format(one=one), pids=24)
    assert outcome.fault is None
    assert 5 <= outcome.claim[0]["made"] <= 24


def test_one_sandbox_s_bomb_starves_no_neighbour(enclosed_driver: Driver, tmp_path: Path) -> None:
    def bomb(number: int) -> object:
        folder = tmp_path / f"bomb {number}"
        folder.mkdir()
        held = BOMB.format(one=FORK).replace("return [", "time.sleep(2); return [")
        return outcome_of(enclosed_driver, held, folder, pids=40).claim

    def neighbour(number: int) -> object:
        time.sleep(0.3)
        folder = tmp_path / str(number)
        folder.mkdir()
        source = """
            import os
            def agent_main(p):
                for _ in range(10):
                    if os.fork() == 0:
                        os._exit(0)
                    os.wait()
                return [{"found": len(ProxyClient().get("/search/find_product", {"q": "mug"}))}]
            """
        session = tiny_session()
        return outcome_of(enclosed_driver, source, folder, pids=40, session=session).claim

    with ThreadPoolExecutor(6) as pool:
        bombs = [pool.submit(bomb, number) for number in range(2)]
        others = [pool.submit(neighbour, number) for number in range(3)]
        assert [other.result() for other in others] == [[{"found": 2}]] * 3
        assert all(running.result()[0]["made"] >= 20 for running in bombs)


def test_disk_is_capped(enclosed: Outcome) -> None:
    source = """
        import os
        def fill(folder, size):
            wrote = 0
            try:
                for number in range(100):
                    with open(f"{folder}/{number}", "wb", buffering=0) as file:
                        for _ in range(8):
                            wrote += file.write(bytes(size))
            except OSError as error:
                return wrote, error.errno
            return wrote, 0
        def agent_main(p):
            return [{"tmp": fill("/tmp", 1 << 20), "shm": fill("/dev/shm", 1 << 20)}]
        """
    (seen,) = enclosed(source, tmp_bytes=12 * MIB, shm_bytes=4 * MIB).claim
    assert seen["tmp"][0] <= 12 * MIB
    assert seen["shm"][0] <= 4 * MIB
    assert seen["tmp"][1] == seen["shm"][1] == 28  # ENOSPC


def test_a_file_s_length_is_capped_sparse_or_not(enclosed: Outcome) -> None:
    source = """
        import os, signal
        def agent_main(p):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            with open("/tmp/sparse", "wb") as file:
                try:
                    os.truncate("/tmp/sparse", 1 << 40)
                except OSError as error:
                    return [{"error": error.errno}]
            return [{"error": 0}]
        """
    assert enclosed(source).claim == [{"error": 27}]  # EFBIG


def test_inodes_are_capped(enclosed: Outcome, enclosed_driver: Driver) -> None:
    if enclosed_driver.capabilities.isolation == "runsc":
        pytest.skip("inodes of gVisor are its own memory, which the watchdog counts")
    source = """
        import time
        def agent_main(p):
            for number in range(60_000):
                try:
                    open(f"/tmp/{number}", "w").close()
                except OSError:
                    return [{"made": number}]
            time.sleep(5)
            return [{"made": number}]
        """
    outcome = enclosed(source, inodes=2_000)
    if outcome.reason == "output_limit":
        assert outcome.fault is not None
        assert outcome.fault.what == "the agent was stopped: more than 2000 files"
    else:
        assert outcome.claim[0]["made"] <= 2_000


def test_descriptors_are_capped(enclosed: Outcome) -> None:
    source = """
        import os
        def agent_main(p):
            held = []
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                count = len(held)
                for fd in held:
                    os.close(fd)
                return [{"held": count}]
        """
    assert enclosed(source, open_files=40).claim[0]["held"] <= 40


def test_nothing_of_the_host_is_there(
    enclosed: Outcome, enclosed_driver: Driver, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o666)
    tmp_path.chmod(0o777)
    source = f"""
        import os
        def readable(path):
            try:
                with open(path) as file:
                    return file.read()
            except OSError:
                return None
        def written(path):
            try:
                with open(path, "w") as file:
                    file.write("x")
                return True
            except OSError:
                return False
        def agent_main(p):
            return [{{
                "secret": readable({str(secret)!r}),
                "passwd": readable("/etc/passwd"),
                "shadow": readable("/etc/shadow"),
                "homes": [path for path in ("/root", "/home", "/work", "/var", "/run", "/sys",
                                            "/boot", "/opt", "/usr/local", "/usr/share")
                          if os.path.exists(path) and os.listdir(path)],
                "written": [path for path in ("/x", "/usr/bin/x", "/agent/agent.py",
                            "/agent/x", "/palio/src/agent/proxy_client.py", "/palio/x", "/etc/x",
                            "/etc/passwd", "/dev/x", "/proc/sys/kernel/hostname")
                            if written(path)],
                "environ": [readable(f"/proc/{{pid}}/environ") or "" for pid in
                            [name for name in os.listdir("/proc") if name.isdigit()]],
                "pids": len([name for name in os.listdir("/proc") if name.isdigit()]),
                "mounts": readable("/proc/self/mountinfo"),
                "user": os.getuid(),
                "host": os.uname().nodename,
                "groups": os.getgroups(),
            }}]
        """
    (seen,) = enclosed(source).claim
    assert seen["secret"] is seen["shadow"] is None
    assert seen["passwd"] == "agent:x:1000:1000:agent:/tmp:/bin/sh\n"
    of_gvisor = ["/sys"] if enclosed_driver.capabilities.isolation == "runsc" else []
    assert (seen["homes"], seen["written"]) == (of_gvisor, [])
    assert seen["pids"] <= 4
    assert (seen["host"], seen["user"]) == ("sandbox", 1000)
    assert set(seen["groups"]) <= {1000}
    assert PUBLIC_ID not in seen["mounts"]
    for text in seen["environ"]:
        names = {pair.partition("=")[0] for pair in text.split("\0") if pair}
        assert not names - {"PATH", "HOME", "TMPDIR", "LANG", "TZ", "PYTHONHASHSEED", "PYTHONUTF8",
                            "SANDBOX_PROXY_URL", "PWD", "LC_CTYPE"}  # fmt: skip


PUBLIC_ID = "p1"


def test_no_network_but_the_door(enclosed: Outcome) -> None:
    source = """
        import socket
        def refused(family, address):
            try:
                with socket.socket(family, socket.SOCK_STREAM) as made:
                    made.settimeout(2)
                    made.connect(address)
                return False
            except OSError:
                return True
        def agent_main(p):
            unspecified = {}
            for family in ("AF_PACKET", "AF_VSOCK", "AF_NETLINK", "AF_ALG", "AF_KEY"):
                try:
                    socket.socket(getattr(socket, family, 15), socket.SOCK_RAW).close()
                    unspecified[family] = "open"
                except OSError as error:
                    unspecified[family] = error.errno
            try:
                name = socket.getaddrinfo("example.com", 80)
            except OSError:
                name = None
            return [{
                "host": refused(socket.AF_INET, ("127.0.0.1", PORT)),
                "gateway": refused(socket.AF_INET, ("10.0.0.1", 80)),
                "metadata": refused(socket.AF_INET, ("169.254.169.254", 80)),
                "abstract": refused(socket.AF_UNIX, "\\0palio-test"),
                "docker": refused(socket.AF_UNIX, "/var/run/docker.sock"),
                "name": name,
                "families": unspecified,
                "door": len(ProxyClient().get("/search/find_product", {"q": "mug"})),
            }]
        """
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0palio-test")
        local.listen()
        port = server.getsockname()[1]
        (seen,) = enclosed(source.replace("PORT", str(port)), session=tiny_session()).claim
    families = seen.pop("families")
    assert seen == {
        "host": True, "gateway": True, "metadata": True, "abstract": True, "docker": True,
        "name": None, "door": 2,
    }  # fmt: skip
    assert "open" not in families.values()


def test_the_door_shuts_with_the_run(enclosed_driver: Driver, tmp_path: Path) -> None:
    session = tiny_session()
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(3):
        outcome_of(enclosed_driver, "def agent_main(p): return []", tmp_path, session=session)
    time.sleep(0.1)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) <= before + 2


def test_privilege_cannot_be_gained(enclosed: Outcome) -> None:
    source = """
        import ctypes, os
        def agent_main(p):
            libc = ctypes.CDLL(None, use_errno=True)
            def failed(result):
                return result == -1
            try:
                os.setuid(0)
                root = True
            except OSError:
                root = False
            status = dict(line.split(":", 1) for line in open("/proc/self/status"))
            return [{
                "root": root,
                "unshare": failed(libc.unshare(0x10000000)),
                "mount": failed(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
                "umount": failed(libc.umount2(b"/tmp", 2)),
                "ptrace": failed(libc.ptrace(16, os.getppid(), 0, 0)),
                "bpf": failed(libc.syscall(321, 0, 0, 0)),
                "keyctl": failed(libc.syscall(250, 0, 0, 0)),
                "io_uring": failed(libc.syscall(425, 1, 0)),
                "userfaultfd": failed(libc.syscall(323, 0)),
                "perf": failed(libc.syscall(298, 0, 0, 0, 0, 0)),
                "chroot": failed(libc.chroot(b"/tmp")),
                "sethostname": failed(libc.sethostname(b"x", 1)),
                "capabilities": status.get("CapEff", "0").strip(" \\t\\n0"),
            }]
        """
    if os.uname().machine != "x86_64":
        pytest.skip("system call numbers of x86_64")
    (seen,) = enclosed(source).claim
    assert seen.pop("capabilities") == ""
    assert seen.pop("root") is False
    assert all(seen.values()), seen


def test_requests_can_be_imported_and_reaches_the_door(enclosed: Outcome) -> None:
    from palio.sandbox.packages import archive

    if not archive():
        pytest.skip("requests is not installed")
    source = """
        import os, requests
        def agent_main(p):
            base = os.environ["SANDBOX_PROXY_URL"]
            found = requests.get(base + "/search/find_product", params={"q": "mug"}, timeout=20)
            return [{"found": len(found.json()), "status": found.status_code}]
        """
    outcome = enclosed(source, session=tiny_session())
    assert outcome.fault is None
    assert outcome.claim == [{"found": 2, "status": 200}]
