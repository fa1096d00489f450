"""palio serve: a checkpoint behind the API that every agent framework speaks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import typer


def serve(
    checkpoint: Path = typer.Argument(help="Checkpoint, stage or run folder; or: bundled."),
    host: str = typer.Option("127.0.0.1", help="Address to bind."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port; 0 picks a free one."),
    slots: int = typer.Option(
        64,
        min=1,
        help="Conversations stepped together, of a pretrained model at most 8; more wait.",
    ),
    threads: int = typer.Option(1, min=1, help="Threads of the arithmetic."),
    api_key: str = typer.Option("", envvar="PALIO_MODEL_KEY", help="Require this bearer token."),
) -> None:
    """Serve a trained checkpoint over an OpenAI-compatible API; stop with Ctrl-C."""
    from palio.agents.server import ModelServer
    from palio.train.serving import open_checkpoint

    with (
        open_checkpoint(checkpoint, slots=slots, threads=threads) as engine,
        ModelServer(engine, host=host, port=port, api_key=api_key) as server,
    ):
        typer.echo(f"serving {', '.join(engine.models)} at {server.url}")
        with suppress(KeyboardInterrupt):  # the way to stop it
            server.wait()
