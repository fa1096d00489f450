"""An agent is tried at the model server that is named, with the key that it asks for."""

from __future__ import annotations

import pytest

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.rollout.trial import try_agent


@pytest.mark.parametrize(("key", "ending"), [("right", "terminated"), ("wrong", "infra")])
def test_the_model_server_is_shown_the_key(key: str, ending: str) -> None:
    with ModelServer(ScriptedUpstream(), api_key="right") as server:
        rows = try_agent(
            find_agent("careful"), problems=1, model_url=server.url, api_key=key, driver="inline"
        )
    assert [row["ending"] for row in rows] == [ending]
