"""A default that is stated explicitly changes no byte of a record whose bytes are digested."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

import palio.corpus
import palio.rollout
import palio.suites
import palio.world.synthesis
from palio.records import Record, digest, from_json, to_json
from palio.records.base import CanonicalRecord, _defaults
from palio.suites.clusters import Edge
from palio.suites.guard import Suspicion
from palio.world.synthesis import compact_config, full_config
from palio.world.synthesis.config import GENERATOR_VERSION, ItemMix, SynthesisConfig
from palio.world.synthesis.wording import Bank, load_banks

PACKAGES = (palio.corpus, palio.rollout, palio.suites, palio.world.synthesis)
NEVER_DIGESTED = {
    "palio.corpus.earlier._Origin": "read only",
    "palio.corpus.readers.record.Note": "lives while one trace is read",
}


def records_of(kind: type[Record]) -> Iterator[type[Record]]:
    for child in kind.__subclasses__():
        yield child
        yield from records_of(child)


def test_records_with_telling_defaults_are_canonical_or_write_them() -> None:
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    prefixes = tuple(package.__name__ + "." for package in PACKAGES)
    weak = {
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in set(records_of(Record))
        if kind.__module__.startswith(prefixes)
        and kind.__struct_config__.omit_defaults
        and not issubclass(kind, CanonicalRecord)
        and _defaults(kind)
    }
    assert weak <= set(NEVER_DIGESTED)


def stated(record: Record) -> Record:
    """The same record with every field given as a new object that only equals the old one."""
    plain = {name: getattr(record, name) for name in record.__struct_fields__}
    again: dict[str, object] = msgspec.json.decode(msgspec.json.encode(plain))
    return msgspec.convert(again, type(record))


@pytest.mark.parametrize("config", [compact_config(3), full_config(3, products=700)])
def test_a_world_s_digest_does_not_know_which_defaults_were_stated(config: SynthesisConfig) -> None:
    again = stated(config)
    assert again == config
    assert digest(again) == digest(config)
    assert to_json(again) == to_json(config)
    version = "".join(GENERATOR_VERSION)
    explicit = msgspec.structs.replace(config, generator=version, shop_vouchers=float("0.5"))
    default = msgspec.structs.replace(config, shop_vouchers=0.5)
    assert digest(explicit) == digest(default)


def test_records_inside_a_world_or_a_guard_too() -> None:
    mix = ItemMix(traits=(1.0,))
    spelled = from_json(
        b'{"traits":[1.0],"line":0.5,"brand":1.0,"feature":0.0,"price":0.5,"service":0.3,'
        b'"max_services":1,"decoys":4,"spread":0.0}',
        ItemMix,
    )
    assert to_json(spelled) == to_json(mix)
    assert digest(Edge(one="a", other="b", key="k", score=float("1.0"))) == digest(
        Edge(one="a", other="b", key="k")
    )
    told = Suspicion(kind="gram", key="k", problems=("a",), score=float("1"))
    assert to_json(told) == to_json(Suspicion(kind="gram", key="k", problems=("a",)))
    for bank in load_banks("compact"):
        assert isinstance(bank, Bank)
        assert digest(stated(bank)) == digest(bank)
