"""The voucher suffix of a request is read by the same templates that wrote it."""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Literal

from palio.agents.reading.wanted import WantedVoucher
from palio.world.synthesis.lexicon import WORLDS
from palio.world.synthesis.wording import VoucherWording, load_banks

_NUMBER = r"(?P<{name}>\d[\d,]*(?:\.\d+)?)"
_Form = tuple[re.Pattern[str], Literal["platform", "shop"], Literal["fixed", "percentage"]]


def split_voucher(text: str) -> tuple[str, WantedVoucher | None]:
    """The request without its voucher rules, and the rules; None when the text has none."""
    for pattern, scope, kind in voucher_forms():
        found = pattern.search(text)
        if found:
            numbers = {name: _amount(value) for name, value in found.groupdict().items()}
            voucher = WantedVoucher(
                voucher_type=scope,
                threshold=numbers["threshold"],
                discount_type=kind,
                value=numbers["value"],
                budget=numbers["budget"],
                cap=numbers.get("cap"),
            )
            return text[: found.start()] + text[found.end() :], voucher
    return text, None


def _amount(text: str) -> float:
    return float(text.replace(",", ""))


@cache
def voucher_forms() -> tuple[_Form, ...]:
    """A pattern for each way in which a bank words a voucher, longest template first."""
    forms: list[tuple[int, _Form]] = []
    for world in WORLDS:
        for bank in load_banks(world):
            forms += _forms_of(bank.voucher)
    forms.sort(key=lambda form: -form[0])
    return tuple(form for _, form in forms)


def _forms_of(wording: VoucherWording) -> list[tuple[int, _Form]]:
    scopes: tuple[Literal["platform", "shop"], ...] = ("platform", "shop")
    kinds: tuple[Literal["fixed", "percentage"], ...] = ("fixed", "percentage")
    forms: list[tuple[int, _Form]] = []
    for text, scope, kind in itertools.product(wording.text, scopes, kinds):
        for said, discount in itertools.product(wording.scope[scope], wording.discount[kind]):
            whole = text.replace("{scope}", said).replace("{discount}", discount)
            forms.append((len(whole), (_pattern(whole), scope, kind)))
    return forms


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template.strip())
    literal = [r"\s+".join(re.escape(word) for word in _spaced(part)) for part in parts[::2]]
    pieces = [literal[0]]
    for name, following in zip(parts[1::2], literal[1:], strict=True):
        pieces += [_NUMBER.format(name=name), following]
    return re.compile(r"\s*" + "".join(pieces), re.IGNORECASE)


def _spaced(part: str) -> list[str]:
    """Words of a literal; empty strings at the ends keep the white space next to a number."""
    return re.split(r"\s+", part)
