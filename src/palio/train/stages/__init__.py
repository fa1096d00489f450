"""Every kind of stage has one line here; its module is imported only when a recipe names it."""

from __future__ import annotations

from importlib import import_module

from palio.train.context import Kind

KINDS: dict[str, str] = {
    "base": "palio.train.stages.base:BASE",
    "sft": "palio.train.stages.sft:SFT",
    "rejection": "palio.train.stages.rejection:REJECTION",
    "teacher": "palio.train.stages.teacher:TEACHER",
    "distill": "palio.train.rl.distill:DISTILL",
    "kto": "palio.train.preference.kto:KTO",
    "grpo": "palio.train.rl.grpo:GRPO",
}


def kind_named(name: str) -> Kind:
    """The kind called `name`, a key of `KINDS`."""
    module, _, attribute = KINDS[name].partition(":")
    kind = getattr(import_module(module), attribute)
    assert isinstance(kind, Kind), f"{KINDS[name]} is no Kind"
    return kind
