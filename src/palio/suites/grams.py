"""Two requests that hold the same thirteen words in a row are suspected of being one.

Thirteen is the usual length of contamination studies. A run counts only when enough of its words
carry content: of 900 public tasks 265 share the wording of a voucher rule, 8 share more than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from palio.records import Problem, Record
from palio.suites.words import request_words, words_of


class GramRule(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Length of a run in words, and how many of them must be neither request words nor numbers.

    With 4 of 13, no two of 4,800 synthetic problems share a run by their templates alone.
    """

    words: int = 13
    content: int = 4


def grams_of(text: str, rule: GramRule) -> Iterator[str]:
    """The runs of a text that count, in order."""
    words = words_of(text)
    request = request_words()
    telling = [word not in request and not word.isdigit() for word in words]
    for start in range(len(words) - rule.words + 1):
        if sum(telling[start : start + rule.words]) >= rule.content:
            yield " ".join(words[start : start + rule.words])


def shared_grams(problems: Sequence[Problem], rule: GramRule) -> dict[str, tuple[str, ...]]:
    """Each run that two or more problems hold -> their ids, in order; one run a set of problems."""
    holders: dict[str, list[str]] = {}
    for problem in problems:
        for gram in grams_of(problem.query, rule):
            held = holders.setdefault(gram, [])
            if not held or held[-1] != problem.problem_id:
                held.append(problem.problem_id)
    first: dict[tuple[str, ...], str] = {}
    for gram, held in holders.items():
        if len(held) > 1:
            first.setdefault(tuple(held), gram)
    return {gram: held for held, gram in first.items()}
