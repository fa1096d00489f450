"""Ten thousand tool calls at once, over as many connections as it gets."""

import os
import socket
import threading
from urllib.parse import urlsplit

CALL = b"GET %s/search/find_product?q=mug HTTP/1.1\r\nHost: x\r\n\r\n"


def agent_main(problem):
    base = urlsplit(os.environ["SANDBOX_PROXY_URL"])
    answered = []

    def many():
        with socket.create_connection((base.hostname, base.port), timeout=30) as made:
            made.sendall(CALL % base.path.encode() * 200)
            got = 0
            while got < 200 and (data := made.recv(1 << 16)):
                got += data.count(b"HTTP/1.1 200")
            answered.append(got)

    threads = [threading.Thread(target=many, daemon=True) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [{"answered": sum(answered)}]
