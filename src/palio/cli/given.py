"""Options that were named and that nothing would read are refused, not passed over."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def refuse_idle(context: typer.Context, options: Sequence[str], where: str, remedy: str) -> None:
    """Refuse those of the options that stand on the command line; one from a variable may stay.

    Args:
        context: of the command.
        options: names as they are typed, such as --workers.
        where: why they do nothing, after "does nothing".
        remedy: what gives them something to do.

    Raises:
        ConfigError: names every one that is there.
    """
    from palio.records import ConfigError

    idle = [option for option in options if option in _typed(context)]
    if idle:
        one = len(idle) == 1
        raise ConfigError(
            f"{' and '.join(idle)} {'does' if one else 'do'} nothing {where}",
            remedy=f"{remedy}, or leave {'it' if one else 'them'} out",
        )


def _typed(context: typer.Context) -> set[str]:
    """Every name of every option that is on the command line."""
    found = set()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            found.update(parameter.opts)
    return found
