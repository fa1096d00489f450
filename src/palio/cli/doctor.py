"""palio doctor: which drivers work here, what each of them really encloses, what to install."""

from __future__ import annotations

import typer


def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Try from inside a sandbox what it must not allow; exit 1 when no driver can be ranked."""
    from rich.console import Console
    from rich.table import Table

    from palio.records import to_json
    from palio.sandbox.doctor import diagnose, remedies
    from palio.sandbox.spec import STRANGERS

    with Console(stderr=True).status("examining") as status:
        found = diagnose(lambda name: status.update(f"examining {name}"))
    if as_json:
        typer.echo(to_json(found).decode())
        raise typer.Exit(0 if found.ranked else 1)
    table = Table("driver", *STRANGERS, "start", title=f"{found.machine}, as {found.user}")
    for each in found.drivers:
        held = {finding.capability: finding.held for finding in each.findings}
        marks = [("yes" if held[name] else "[red]no[/red]") if held else "-" for name in STRANGERS]
        start = f"{1000 * each.seconds:.0f} ms" if each.seconds is not None else "-"
        table.add_row(each.driver, *marks, start)
    console = Console(width=max(Console().width, 120))
    console.print(table)
    for name, version in found.programs.items():
        console.print(f"{name:8} {version or 'not installed'}", highlight=False)
    for told in remedies(found):
        console.print(told, highlight=False)
    if not found.ranked:
        console.print("no driver here is fit for code of strangers", style="red")
        raise typer.Exit(1)
    console.print(f"fit for code of strangers: {', '.join(found.ranked)}", highlight=False)
