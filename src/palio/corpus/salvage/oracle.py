"""A search for words that nobody had told betrays a table of answers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from palio.corpus.derivable import ID_NAMES, PAGED, Prefix, roots
from palio.judging.words import lexicon, token_set
from palio.world.arguments import canonical_arguments

_NAMING = ID_NAMES | {"shop_id"}


def oracle_words(
    request: str, titles: tuple[str, ...], calls: Iterable[tuple[str, str, str]]
) -> tuple[str, ...]:
    """Words of the targets' titles that searches used before anything had told them.

    Words that stand in many listings count for nothing (the evidence judge's generic list), and so
    do results of calls whose product or shop ids nobody had told: else a table of ids would earn
    itself a table of words.

    Args:
        request: the text that the agent was given.
        titles: accepted titles of the targets.
        calls: (tool, arguments, result) in order.
    """
    secret = _secret(request, titles)
    held = list(calls)
    searches = [arguments for tool, arguments, _ in held if tool in PAGED]
    if not any(_may_hold(arguments, secret) for arguments in searches):
        return ()  # the usual case: nothing has to be parsed
    prefix = Prefix(request)
    found: dict[str, None] = {}
    for tool, arguments, result in held:
        given = canonical_arguments(tool, arguments)
        if tool in PAGED:
            missing = prefix.missing_words(str(given.get("q", "")))
            found |= dict.fromkeys(word for word in missing if not secret.isdisjoint(roots(word)))
        naming = {name: value for name, value in given.items() if name in _NAMING}
        if not prefix.missing(tool, naming):
            prefix.add(tool, given, result)
    return tuple(found)


@lru_cache(maxsize=4096)
def _secret(request: str, titles: tuple[str, ...]) -> frozenset[str]:
    """Roots of title words that neither the request nor any shopping talk holds."""
    asked = _roots_of(token_set(request))
    words = set(chain.from_iterable(token_set(title) for title in titles)) - lexicon().generic
    return _roots_of(word for word in words if roots(word).isdisjoint(asked))


@lru_cache(maxsize=1 << 15)
def _may_hold(arguments: str, secret: frozenset[str]) -> bool:
    """Whether raw arguments may use one of the words; escaped text always may."""
    return "\\" in arguments or not secret.isdisjoint(_roots_of(token_set(arguments)))


def _roots_of(words: Iterable[str]) -> frozenset[str]:
    return frozenset(chain.from_iterable(map(roots, words)))
