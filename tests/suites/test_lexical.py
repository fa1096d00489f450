"""The join finds every similar pair and no other, and a second implementation agrees to the bit."""

from __future__ import annotations

import math
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.corpus.verify.alike import Requests, counted
from palio.corpus.verify.shapes import LexicalBounds
from palio.corpus.verify.texts import content
from palio.records import ConfigError, Problem
from palio.suites.lexical import LexicalRule, likenesses, most_similar, word_weights
from palio.suites.words import content_words, request_words, words_of
from tests.suites.making import made_problem

WORDS = (  # noqa: SIM905
    "oak elm fir teapot teapots glass brass 40 75 lantern please for a 12mm naïve \uff22LUE"
).split()
LOOSE = LexicalRule(
    jaccard=0.6, containment=0.8, weak_jaccard=0.2, weak_containment=0.5, least=2.0, inside=4.0
)


def asked(queries: list[str]) -> tuple[Problem, ...]:
    return tuple(made_problem(f"p{n:02}", (str(n),), query=q) for n, q in enumerate(queries))


requests = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), max_size=12).map(
    asked
)


def by_hand(problems: tuple[Problem, ...], rule: LexicalRule) -> dict[tuple[str, str], bool]:
    """All pairs compared by the formulas of the documentation."""
    weight = word_weights(problems).weight
    sets = {p.problem_id: set(content_words(p.query)) for p in problems}
    found = {}
    for one, other in combinations(sorted(sets), 2):
        shared = sum(weight[word] for word in sets[one] & sets[other])
        totals = [sum(weight[word] for word in sets[name]) for name in (one, other)]
        if shared < 1000 * rule.least:
            continue
        jaccard = shared / (sum(totals) - shared)
        inside = shared / min(totals) if shared >= 1000 * rule.inside else 0.0
        if jaccard >= rule.weak_jaccard or inside >= rule.weak_containment:
            found[one, other] = jaccard >= rule.jaccard or inside >= rule.containment
    return found


@settings(deadline=None)
@given(requests)
def test_the_join_is_exact_and_the_verifier_agrees(problems: tuple[Problem, ...]) -> None:
    pairs, weights = likenesses(problems, LOOSE)
    expected = by_hand(problems, LOOSE)
    assert {(pair.one, pair.other): pair.strong for pair in pairs} == expected
    words = {p.problem_id: content(p.query, request_words()) for p in problems}
    assert counted(words) == weights.weight
    bounds = msgspec.convert(msgspec.to_builtins(LOOSE), LexicalBounds)
    theirs = Requests(words, counted(words))
    assert {
        tuple(sorted((light, heavy))): theirs.strong(light, heavy, bounds)
        for light, heavy, _ in theirs.pairs(bounds)
    } == expected


@settings(deadline=None)
@given(requests, st.lists(st.booleans(), min_size=12, max_size=12))
def test_the_nearest_pair_across_sides_is_exact(
    problems: tuple[Problem, ...], marks: list[bool]
) -> None:
    sides = {p.problem_id: mark for p, mark in zip(problems, marks, strict=False)}
    weights = word_weights(problems)
    found = most_similar(problems, sides, weights)
    words = {p.problem_id: content(p.query, request_words()) for p in problems}
    theirs = Requests(words, weights.weight)
    across = [
        (theirs.jaccard(one, other), (one, other))
        for one, other in combinations(sorted(sides), 2)
        if sides[one] != sides[other]
    ]
    best = max((value for value, _ in across), default=0.0)
    nearest = theirs.nearest(sides)
    if best < 0.05:
        assert found is None
        assert nearest is None
    else:
        assert found is not None
        assert nearest is not None
        assert found == (best, *min(pair for value, pair in across if value == best))
        assert nearest[0] == best


@given(st.text())
def test_two_tokenisers_find_the_same_words(text: str) -> None:
    from palio.corpus.verify import texts

    assert texts.words(text) == words_of(text)
    assert texts.content(text, request_words()) == set(content_words(text))


def test_request_words_and_plurals_do_not_count() -> None:
    assert content_words("Looking for BLUE mugs, priced above 40 pesos; glass") == [
        "blue",
        "mug",
        "40",
        "glass",
    ]


def test_a_word_weighs_what_it_tells_and_a_number_half() -> None:
    problems = asked(["oak 40", "oak 75", "oak", "elm"])
    weight = word_weights(problems).weight
    assert weight["elm"] == round(1000 * math.log(104 / 2))
    assert weight["oak"] == round(1000 * math.log(104 / 4))
    assert weight["40"] == round(500 * math.log(104 / 2))


def test_the_digest_of_the_weights_follows_the_requests() -> None:
    one, other = word_weights(asked(["oak"])), word_weights(asked(["elm"]))
    assert one.digest() != other.digest()
    assert one.digest() == word_weights(asked(["OAK  oak"])).digest()


@pytest.mark.parametrize(
    "fields",
    [{"jaccard": 0.2}, {"weak_containment": 0.9}, {"weak_jaccard": 0.0}, {"containment": 1.1},
     {"least": 0.0}, {"inside": 7.0}],
)  # fmt: skip
def test_thresholds_out_of_order_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        msgspec.structs.replace(LexicalRule(), **fields).checked()


def test_a_request_of_two_common_words_is_inside_nothing() -> None:
    """ "A cutting board" merged with every request that mentions one."""
    short = made_problem("short", ("1",), query="Looking for a cutting board")
    long = [
        made_problem(
            f"p{n}", (str(n + 2),), query=f"Find a {colour} cutting board by {maker}, {use}"
        )
        for n, (colour, maker, use) in enumerate(
            (f"colour{n}", f"maker{n}", f"use{n}") for n in range(12)
        )
    ]
    assert not [
        p for p in likenesses((short, *long), LexicalRule())[0] if "short" in (p.one, p.other)
    ]
    loose = LexicalRule(least=1.0, inside=1.0)
    assert sum(p.strong for p in likenesses((short, *long), loose)[0]) >= 12
