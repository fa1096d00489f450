"""Readers of foreign trace formats: each row becomes a trajectory and an exact list of losses."""
