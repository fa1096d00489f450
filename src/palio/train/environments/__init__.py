"""Palio's shop inside verl and verifiers: the same prompts, tools and scorer as everywhere."""
