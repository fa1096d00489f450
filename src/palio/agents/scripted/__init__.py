"""Scripted models: programs that see only the conversation and answer like a model server."""

from palio.agents.scripted.upstream import MODELS, ScriptedUpstream, check_models

__all__ = ["MODELS", "ScriptedUpstream", "check_models"]
