"""Weights to a chain, behind our own interface; has its place here."""
