"""Everything that an operator decides about the broker, in one object a configuration can hold."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from palio.broker.nonce import NoncePolicy
from palio.broker.relay import RelayPolicy
from palio.records import ConfigError, Record


class BrokerPolicy(Record, frozen=True, omit_defaults=False):
    """How the broker treats the runs of a suite.

    Attributes:
        journal: keep every body in the run folder, from which runs can be replayed.
        relay: which models agents may ask.
        nonces: what is done with proofs of who emitted a call.
    """

    journal: bool = True
    relay: RelayPolicy = RelayPolicy()
    nonces: NoncePolicy = NoncePolicy()


def read_policy(path: Path | None) -> BrokerPolicy:
    """The policy of a TOML file; the usual one for None.

    Raises:
        ConfigError: the file cannot be read, or holds what a policy has not.
    """
    if path is None:
        return BrokerPolicy()
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        policy = msgspec.convert(given, BrokerPolicy)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"this is no policy of the broker: {error}", where=str(path)) from error
    usual = msgspec.to_builtins(policy)
    for name, part in given.items():
        members = part if isinstance(part, dict) else {}
        strange = [name] if name not in usual else []
        strange += [f"{name}.{each}" for each in members if each not in usual.get(name, {})]
        if strange:
            raise ConfigError(
                f"a policy of the broker has no {strange[0]}",
                where=str(path),
                remedy=f"it has {', '.join(usual)}; docs/broker.md says what is in them",
            )
    return policy
