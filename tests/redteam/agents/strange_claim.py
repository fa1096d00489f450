"""Returns numbers that are none, half characters and NUL in a dialogue of the right form."""


def agent_main(problem):
    parameters = {"product_ids": "1\x00\ud800", "nan": float("nan"), "inf": float("inf")}
    nested = 1
    for _ in range(300):
        nested = [nested]
    answer = {"name": "recommend_product", "parameters": parameters, "result": nested}
    other = {"name": "find_product\udfff", "parameters": {"q": float("-inf")}, "result": 10**300}
    message = {"think": "\ud800\x00", "tool_call": [answer, other]}
    return [{"completion": {"message": message}, "extra_info": {"step": float("nan")}}]
