"""Write a registry entry: the hashes of a public benchmark's keys, without its texts and ids.

The entry that ships was written from the 900 public test tasks of ShoppingBench:

    python scripts/registry_entry.py shoppingbench-public 2025.1 \
        --source "ShoppingBench test tasks (Wang et al. 2025, arXiv 2508.04266)" \
        --licence Apache-2.0 --out src/palio/suites/registry/shoppingbench-public.json \
        tasks_shoppingbench_{product,shop,voucher,web_simpleqa}.jsonl

Any file that `palio leak` reads will do. The same files give the same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from palio.records import to_json
from palio.suites.files import read_any_suite
from palio.suites.registry import entry_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("version")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--source", required=True, help="where the tasks come from, one line")
    parser.add_argument("--licence", required=True, help="SPDX name of the tasks' licence")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    problems = []
    for path in options.files:
        suite, rejects = read_any_suite(path)
        if rejects:
            raise SystemExit(f"{path}:{rejects[0].line}: {rejects[0].detail}")
        problems += suite.problems
    entry = entry_of(
        problems,
        name=options.name,
        version=options.version,
        source=options.source,
        licence=options.licence,
    )
    options.out.write_bytes(msgspec.json.format(to_json(entry), indent=0) + b"\n")
    counts = ", ".join(f"{len(hashes)} {rule}" for rule, hashes in entry.keys.items())
    print(f"{entry.tasks} tasks, {counts} hashes -> {options.out}")


if __name__ == "__main__":
    main()
