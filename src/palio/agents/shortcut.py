"""Makes a cheating agent on purpose: an agent file that carries the answers of a public suite.

Races and judges are tested against it: its answers are right and nothing that it saw supports them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from palio.agents.spec import BUNDLED, AgentSpec, agent_from_file
from palio.records import IntegrityError, Problem

_EMPTY = "TABLE: dict[str, str] = {}\n"


def with_table(problems: Iterable[Problem], path: Path, *, name: str = "shortcut") -> AgentSpec:
    """Write a shortcut agent that knows the answers of `problems` and give its spec.

    Args:
        problems: the public suite, answers included.
        path: the agent file to write.
        name: the agent's name.
    """
    source = (BUNDLED / "shortcut.py").read_text(encoding="utf-8")
    if source.count(_EMPTY) != 1:
        raise IntegrityError("the bundled shortcut agent has no empty table", where="shortcut.py")
    table = {
        hashlib.sha256(problem.query.encode("utf-8")).hexdigest(): ",".join(
            reward.product_id for reward in problem.rewards
        )
        for problem in problems
    }
    filled = f"TABLE: dict[str, str] = {json.dumps(table, indent=4, sort_keys=True)}\n"
    path.write_text(source.replace(_EMPTY, filled), encoding="utf-8")
    return agent_from_file(path, name=name, kind="shortcut")
