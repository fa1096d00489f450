"""palio train start and snapshot: checkpoints of pretrained models before and while they train."""

from __future__ import annotations

from pathlib import Path

import typer


def start(
    recipe: str = typer.Argument(help="A recipe with a pretrained model, e.g. smollm2."),
    out: Path = typer.Option(..., help="Checkpoint folder to write."),
) -> None:
    """Write the untrained model of a recipe as a checkpoint, to compare the trained one with."""
    from palio.train.backends.snapshots import write_start
    from palio.train.recipe import load_recipe

    typer.echo(f"wrote {write_start(load_recipe(recipe), out)}")


def snapshot(
    stage: Path = typer.Argument(help="Folder of an sft, rejection or teacher stage in training."),
    out: Path = typer.Option(..., help="Checkpoint folder to write."),
) -> None:
    """Write a pretrained model's newest state in training as a checkpoint; the stage goes on."""
    from palio.train.backends.snapshots import write_state

    typer.echo(f"wrote {write_state(stage, out)}")
