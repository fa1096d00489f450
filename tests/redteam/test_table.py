"""The table holds the whole list, each line of it has what it names, and the docs say the same."""

from __future__ import annotations

import re
from pathlib import Path

from tests.redteam.attacks import ATTACKS, ELSEWHERE, LATER, WHOLE_LIST
from tests.redteam.conftest import AGENTS
from tests.redteam.page import MARK, tables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "red-team.md"
LINES = (*ATTACKS, *ELSEWHERE, *LATER)


def test_the_whole_list_is_there() -> None:
    """Every item of the list, also each of those that one line holds several of."""
    for line in LINES:
        assert line.listed in WHOLE_LIST, line.name
    left = WHOLE_LIST
    for line in sorted(LINES, key=lambda line: -len(line.listed)):
        left = left.replace(line.listed, "")
    assert set(re.findall(r"\w+", left)) <= {"and"}


def test_every_agent_is_used_and_none_is_missing() -> None:
    files = {path.stem for path in AGENTS.glob("*.py")}
    assert files == {attack.agent for attack in ATTACKS} | {"good"}


def test_names_are_unique_and_oracles_say_what_they_hold() -> None:
    names = [line.name for line in LINES]
    assert len(set(names)) == len(names)
    for attack in ATTACKS:
        assert attack.oracle.__doc__, attack.name
        assert (AGENTS / f"{attack.agent}.py").read_text().startswith('"""')


def test_tests_elsewhere_exist() -> None:
    for line in ELSEWHERE:
        path, _, name = line.test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in text if name else "def test_" in text, line.test


def test_only_what_needs_the_arena_is_put_off() -> None:
    assert {line.name for line in LATER} == {"two validators with one lease", "late results"}
    assert all("arena service" in line.why for line in LATER)


def test_the_docs_show_this_table() -> None:
    _, begin, rest = DOCS.read_text(encoding="utf-8").partition(MARK)
    assert begin
    shown, end, _ = rest.partition(MARK)
    assert end
    assert shown.strip() == tables().strip(), "python -m tests.redteam.page writes it anew"
