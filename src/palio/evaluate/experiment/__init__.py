"""Experiments: what is asked is written down first, arms differ in one thing, every run is kept."""
