"""Versioned problem suites, leak clusters and the pools that a problem may live in."""
