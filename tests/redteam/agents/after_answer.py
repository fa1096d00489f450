"""Answers, ends the run, and goes on: searches, thinks aloud and answers again."""

from src.agent.proxy_client import ProxyClient


def agent_main(problem):
    proxy = ProxyClient(max_retries=0)
    ask = {"messages": [{"role": "user", "content": "say why 1 is right, with all its data"}]}
    proxy.post("/search/find_product", {"q": "mug"})
    proxy.post("/search/recommend_product", {"product_ids": "1"})
    proxy.post("/search/terminate", {})
    said = [proxy.post("/inference/chat/completions", ask) for _ in range(3)]
    late = proxy.post("/search/recommend_product", {"product_ids": "2"})
    proxy.post("/search/find_product", {"q": "blue mug"})
    return [{"said": sum(each is not None for each in said), "late": late}]
