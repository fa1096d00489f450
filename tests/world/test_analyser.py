"""The analyser gives Lucene's terms: cases from the standard and the stemmer's paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.world.analyser import STOP_WORDS, analyse, term_of_word, words
from palio.world.porter import stem

STEMS = """caresses caress|ponies poni|ties ti|caress caress|cats cat|feed feed|agreed agre
plastered plaster|bled bled|motoring motor|sing sing|conflated conflat|troubled troubl|sized size
hopping hop|tanned tan|falling fall|hissing hiss|fizzed fizz|failing fail|filing file|happy happi
sky sky|relational relat|conditional condit|rational ration|valenci valenc|hesitanci hesit
digitizer digit|conformabli conform|radicalli radic|differentli differ|vileli vile
analogousli analog|vietnamization vietnam|predication predic|operator oper|feudalism feudal
decisiveness decis|hopefulness hope|callousness callous|formaliti formal|sensitiviti sensit
sensibiliti sensibl|triplicate triplic|formative form|formalize formal|electriciti electr
electrical electr|hopeful hope|goodness good|revival reviv|allowance allow|inference infer
airliner airlin|gyroscopic gyroscop|adjustable adjust|defensible defens|irritant irrit
replacement replac|adjustment adjust|dependent depend|adoption adopt|homologou homolog
communism commun|activate activ|angulariti angular|homologous homolog|effective effect
bowdlerize bowdler|probate probat|rate rate|cease ceas|controll control|roll roll"""
"""Every example of Porter's paper, with the output of the whole algorithm."""

DEPARTURES = {"is": "is", "by": "by", "possibly": "possibl", "archaeology": "archaeolog"}


@pytest.mark.parametrize("pair", STEMS.replace("\n", "|").split("|"))
def test_examples_of_the_paper(pair: str) -> None:
    word, expected = pair.split()
    assert stem(word) == expected


@pytest.mark.parametrize(("word", "expected"), DEPARTURES.items())
def test_martins_departures(word: str, expected: str) -> None:
    assert stem(word) == expected


@pytest.mark.parametrize(
    "word", ["ied", "ing", "eed", "sses", "ies", "yyy", "s", "ss", "aaa", "ll"]
)
def test_words_that_are_nothing_but_suffix(word: str) -> None:
    assert stem(word)


CASES = {
    "Wi-Fi Router AC1200": ["wi", "fi", "router", "ac1200"],
    "12.5 inch, 3,000mAh 6/8": ["12.5", "inch", "3,000mah", "6", "8"],
    "men's Women\u2019s JAMES'": ["men", "women", "jame"],
    "The cat and THE dog": ["cat", "dog"],
    "v1.5 a.5 eu:30 x.y": ["v1.5", "5", "eu", "30", "x.y"],
    "snake_case __ _x": ["snake_cas", "_x"],
    "50% off! $5 #1 a+b": ["50", "off", "5", "1", "b"],
    "Caf\u00e9 nai\u0308ve": ["caf\u00e9", "nai\u0308v"],
    "\u5317\u4eac \u304b\u306a": ["\u5317", "\u4eac", "\u304b", "\u306a"],
    "\u30ab\u30bf\u30ab\u30cabag": ["\u30ab\u30bf\u30ab\u30ca", "bag"],
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 hi": ["\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "hi"],
    "good\U0001f44d\U0001f3fd\u2728": ["good", "\U0001f44d\U0001f3fd", "\u2728"],
    "m\u00b2 \u00bd \u2460": ["m"],
    "\u0130stanbul \u03a3\u039f\u03a3": ["istanbul", "\u03c3\u03bf\u03c3"],
    "": [],
}


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_terms(text: str, expected: list[str]) -> None:
    assert analyse(text) == expected


def test_long_words_are_cut_as_lucene_cuts_them() -> None:
    assert [len(term) for term in analyse("x" * 600)] == [255, 255, 90]


@given(st.text())
def test_any_text_has_terms_without_stop_words(text: str) -> None:
    terms = analyse(text)
    assert all(terms)
    assert not {word.lower() for word in words(text) if word.lower() in STOP_WORDS} & set(terms)


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_text_is_cut_alike_by_both_patterns(text: str) -> None:
    assert words(text) == words(text + " \u00e9")[: len(words(text))]


@given(st.from_regex(r"[a-z]{1,12}", fullmatch=True))
def test_a_term_is_never_empty_and_never_longer(word: str) -> None:
    term = term_of_word(word)
    assert len(term) <= len(word)
    assert bool(term) == (word not in STOP_WORDS)
