"""JSON Schema (2020-12) of every record that palio writes, from the types themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from palio.records.base import SCHEMA_VERSION
from palio.records.faults import InputError
from palio.records.problem import Problem, Suite
from palio.records.product import Product
from palio.records.provenance import Provenance, Reject
from palio.records.trajectory import Trajectory
from palio.records.verdict import OutcomeVerdict, ReasoningVerdict, RichnessVerdict

PUBLISHED: dict[str, type] = {
    "product": Product,
    "problem": Problem,
    "suite": Suite,
    "trajectory": Trajectory,
    "outcome-verdict": OutcomeVerdict,
    "reasoning-verdict": ReasoningVerdict,
    "richness-verdict": RichnessVerdict,
    "provenance": Provenance,
    "reject": Reject,
}
"""Name -> record type of everything that stands in a file of palio's."""


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one published record.

    Raises:
        InputError: no record has that name.
    """
    if name not in PUBLISHED:
        raise InputError(f"no record is called {name!r}", remedy=f"one of {', '.join(PUBLISHED)}")
    schema = msgspec.json.schema(PUBLISHED[name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:palio:{name}:{SCHEMA_VERSION}",
        **schema,
    }
