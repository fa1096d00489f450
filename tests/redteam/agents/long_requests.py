"""Sends the broker a conversation of fifty megabytes, at once and in pieces."""

import http.client
import json
import os
from urllib.parse import urlsplit


def sent(size):
    base = urlsplit(os.environ["SANDBOX_PROXY_URL"])
    body = json.dumps({"messages": [{"role": "user", "content": os.urandom(4).hex() + "x" * size}]})
    client = http.client.HTTPConnection(base.hostname, base.port, timeout=60)
    try:
        client.request("POST", f"{base.path}/inference/chat/completions", body)
        reply = client.getresponse()
        reply.read()
        return reply.status
    except OSError:  # hung up on while it was still sending
        return 0
    finally:
        client.close()


def agent_main(problem):
    return [{"at_once": sent(50_000_000), "pieces": [sent(7_000_000) for _ in range(8)]}]
