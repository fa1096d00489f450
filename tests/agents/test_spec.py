from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.agents.harness import harness_settings
from palio.agents.registry import bundled_agents, find_agent
from palio.agents.spec import HARNESS, agent_from_file, policy_agent
from palio.cli.agent import app as agent_app
from palio.cli.model import app as model_app
from palio.records import InputError, bytes_digest
from palio.world.tools import SEVEN_TOOLS, tool_schemas
from palio.world.world import COMPACT, FULL


def test_specs_carry_the_digest_of_their_source():
    for spec in bundled_agents():
        if spec.path:
            assert spec.ref.digest == bytes_digest(Path(spec.path).read_bytes())
            assert spec.ref.model == spec.model


def test_agents_of_one_file_differ_by_name_and_model():
    refs = [spec.ref for spec in bundled_agents()]
    assert len({ref.name for ref in refs}) == len(refs)
    agentic = [ref for ref in refs if ref.kind == "agentic"]
    assert len({ref.digest for ref in agentic}) == 1
    assert len({ref.model for ref in agentic}) == len(agentic) == 4


def test_a_policy_is_the_harness_with_a_model_name():
    spec = policy_agent("student", "runs/x/checkpoint", sampling={"temperature": 0})
    assert spec.path == str(HARNESS)
    assert (spec.ref.kind, spec.model, spec.eligible) == ("policy", "runs/x/checkpoint", True)
    assert spec.sampling == {"temperature": 0}


def test_unknown_names_and_files_say_what_to_do():
    with pytest.raises(InputError, match="careful"):
        find_agent("carefull")
    with pytest.raises(InputError, match="agent new"):
        agent_from_file("no/such/file.py")


def test_the_compact_world_has_no_system_message():
    full, compact = harness_settings(FULL), harness_settings(COMPACT)
    assert compact.system == ""
    assert "recommend_product" in full.system
    assert compact.tools == full.tools == tool_schemas(SEVEN_TOOLS)
    assert (compact.max_steps, full.max_steps) == (COMPACT.max_steps, FULL.max_steps)


def test_listings_are_json_on_request():
    listed = json.loads(CliRunner().invoke(agent_app, ["list", "--json"]).output)
    assert [row["name"] for row in listed] == [spec.name for spec in bundled_agents()]
    models = json.loads(CliRunner().invoke(model_app, ["list", "--json"]).output)
    assert {row["model"] for row in models} >= {row["model"] for row in listed if row["model"]}


def test_a_new_agent_can_be_tried_at_once(tmp_path: Path):
    path = str(tmp_path / "mine.py")
    assert CliRunner().invoke(agent_app, ["new", path]).exit_code == 0
    again = CliRunner().invoke(agent_app, ["new", path])
    assert isinstance(again.exception, InputError)
    told = CliRunner().invoke(agent_app, ["test", path, "--problems", "3", "--json"])
    rows = json.loads(told.stdout)
    assert [row["success"]["oro"] for row in rows] == [True, True, True]
