"""Sends the broker bodies that are bombs, and then an honest one."""

import http.client
import os
from urllib.parse import urlsplit

BODIES = [
    b"[" * 500_000,
    b'{"q":' * 200_000,
    b'{"q":NaN,"page":Infinity,"price":1e999}',
    b'{"q":"\\ud800\\u0000"}',
    b'{"product_ids":"\\ud800\\u0000"}',
    b'{"product_ids":["2",NaN,1e999]}',
    b'{"product_ids":["2","\\udfff"]}',
    b'{"q":1' + b"0" * 100_000 + b"}",
    b'{"q":"\xff\xfe"}',
    b"{" + b",".join(b'"%d":0' % n for n in range(100_000)) + b"}",
    b'{"messages":[{"role":"user","content":"\\ud800\\u0000"}],"temperature":NaN}',
    b'{"messages":[{"role":"user","content":' + b"[" * 900 + b"]" * 900 + b"}]}",
    b'{"messages":[{"role":"user","content":"a"}],"tools":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"messages":[{"role":"user","content":"a"}],"seed":1' + b"0" * 4_000 + b"}",
    b'{"messages":[{"role":"user","content":"a"}],"stop":["\\ud800\\u0000"],"user":"\\udfff",'
    b'"tools":[{"type":"function","function":{"name":"\\ud800\\u0000"}}],"top_p":1e999,"seed":NaN}',
    b'{"messages":[{"role":"tool","tool_call_id":"\\ud800\\u0000","content":[{"text":"\\ud800"}],'
    b'"name":"\\udfff"},{"role":"assistant","tool_calls":[{"id":"\\udfff","function":{"name":'
    b'"\\ud800\\u0000","arguments":{"\\ud800":NaN,"\\u0000":1e999}}}]}],"\\ud800":"\\u0000"}',
    b'{"messages":' + b"[{}," * 10_000 + b"1" + b"]" * 10_000 + b"}",
]
PATHS = ["search/find_product", "search/recommend_product", "inference/chat/completions"]


def sent(base, path, body):
    client = http.client.HTTPConnection(base.hostname, base.port, timeout=20)
    try:
        client.request("POST", f"{base.path}/{path}", body, {"X-Tool-Call-Id": "\xff" * 400})
        reply = client.getresponse()
        reply.read()
        return reply.status
    finally:
        client.close()


def agent_main(problem):
    base = urlsplit(os.environ["SANDBOX_PROXY_URL"])
    seen = [sent(base, path, body) for body in BODIES for path in PATHS]
    return [{"statuses": seen, "last": sent(base, "search/find_product", b'{"q":"mug"}')}]
