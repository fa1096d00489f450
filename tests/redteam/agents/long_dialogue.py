"""Returns a dialogue of fifty megabytes."""


def agent_main(problem):
    step = {"completion": {"message": {"think": "x" * 1_000_000}}, "extra_info": {}}
    return [step] * 50
