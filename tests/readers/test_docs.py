"""docs/formats.md names every format, loss code and reject reason that the code has."""

from __future__ import annotations

import re
from pathlib import Path

from palio.corpus.readers.detect import NAMES
from palio.corpus.writers.export import TARGETS

ROOT = Path(__file__).parents[2]
CODE = re.compile(
    r'(?:losses\.add|Loss|UnreadableError|_reject)\([^"()]*?(?:code=)?"([a-z_]+)"', re.DOTALL
)


def test_every_code_is_documented() -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    used = {
        code
        for path in (ROOT / "src/palio/corpus/readers").glob("*.py")
        for code in CODE.findall(path.read_text(encoding="utf-8"))
    }
    assert len(used) > 50
    missing = sorted(word for word in used | set(NAMES) | set(TARGETS) if f"`{word}`" not in text)
    assert not missing
