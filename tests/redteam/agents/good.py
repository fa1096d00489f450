"""The neighbour: behaves well, uses some of everything, and says what it found when it came."""

import os

from src.agent.agent_interface import create_dialogue_step, execute_tool_call
from src.agent.proxy_client import ProxyClient


def agent_main(problem):
    found = {folder: sorted(os.listdir(folder)) for folder in ("/tmp", "/dev/shm")}
    proxy = ProxyClient()
    ask = {"messages": [{"role": "user", "content": problem["query"]}]}
    said = proxy.post("/inference/chat/completions", ask)["choices"][0]["message"]
    asked = said["tool_calls"][0]
    calls = [execute_tool_call("find_product", {"q": "red mug"}, asked["id"])]
    for _ in range(10):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    with open("/tmp/own", "wb") as file:
        file.write(bytes(2_000_000))
    calls.append(execute_tool_call("view_product_information", {"product_ids": "1"}))
    calls.append(execute_tool_call("recommend_product", {"product_ids": "1"}))
    calls.append(execute_tool_call("terminate", {"status": "success"}))
    calls[0]["tool_call_id"] = "c1"  # what the host gave holds a proof, another one in each run
    step = create_dialogue_step("1 is red", calls, "", problem["query"], 1)
    return [step, {"found": found, "held": len(held), "wrote": os.stat("/tmp/own").st_size}]
