"""`make bench`: run every benchmark, print the table, rewrite docs/benchmarks.md and .json.

Usage: python -m bench [--quick] [--only NAME ...] [--no-write]
With --only the rows of the other modules stay as they were measured before.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODULES = ("search", "scoring", "judge", "broker", "sandbox", "corpus", "leak", "train", "race")
HEAD = """# Benchmarks

Written by `make bench`; each row and its peer were measured in the same run on the same machine.
A target is the project's own; "missed" is said plainly.

Machine: {machine}. Date: {date}. palio {version}, Python {python}.

| what | palio | peer | unit | target | |
|---|---|---|---|---|---|
"""


def machine() -> str:
    """Processor, cores and memory, in words."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{model}, {os.cpu_count()} cores, {pages:.0f} GiB"


def met(row: dict[str, Any]) -> str:
    """Whether the row's target ("<= 2", ">= 10000") holds; "" without a target."""
    target = str(row.get("target") or "")
    if not target:
        return ""
    sign, number = target.replace(",", "").split()[:2]
    value = float(row["palio"])
    holds = value <= float(number) if sign == "<=" else value >= float(number)
    return "met" if holds else "missed"


def figure(value: Any) -> str:
    """A number with three significant digits, thousands whole."""
    if value is None:
        return "-"
    number = float(value)
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def line(row: dict[str, Any]) -> str:
    """One Markdown row."""
    peer = f"{figure(row.get('peer'))} ({row['peer_name']})" if row.get("peer_name") else "-"
    cells = [
        row["name"],
        figure(row["palio"]),
        peer,
        row["unit"],
        row.get("target") or "",
        met(row),
    ]
    return "| " + " | ".join(cells) + " |\n"


GPU_HEAD = """
## On a GPU

Written by `python -m bench.gpu --out docs/benchmarks-gpu.json` on a machine that has one: stages at
the shapes of Qwen3 0.6B and 4B with random weights: what a step costs, nothing of quality.
"Updates" are those that were timed, after one that warms up. A recipe that trains all weights in
one process keeps them in float32, in twice the bytes of the rows "sft full" that say bfloat16.

"""


def page(facts: dict[str, str], rows: list[dict[str, Any]], gpu: Path) -> str:
    """The whole page; the table of a GPU stays as it was measured there."""
    text = HEAD.format(**facts) + "".join(map(line, rows))
    if gpu.is_file():
        from bench.gpu import table

        text += GPU_HEAD + table(json.loads(gpu.read_bytes())).strip() + "\n"
    return text


def measure(only: list[str], quick: bool) -> list[dict[str, Any]]:
    """Run the chosen benchmark modules in order."""
    rows: list[dict[str, Any]] = []
    for name in MODULES:
        if only and name not in only:
            continue
        for row in importlib.import_module(f"bench.{name}").run(quick):
            rows.append({"module": name, **row})
            print(line(row), end="", flush=True)
    return rows


def merged(before: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of another day with those of the modules that were measured now in their place."""
    now = {row["module"] for row in rows}
    kept = [row for row in before if row.get("module") not in now]
    return sorted([*kept, *rows], key=lambda row: MODULES.index(row["module"]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a smoke run")
    parser.add_argument("--only", nargs="*", default=[], choices=MODULES)
    parser.add_argument("--no-write", action="store_true", help="print, keep the docs as they are")
    options = parser.parse_args()
    rows = measure(options.only, options.quick)
    if options.no_write or options.quick:
        return
    from palio import __version__

    facts = {
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "version": __version__,
        "python": platform.python_version(),
    }
    docs = ROOT / "docs"
    if options.only:
        rows = merged(json.loads((docs / "benchmarks.json").read_bytes())["rows"], rows)
    (docs / "benchmarks.md").write_text(page(facts, rows, docs / "benchmarks-gpu.json"))
    (docs / "benchmarks.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
