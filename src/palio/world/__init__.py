"""The shopping world: catalogue, search, tools, vouchers and their synthesis; no agents."""
