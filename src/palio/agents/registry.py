"""The agents that ship with palio, in one table; they differ in kind so that judging has work."""

from __future__ import annotations

from difflib import get_close_matches

from palio.agents.spec import BUNDLED, AgentSpec, agent_from_file
from palio.records import AgentKind, AgentRef, InputError, Record


class Bundled(Record, frozen=True):
    """One row of the table: a bundled agent and what it is there to show."""

    name: str
    file: str
    kind: AgentKind
    model: str
    summary: str


TABLE = (
    Bundled(
        name="careful",
        file="agentic.py",
        kind="agentic",
        model="scripted-careful",
        summary="checks every constraint against what it sees and weighs candidates",
    ),
    Bundled(
        name="terse",
        file="agentic.py",
        kind="agentic",
        model="scripted-terse",
        summary="checks every constraint, never weighs one candidate against another",
    ),
    Bundled(
        name="sloppy",
        file="agentic.py",
        kind="agentic",
        model="scripted-sloppy",
        summary="drops constraints at random and looks at results without naming a datum",
    ),
    Bundled(
        name="hasty",
        file="agentic.py",
        kind="agentic",
        model="scripted-hasty",
        summary="recommends the first hit without looking",
    ),
    Bundled(
        name="narrator",
        file="subtask_narrator.py",
        kind="subtask",
        model="scripted-narrator",
        summary="a fixed search loop makes every call, the model only tells the story",
    ),
    Bundled(
        name="classifier",
        file="subtask_classifier.py",
        kind="subtask",
        model="scripted-classifier",
        summary="a fixed search loop makes every call, the model only says yes or no",
    ),
    Bundled(
        name="shortcut",
        file="shortcut.py",
        kind="shortcut",
        model="",
        summary="answers from a table of query hashes, else the first hit; never looks",
    ),
    Bundled(
        name="crash", file="crash.py", kind="broken", model="", summary="raises after one search"
    ),
    Bundled(name="spin", file="spin.py", kind="broken", model="", summary="never ends"),
    Bundled(
        name="bad-return",
        file="bad_return.py",
        kind="broken",
        model="",
        summary="returns something that is not a list of steps",
    ),
)

ORACLE = AgentSpec(
    ref=AgentRef(name="oracle", kind="oracle", digest="host-side"), path="", eligible=False
)
"""The host-side policy that knows the answers; it checks the pipeline and is never ranked."""


def bundled_agents() -> tuple[AgentSpec, ...]:
    """Specs of all bundled agents in table order, then the oracle."""
    specs = [
        agent_from_file(BUNDLED / row.file, name=row.name, kind=row.kind, model=row.model)
        for row in TABLE
    ]
    return (*specs, ORACLE)


def find_agent(name: str) -> AgentSpec:
    """The bundled agent called `name`.

    Raises:
        InputError: there is none; names the closest ones.
    """
    for spec in bundled_agents():
        if spec.name == name:
            return spec
    names = [spec.name for spec in bundled_agents()]
    near = get_close_matches(name, names)
    guess = f"did you mean {', '.join(near)}? " if near else ""
    raise InputError(
        f"no bundled agent is called {name!r}",
        remedy=f"{guess}`palio agent list` shows all; a file's name ends in .py",
    )
