"""A small model learns to shop from judged trajectories, and is served like any other model."""
