"""A request's text becomes what it asks for, by the inverse of the paraphrase banks.

Exact on generated requests of every bank (a property test), best effort on real ones. The text is
all it sees: the lexicon is allowed, targets and catalogues are not.
"""

from __future__ import annotations

import re
from functools import lru_cache

from palio.agents.reading.items import split_items, wants_same_shop
from palio.agents.reading.prices import mark_amounts, take_price
from palio.agents.reading.vocabulary import (
    carrier_words,
    line_words,
    take_features,
    take_services,
    take_type,
    take_values,
)
from palio.agents.reading.vouchers import split_voucher
from palio.agents.reading.wanted import Wanted, WantedItem
from palio.records import SERVICES
from palio.world.synthesis.wording import filler_words

_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[^\W_]+(?:[-'./:*&+#%][^\W_]+)*")


@lru_cache(maxsize=4096)
def read_request(query: str) -> Wanted:
    """Read a request.

    Args:
        query: the text that an agent sees; a request in lower case throughout is read with the
            compact world's lexicon, any other with the full one's.
    """
    text, voucher = split_voucher(query)
    world = "compact" if text.strip().islower() else "full"
    text = mark_amounts(_SPACE.sub(" ", text).strip().lower().replace("\u2019", "'"))
    same_shop = wants_same_shop(text) or bool(voucher and voucher.voucher_type == "shop")
    items: list[WantedItem] = []
    for part in split_items(text, several=same_shop or voucher is not None):
        item = read_item(part, world)
        if items and not item.words:
            items[-1] = _merged(items[-1], item)
        else:
            items.append(item)
    return Wanted(items=tuple(items), same_shop=same_shop, voucher=voucher)


def read_item(text: str, world: str) -> WantedItem:
    """Read one item's lower-case text with a world's lexicon."""
    text, services = take_services(text)
    text, group, kind = take_type(text, world)
    if group:  # "ages 9 and up" is a value; of an unknown type, numbers are rather prices
        text, values = take_values(text, world, group)
    text, low, high = take_price(text, bare=world == "compact")
    if not group:  # values are hints then, so their words stay search words
        _, values = take_values(text, world, group)
    text, features = take_features(text, world, group)
    carriers = carrier_words(world) if group else filler_words()
    words = [word for word in _WORD.findall(text) if word not in carriers]
    lines = [word for word in words if word in line_words(world)] if group else []
    names = [word for word in words if word not in lines]
    return WantedItem(
        words=tuple(dict.fromkeys([*names, *lines, *kind.split(), *features])),
        values=values,
        low=low,
        high=high,
        services=services,
    )


def _merged(item: WantedItem, more: WantedItem) -> WantedItem:
    """An item with constraints that a following clause adds."""
    return WantedItem(
        words=item.words,
        values=(*item.values, *(pair for pair in more.values if pair not in item.values)),
        low=item.low if item.low is not None else more.low,
        high=item.high if item.high is not None else more.high,
        services=tuple(tag for tag in SERVICES if tag in (*item.services, *more.services)),
    )
