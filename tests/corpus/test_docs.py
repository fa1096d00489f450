"""Every reason that a build can count is explained in docs/corpus.md."""

from __future__ import annotations

import re
from pathlib import Path

import palio.corpus
from palio.corpus.claims import departure

DOCS = Path(__file__).parents[2] / "docs" / "corpus.md"
SOURCE = Path(palio.corpus.__file__).parent
OWN = ("gates.py", "screening.py", "selection.py", "separation.py", "neighbours.py")
FURTHER = ("salvage/share.py",)


def reasons() -> set[str]:
    """Codes of every `Drop` that the build's own modules make."""
    found: set[str] = set()
    for name in (*OWN, *FURTHER):
        text = (SOURCE / name).read_text(encoding="utf-8")
        for given in re.findall(r"reason=(.+?)(?:,\s|,?\n|\))", text):
            found.update(re.findall(r'"([a-z_]+)"', given))
        found.update(re.findall(r'^[A-Z_]+ = "([a-z_]+_[a-z_]+)"', text, re.MULTILINE))
    return found


def test_every_reason_is_in_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    named = reasons()
    assert {"over_budget", "duplicate", "recommend_missing", "taken_down"} <= named
    assert [reason for reason in sorted(named) if f"`{reason}`" not in text] == []
    for mark in ("claims another result of", "a call that never happened"):
        found = departure((mark,))
        assert found is not None
        assert f"`{found[0]}`" in text
