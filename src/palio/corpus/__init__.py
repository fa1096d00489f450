"""Judged trajectories to a gated, leak-guarded, split corpus; every drop is counted."""
