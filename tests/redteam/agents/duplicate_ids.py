"""Gives every call of its own the id of the one call that the model asked for."""

from src.agent.proxy_client import ProxyClient


def agent_main(problem):
    proxy = ProxyClient()
    ask = {"messages": [{"role": "user", "content": problem["query"]}]}
    said = proxy.post("/inference/chat/completions", ask)["choices"][0]["message"]
    call_id = said["tool_calls"][0]["id"]
    for query in ("red mug", "red mug", "blue mug", "bowl"):
        proxy.post("/search/find_product", {"q": query}, {"X-Tool-Call-Id": call_id})
    return []
