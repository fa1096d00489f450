"""Benchmarks: every number beside a named peer, measured in the same run on the same machine."""
