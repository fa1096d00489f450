"""The tables of docs/red-team.md, from the table of attacks: ``python -m tests.redteam.page``."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.redteam.attacks import ATTACKS, ELSEWHERE, LATER, Attack

DOCS = Path(__file__).parents[2] / "docs" / "red-team.md"
AGENTS = Path(__file__).parent / "agents"
MARK = "<!-- from tests/redteam/attacks.py; python -m tests.redteam.page -->"
UNSAFE = {"held": "held", "escapes": "**escapes**", "never": "not run"}


def tables() -> str:
    """Three Markdown tables."""
    lines = ["| attack | what it tries | what must hold | beside a neighbour | without enclosure |"]
    lines.append("|---|---|---|---|---|")
    lines += [_line(attack) for attack in ATTACKS]
    lines += ["", "| shown by another test | what must hold | test |", "|---|---|---|"]
    lines += [f"| {each.name} | {each.oracle} | `{each.test}` |" for each in ELSEWHERE]
    lines += ["", "| later | why |", "|---|---|"]
    lines += [f"| {each.name} | {each.why} |" for each in LATER]
    return "\n".join(lines) + "\n"


def _line(attack: Attack) -> str:
    tries = _first_line((AGENTS / f"{attack.agent}.py").read_text(encoding="utf-8"))
    holds = (attack.oracle.__doc__ or "").strip().splitlines()[0]
    beside = "yes" if attack.beside else ""
    return f"| {attack.name} | {tries} | {holds} | {beside} | {UNSAFE[attack.unsafe]} |"


def _first_line(source: str) -> str:
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def main() -> None:
    before, mark, rest = DOCS.read_text(encoding="utf-8").partition(MARK)
    _, _, after = rest.partition(MARK)
    DOCS.write_text(f"{before}{mark}\n\n{tables()}\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
