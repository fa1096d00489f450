"""Porter's stemmer exactly as Lucene's PorterStemFilter runs it, Martin's departures included.

Source: M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980. The departures from
the paper are those of his own later programs: words of one or two letters stay, "bli" becomes "ble"
(for "abli" to "able"), and "logi" becomes "log". Only a, e, i, o, u and y (after a consonant) are
vowels; every other character, digits and non-Latin letters too, counts as a consonant.
"""

from __future__ import annotations

_STEP_2 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "g": (("logi", "log"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
}
"""Rules by the last letter but one, in the order in which Porter's program tries them."""
_STEP_3 = {
    "e": (("icate", "ic"), ("ative", ""), ("alize", "al")),
    "i": (("iciti", "ic"),),
    "l": (("ical", "ic"), ("ful", "")),
    "s": (("ness", ""),),
}
_STEP_4 = {
    "a": ("al",),
    "c": ("ance", "ence"),
    "e": ("er",),
    "i": ("ic",),
    "l": ("able", "ible"),
    "n": ("ant", "ement", "ment", "ent"),
    "o": ("ion", "ou"),
    "s": ("ism",),
    "t": ("ate", "iti"),
    "u": ("ous",),
    "v": ("ive",),
    "z": ("ize",),
}


def stem(word: str) -> str:
    """The stem of a lower-case word."""
    if len(word) <= 2:
        return word
    word = _plural(word)
    word = _past(word)
    if word[-1] == "y" and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    if len(word) > 1:
        word = _replaced(word, _STEP_2.get(word[-2], ()))
        word = _replaced(word, _STEP_3.get(word[-1], ()))
        word = _residual(word)
    return _tidied(word)


def _shape(word: str) -> str:
    """The word as a string of "c" and "v"."""
    shape: list[str] = []
    for letter in word:
        if letter in "aeiou":
            shape.append("v")
        elif letter == "y" and shape:
            shape.append("c" if shape[-1] == "v" else "v")
        else:
            shape.append("c")
    return "".join(shape)


def _measure(word: str) -> int:
    """Porter's m: how many vowel-consonant sequences the word holds."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _short_end(word: str) -> bool:
    """Ends consonant, vowel, consonant, the last not w, x or y: hop(e), not snow."""
    return len(word) > 2 and _shape(word).endswith("cvc") and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        base = word[: -len(suffix)]
        if word.endswith(suffix) and _has_vowel(base):
            break
    else:
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _double_consonant(base):
        return base if base[-1] in "lsz" else base[:-1]
    if _measure(base) == 1 and _short_end(base):
        return base + "e"
    return base


def _replaced(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    """The first rule whose suffix fits decides, even when the measure forbids it."""
    for suffix, new in rules:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return base + new if _measure(base) > 0 else word
    return word


def _residual(word: str) -> str:
    if len(word) < 2:
        return word
    for suffix in _STEP_4.get(word[-2], ()):
        base = word[: -len(suffix)]
        if word.endswith(suffix) and (suffix != "ion" or base.endswith(("s", "t"))):
            return base if _measure(base) > 1 else word
    return word


def _tidied(word: str) -> str:
    if word.endswith("e"):
        base = word[:-1]
        measure = _measure(base)
        if measure > 1 or (measure == 1 and not _short_end(base)):
            word = base
    if word.endswith("ll") and _measure(word) > 1:
        return word[:-1]
    return word
