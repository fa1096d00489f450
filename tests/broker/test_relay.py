"""Which model answers, with what seed, is the run's to say and never the agent's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palio.broker.nonce import NoncePolicy
from palio.broker.policy import BrokerPolicy, read_policy
from palio.broker.refusals import RefusedError
from palio.broker.relay import TURN_STRIDE, RelayPolicy, run_seed_of, turn_seed
from palio.broker.session import Session
from palio.records import ConfigError
from tests.broker.conftest import Replies, completion
from tests.broker.test_session import ASK, ask

Open = Callable[..., Session]


def test_the_run_s_seed_can_be_told_from_any_turn_s() -> None:
    assert [run_seed_of(turn_seed(12, turn)) for turn in range(30)] == [12] * 30
    assert len({turn_seed(seed, turn) % 2**32 for seed in range(50) for turn in range(50)}) == 2500


def test_sampling_and_seed_fill_only_what_is_missing(open_session: Open) -> None:
    upstream = Replies(completion("x"))
    policy = RelayPolicy(models=("gpt",))
    sampling = {"temperature": 0.7, "top_p": 0.9}
    session = open_session(upstream, seed=5, sampling=sampling, relay=policy)
    session.complete({"model": "gpt", "messages": ASK, "temperature": 0, "stream": True})
    body = upstream.bodies[0]
    assert (body["model"], body["seed"], body["temperature"], body["top_p"]) == ("gpt", 5, 0, 0.9)
    assert "stream" not in body
    session.complete({"messages": ASK, "seed": 9})
    assert upstream.bodies[1]["seed"] == 9
    assert session.close().inferences[0].params["temperature"] == 0


def test_each_turn_has_its_own_seed_and_equal_runs_equal_ones(open_session: Open) -> None:
    seeds = []
    for _ in range(2):
        upstream = Replies(completion("x"))
        session = open_session(upstream, seed=7)
        for _ in range(3):
            ask(session, ASK)
        seeds.append([body["seed"] for body in upstream.bodies])
    assert seeds[0] == seeds[1] == [7, 7 + TURN_STRIDE, 7 + 2 * TURN_STRIDE]


@pytest.mark.parametrize("asked", ["default", "", None, "m1"])
def test_the_run_s_own_model_is_always_allowed(open_session: Open, asked: Any) -> None:
    upstream = Replies(completion("x"))
    session = open_session(upstream, relay=RelayPolicy(models=("other",)))
    session.complete({"model": asked, "messages": ASK})
    assert upstream.bodies[0]["model"] == "m1"


def test_a_model_off_the_list_is_refused_and_nothing_is_sent(open_session: Open) -> None:
    upstream = Replies(completion("x"))
    session = open_session(upstream, relay=RelayPolicy(models=("other",)))
    with pytest.raises(RefusedError, match="not allowed.*m1, other") as refused:
        session.complete({"model": "gpt-very-dear", "messages": ASK})
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")
    assert upstream.bodies == []
    session.complete({"model": "other", "messages": ASK})
    assert upstream.bodies[0]["model"] == "other"


def test_without_a_list_every_name_means_the_run_s_model(open_session: Open) -> None:
    upstream = Replies(completion("x"))
    open_session(upstream).complete({"model": "gpt-very-dear", "messages": ASK})
    assert upstream.bodies[0]["model"] == "m1"


def test_a_policy_file_is_read_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('journal = false\n[relay]\nmodels = ["a"]\n[nonces]\nmode = "strict"\n')
    read = read_policy(path)
    wanted = BrokerPolicy(
        journal=False, relay=RelayPolicy(models=("a",)), nonces=NoncePolicy(mode="strict")
    )
    assert (read, read_policy(None)) == (wanted, BrokerPolicy())
    for text, named in [
        ("jurnal = true", "no jurnal"),
        ("[nonces]\nmodus = 1", "no nonces.modus"),
        ('[nonces]\nmode = "lax"', "no policy"),
        ("journal = 3", "no policy"),
        ("[", "no policy"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=named):
            read_policy(path)
    with pytest.raises(ConfigError, match="no policy"):
        read_policy(tmp_path / "absent.toml")
