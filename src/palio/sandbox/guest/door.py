"""The guest's half of the one door: the host gets its listening socket before the agent runs.

Everything goes over one control socket, inherited or found at a path: up a greeting (with the
listening socket where the kernel can pass it), down the task, up the report.
"""

from __future__ import annotations

import _socket
import os
import sys

TYPE_CHECKING = False  # importing typing costs 3 ms of every start
if TYPE_CHECKING:
    from typing import Any

PORT = 8000
"""Port on the sandbox's own loopback; the same in every run, so nothing can be told from it."""
GREETING = b"P"
_COPY = 1 << 16


def become_init(seconds: float) -> None:
    """In a sandbox that starts us as process 1: be its init, and go on in a child.

    Process 1 has to reap what others leave, and no signal from inside ends it. With `seconds` it
    ends itself by then, and every process with it, should the host have died. Its memory is closed
    to the agent, which could have it do otherwise.
    """
    if os.getpid() != 1:
        return
    _close_memory(True)
    child = os.fork()
    if not child:
        _close_memory(False)
        return
    # The signal module imports enum: 5 ms of a core that the agent could use.
    import _signal  # type: ignore[import-not-found]

    _signal.signal(_signal.SIGALRM, lambda *_: os._exit(124))
    _signal.setitimer(_signal.ITIMER_REAL, seconds)
    while True:
        pid, status = os.wait()
        if pid == child:
            signalled = os.WIFSIGNALED(status)
            os._exit(128 + os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status))


def _close_memory(closed: bool) -> None:
    """Whether processes of the same user may look into this one (PR_SET_DUMPABLE)."""
    try:
        import _ctypes  # the ctypes package costs 10 ms of every start

        itself: Any = None
        prctl = _ctypes.dlsym(_ctypes.dlopen(itself, 0), "prctl")
        _ctypes.call_function(prctl, (4, 0 if closed else 1, 0, 0, 0))
    except (ImportError, OSError, AttributeError):
        pass  # a Python without it: process 1 still has no right and no limit that agents have not


def connect(where: str) -> Any:
    """The control socket: `where` is an inherited descriptor's number or a socket's path."""
    if where.isdigit():
        return _socket.socket(fileno=int(where))
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    control.connect(where)
    return control


def open_door(control: Any, how: str) -> None:
    """Greet the host and make the door: "pass" a listener, relay to a path, or "" for none."""
    passed = []
    listener = None
    if how:
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", PORT))
        listener.listen(1024)
    if listener is not None and how == "pass":
        number = listener.fileno().to_bytes(4, sys.byteorder)
        passed = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, number)]
    elif listener is not None:
        _fork_relay(listener, how, control)
    control.sendmsg([GREETING], passed)
    if listener is not None:
        listener.close()


def read_task(control: Any) -> bytes:
    """All that the host sends, up to its end of file."""
    parts = []
    while data := control.recv(_COPY):
        parts.append(data)
    return b"".join(parts)


def _fork_relay(listener: Any, path: str, control: Any) -> None:
    """A child process that carries bytes between the port and the host's socket at `path`.

    Only for kernels whose sockets cannot leave the sandbox (gVisor, containers in another machine).
    It has the agent's rights and no more: an agent that kills it only shuts its own door.
    """
    if os.fork():
        return
    control.close()
    import threading

    def carry(source: Any, sink: Any) -> None:
        try:
            while data := source.recv(_COPY):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:  # noqa: SIM105 - contextlib costs 2 ms of every start
                end.shutdown(_socket.SHUT_RDWR)
            except OSError:
                pass

    def serve(inner: Any) -> None:
        outer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            outer.connect(path)
        except OSError:
            inner.close()
            return
        back = threading.Thread(target=carry, args=(outer, inner), daemon=True)
        back.start()
        carry(inner, outer)
        back.join()
        inner.close()
        outer.close()

    while True:
        fd, _ = listener._accept()
        inner = _socket.socket(fileno=fd)
        threading.Thread(target=serve, args=(inner,), daemon=True).start()
