"""The agent contract, the bundled agents, scripted models and a policy agent for any endpoint."""
