"""Everything that an operator decides about the broker, in one object a configuration can hold."""

from __future__ import annotations

from palio.broker.nonce import NoncePolicy
from palio.broker.relay import RelayPolicy
from palio.records import Record


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
