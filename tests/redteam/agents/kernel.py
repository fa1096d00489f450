"""System calls by which sandboxes were left before. Runs only where they must fail."""

import ctypes
import os
import resource
import signal
import socket

ARM = os.uname().machine == "aarch64"
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_MOUNT, NEW_NET, NEW_PID = 0x10000000, 0x20000, 0x40000000, 0x20000000


def call(x86, arm, *arguments):
    return LIBC.syscall(arm if ARM else x86, *arguments) != -1


def cloned(flags):
    made = LIBC.syscall(220 if ARM else 56, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if made == 0:
        os._exit(0)
    return made > 0


def cloned3():
    made = LIBC.syscall(435, ctypes.create_string_buffer(64), 64)
    if made == 0:
        os._exit(0)
    return made > 0


def joined(kind):
    try:
        fd = os.open(f"/proc/1/ns/{kind}", os.O_RDONLY)
    except OSError:
        return False
    return LIBC.setns(fd, 0) == 0


def opened(path, flags=os.O_RDWR):
    try:
        os.close(os.open(path, flags))
        return True
    except OSError:
        return False


def done(action, *arguments):
    try:
        action(*arguments)
        return True
    except (OSError, ValueError):
        return False


def in_child(action):
    """Whether it went well in a child; calls that are answered by a kill end only that."""
    child = os.fork()
    if child == 0:
        os._exit(0 if action() else 1)
    return os.waitpid(child, 0)[1] == 0


def x32():
    return not ARM and LIBC.syscall(0x40000000 | 39) > 0


BUFFER = ctypes.create_string_buffer(4096)
ATTEMPTS = {
    "unshare user": lambda: LIBC.unshare(NEW_USER) == 0,
    "unshare user and mount": lambda: LIBC.unshare(NEW_USER | NEW_MOUNT) == 0,
    "unshare net": lambda: LIBC.unshare(NEW_NET) == 0,
    "clone user": lambda: cloned(NEW_USER),
    "clone pid": lambda: cloned(NEW_PID),
    "clone3": cloned3,
    "setns user": lambda: joined("user"),
    "setns net": lambda: joined("net"),
    "mount tmpfs": lambda: LIBC.mount(b"x", b"/tmp", b"tmpfs", 0, None) == 0,
    "mount proc": lambda: LIBC.mount(b"proc", b"/proc", b"proc", 0, None) == 0,
    "remount": lambda: LIBC.mount(b"x", b"/", b"x", 32, None) == 0,
    "umount": lambda: LIBC.umount2(b"/proc", 2) == 0,
    "open_tree": lambda: call(428, 428, -100, b"/", 1),
    "fsopen": lambda: call(430, 430, b"tmpfs", 0),
    "pivot_root": lambda: call(155, 41, b"/tmp", b"/tmp"),
    "chroot": lambda: LIBC.chroot(b"/tmp") == 0,
    "io_uring_setup": lambda: call(425, 425, 4, BUFFER),
    "io_setup": lambda: call(206, 0, 4, BUFFER),
    "bpf": lambda: call(321, 280, 5, BUFFER, 48),
    "keyctl": lambda: call(250, 219, 0, -3, 1),
    "add_key": lambda: call(248, 217, b"user", b"x", b"x", 1, -3),
    "request_key": lambda: call(249, 218, b"user", b"x", None, -3),
    "ptrace attach": lambda: LIBC.ptrace(16, os.getppid(), 0, 0) == 0,
    "ptrace init": lambda: LIBC.ptrace(0x4206, 1, 0, 0) == 0,
    "ptrace me": lambda: in_child(lambda: LIBC.ptrace(0, 0, 0, 0) == 0),
    "process_vm_readv": lambda: call(310, 270, 1, BUFFER, 1, BUFFER, 1, 0),
    "pidfd_getfd": lambda: call(438, 438, 0, 0, 0),
    "perf_event_open": lambda: call(298, 241, BUFFER, 0, -1, -1, 0),
    "userfaultfd": lambda: call(323, 282, 1),
    "open_by_handle_at": lambda: call(304, 265, -100, BUFFER, 0),
    "kexec_load": lambda: call(246, 104, 0, 0, 0, 0),
    "init_module": lambda: call(175, 105, BUFFER, 1, b""),
    "quotactl": lambda: call(179, 60, 0, b"/", 0, BUFFER),
    "syslog": lambda: call(103, 116, 3, BUFFER, 100),
    "sethostname": lambda: LIBC.sethostname(b"x", 1) == 0,
    "personality": lambda: call(135, 92, 0x0040000),
    "settimeofday": lambda: call(164, 170, BUFFER, None),
    "setuid 0": lambda: done(os.setuid, 0),
    "setgid 0": lambda: done(os.setgid, 0),
    "setgroups": lambda: done(os.setgroups, [0]),
    "nice": lambda: done(os.nice, -5),
    "more processes": lambda: done(resource.setrlimit, resource.RLIMIT_NPROC, (9999, 9999)),
    "more descriptors": lambda: done(resource.setrlimit, resource.RLIMIT_NOFILE, (9999, 9999)),
    "device": lambda: done(os.mknod, "/tmp/disk", 0o60666, os.makedev(8, 0)),
    "memory of the host": lambda: opened("/dev/mem"),
    "virtual machines": lambda: opened("/dev/kvm"),
    "kernel memory": lambda: opened("/proc/kcore", os.O_RDONLY),
    "core pattern": lambda: opened("/proc/sys/kernel/core_pattern"),
    "sysrq": lambda: opened("/proc/sysrq-trigger", os.O_WRONLY),
    "release agent": lambda: opened("/sys/fs/cgroup/release_agent"),
    "x32 calls": lambda: in_child(x32),
    "alg sockets": lambda: done(socket.socket, 38, socket.SOCK_SEQPACKET),
}


def agent_main(problem):
    worked = [name for name, attempt in ATTEMPTS.items() if attempt()]
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    wanted = ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    with open("/proc/1/limits") as file:
        init = {line[:26].strip(): line[26:47].strip() for line in file}
    memory = opened("/proc/1/mem")
    return [
        {
            "init": init,
            "memory": memory,
            "worked": worked,
            "status": {name: status.get(name, "") for name in wanted},
        }
    ]
