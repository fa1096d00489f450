"""The agent contract, the bundled agents and the scripted models they talk to."""
