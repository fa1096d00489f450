"""The palio command: one file a noun, the only place that reads environment and terminal."""
