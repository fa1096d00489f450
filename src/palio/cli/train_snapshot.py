"""palio train start, snapshot and template: checkpoints while they train, and for a vLLM server."""

from __future__ import annotations

from pathlib import Path

import typer


def start(
    recipe: str = typer.Argument(help="A recipe with a pretrained model, e.g. smollm2."),
    out: Path = typer.Option(..., help="Checkpoint folder to write."),
) -> None:
    """Write the untrained model of a recipe as a checkpoint, to compare the trained one with."""
    from palio.train.backends.snapshots import write_start
    from palio.train.reading import load_recipe

    typer.echo(f"wrote {write_start(load_recipe(recipe), out)}")


def snapshot(
    stage: Path = typer.Argument(help="Folder of an sft, rejection or teacher stage in training."),
    out: Path = typer.Option(..., help="Checkpoint folder to write."),
) -> None:
    """Write a pretrained model's newest state in training as a checkpoint; the stage goes on."""
    from palio.train.backends.snapshots import write_state

    typer.echo(f"wrote {write_state(stage, out)}")


def template(
    checkpoint: Path = typer.Argument(help="Checkpoint or run folder, or `bundled`."),
    out: Path | None = typer.Option(None, help="File to write; left out, it is printed."),
) -> None:
    """Write the chat template with which vLLM reads turns again as the checkpoint wrote them.

    For `vllm serve FOLDER --enable-auto-tool-choice --tool-call-parser hermes --chat-template
    FILE`.
    """
    from palio.train.checkpoint import checkpoint_folder
    from palio.train.vllm import vllm_template
    from palio.world.artefacts import replacing

    text = vllm_template(checkpoint_folder(checkpoint))
    if out is None:
        typer.echo(text, nl=False)
        return
    with replacing(out) as file:
        file.write(text.encode())
    typer.echo(f"wrote {out}")
