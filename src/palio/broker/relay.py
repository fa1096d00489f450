"""Which model a run may ask, with what seed, under whose key: decided here, never by the agent."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from palio.broker.refusals import RefusedError
from palio.records import Record

TURN_STRIDE = 1_000_003
"""Between the seeds of two turns of a run: prime, so that run seeds and turns do not meet, and over
2**16, so that servers that keep 32 bits of a seed tell turns apart."""
DEFAULT_NAMES = (None, "", "default")
NOT_SENT = ("stream", "stream_options")


class RelayPolicy(Record, frozen=True, omit_defaults=False):
    """Which models an agent of a run may name.

    Attributes:
        models: the allow-list beside the run's own model; a request for any other is refused. Empty
            means that no agent chooses: whatever it names, the run's own model answers, so that
            agents that were written for another model run unchanged and nothing else is ever paid.
    """

    models: tuple[str, ...] = ()


def upstream_body(
    body: Mapping[str, Any],
    *,
    own_model: str,
    policy: RelayPolicy,
    sampling: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    """What the model server is sent for a request.

    Raises:
        RefusedError: the model is not on the allow-list (404, model_not_found).
    """
    sent = {**sampling, **body}
    for name in NOT_SENT:
        sent.pop(name, None)
    if sent.get("seed") is None:
        sent["seed"] = seed
    sent["model"] = _model(sent.get("model"), own_model, policy)
    return sent


def _model(asked: Any, own: str, policy: RelayPolicy) -> str:
    if asked in DEFAULT_NAMES:
        return own or "default"
    named = str(asked)
    if named == own or named in policy.models:
        return named
    if policy.models:
        known = ", ".join(dict.fromkeys((own or "default", *policy.models)))
        what = f"the model {named[:80]!r} is not allowed in this run; allowed are: {known}"
        raise RefusedError(what, status=404, code="model_not_found")
    return own or named


def turn_seed(run_seed: int, turn: int) -> int:
    """The seed of a run's `turn`-th request (from 0): equal turns of equal runs are equal.

    With one seed for all turns a sampling server would draw the same numbers in each of them.
    """
    return run_seed + TURN_STRIDE * turn


def run_seed_of(seed: int) -> int:
    """What stays the same in all turns of a run, for model servers that need it."""
    return seed % TURN_STRIDE


def run_key(master: str, run: str) -> str:
    """The key that a model server is shown for one run; the master key cannot be told from it.

    HMAC-SHA256 of the run's id under the master key. A gateway that holds the master key derives
    the same and can meter or end each run by itself.
    """
    mac = hmac.new(master.encode(), f"palio run key 1\n{run}".encode(), hashlib.sha256)
    return f"palio-{run}-{mac.hexdigest()}"


def run_of_key(master: str, key: str) -> str | None:
    """The run that a derived key belongs to, None if the key was not derived from `master`."""
    _, _, rest = key.partition("-")
    run, _, _ = rest.rpartition("-")
    good = run_key(master, run)
    return run if hmac.compare_digest(good.encode(), key.encode("utf-8", "replace")) else None
