"""Published schemas accept what palio writes, refuse the rest, and change only knowingly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from palio.records import (
    SCHEMA_VERSION,
    InputError,
    Product,
    Provenance,
    Suite,
    digest,
    to_json,
)
from palio.records.schema import PUBLISHED, json_schema
from tests.records.test_records import problem, trajectory

GOLDEN = Path(__file__).parent / "golden" / "schema_digests.json"
SAMPLES = {
    "product": Product(product_id="1", shop_id="2", title="Mug", price=3.0),
    "problem": problem(),
    "suite": Suite(suite_id="s", version="1", problems=(problem(),)),
    "trajectory": trajectory(),
    "provenance": Provenance(kind="corpus", tool_version="1"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_schema_accepts_the_record(name: str) -> None:
    checker = jsonschema.Draft202012Validator(json_schema(name))
    assert list(checker.iter_errors(json.loads(to_json(SAMPLES[name])))) == []


def test_schema_refuses_a_wrong_type() -> None:
    wrong = json.loads(to_json(SAMPLES["product"])) | {"price": "3"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, json_schema("product"))


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match="trajectory"):
        json_schema("nothing")


def shape(schema: Any) -> Any:
    """A schema without its prose: a better docstring is no new shape."""
    if isinstance(schema, dict):
        return {key: shape(value) for key, value in schema.items() if key != "description"}
    return [shape(item) for item in schema] if isinstance(schema, list) else schema


def test_shapes_change_only_with_the_schema_version() -> None:
    """A changed shape needs a new SCHEMA_VERSION: readers of old files must be able to tell."""
    known = json.loads(GOLDEN.read_text(encoding="utf-8"))
    now = {name: digest(shape(json_schema(name))) for name in PUBLISHED}
    assert known.get(SCHEMA_VERSION) == now, f"golden for {SCHEMA_VERSION} should be {now}"
