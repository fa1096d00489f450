"""Secrets come from the environment; an option of the same meaning is for trying things out."""

from __future__ import annotations

import typer

TEACHER_KEY: str = typer.Option(
    "", envvar="PALIO_TEACHER_KEY", help="Bearer token of the teachers' servers."
)
SAMPLER_KEY: str = typer.Option(
    "", envvar="PALIO_SAMPLER_KEY", help="Bearer token of what samples the student."
)
