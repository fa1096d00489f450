"""palio model: serve scripted models over the API that every agent framework speaks."""

from __future__ import annotations

import json
from contextlib import suppress

import typer

app = typer.Typer(help="Model servers: scripted models behind an OpenAI API.", no_args_is_help=True)


@app.command()
def serve(
    host: str = typer.Option("127.0.0.1", help="Address to bind."),
    port: int = typer.Option(8080, min=0, max=65535, help="Port; 0 picks a free one."),
    seed: int = typer.Option(0, help="Seed of the models' random choices."),
    api_key: str = typer.Option("", envvar="PALIO_MODEL_KEY", help="Require this bearer token."),
) -> None:
    """Serve the scripted models; stop with Ctrl-C."""
    from palio.agents.scripted import ScriptedUpstream
    from palio.agents.server import ModelServer

    upstream = ScriptedUpstream(seed)
    with ModelServer(upstream, host=host, port=port, api_key=api_key) as server:
        typer.echo(f"serving {', '.join(upstream.models)} at {server.url}")
        with suppress(KeyboardInterrupt):  # the way to stop it
            server.wait()


@app.command("list")
def list_models(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the scripted models. They are programs, not language models."""
    from palio.agents.registry import TABLE
    from palio.agents.scripted import MODELS

    about = {row.model: row.summary for row in TABLE}
    rows = [{"model": name, "summary": about.get(name, "")} for name in MODELS]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "what it does")
    for row in rows:
        table.add_row(row["model"], row["summary"])
    Console().print(table)
