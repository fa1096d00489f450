"""Planted variants of requests: what a leak guard has to find, made in four ways."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from palio.records import Problem
from palio.suites.keys import product_keys
from palio.world.synthesis import full_config, synthesise

Pairs = list[tuple[Problem, Problem]]


def planted(quick: bool) -> dict[str, Pairs]:
    """Requests with a variant each: the four kinds of docs/leak-guard.md."""
    seeds = range(1 if quick else 3)
    rng = random.Random(7)
    found: dict[str, Pairs] = {"white space": [], "reorder": [], "paraphrase": [], "voucher": []}
    for seed in seeds:
        banks = {
            bank: synthesise(
                full_config(seed, products=3_000, problems=300, banks=(bank,))
            ).problems
            for bank in ("full-direct", "full-polite", "full-short", "full-note")
        }
        names = sorted(banks)
        for place, problem in enumerate(banks["full-direct"]):
            found["white space"].append((problem, respaced(problem, rng)))
            found["reorder"].append((problem, reordered(problem, rng)))
            other = banks[names[1 + place % 3]][place]
            found["paraphrase"].append((problem, other))
            if problem.voucher is not None:
                found["voucher"].append((problem, revouchered(problem, rng)))
    return found


def reworded(problem: Problem, query: str) -> Problem:
    """The same problem in other words, without what would give it away."""
    return msgspec.structs.replace(problem, query=query)


def respaced(problem: Problem, rng: random.Random) -> Problem:
    """Other white space, case, and full-width letters."""
    spaces = ("  ", "\n", "\u00a0", " \t")
    query = "".join(rng.choice(spaces) if char == " " else char for char in problem.query)
    return reworded(problem, query.upper() if rng.random() < 0.5 else query)


def reordered(problem: Problem, rng: random.Random) -> Problem:
    """Clauses in another order; a request of one clause is turned around its middle."""
    clauses = [part for part in re.split(r"[,.;:]\s+|\s+and\s+", problem.query) if part]
    if len(clauses) < 2:
        words = problem.query.split()
        clauses = [" ".join(words[len(words) // 2 :]), " ".join(words[: len(words) // 2])]
    first = list(clauses)
    while clauses == first:
        rng.shuffle(clauses)
    return reworded(problem, ", ".join(clauses))


def revouchered(problem: Problem, rng: random.Random) -> Problem:
    """The same wish under another voucher in another bank's wording: no number stays."""
    wish = problem.query.split("\n\nMy budget")[0]
    money, off, cap, least = (
        rng.randrange(*bounds) for bounds in ((200, 4000), (5, 60), (20, 500), (50, 900))
    )
    rule = (
        f"I have {money} to spend. A coupon takes {off} percent off, {cap} at most, above {least}."
    )
    return reworded(problem, f"{wish} {rule}")


def paraphrased(problem: Problem, rng: random.Random) -> Problem:
    """Every phrase that paraphrases.toml knows said otherwise, reordered, one clause left out."""
    wish, *rules = problem.query.split("\n\nMy budget")
    for swap in swaps():
        wish = re.sub(
            swap["find"], lambda _, ways=swap["with"]: rng.choice(ways), wish, flags=re.IGNORECASE
        )
    clauses = reordered(reworded(problem, wish), rng).query.split(", ")
    if len(clauses) > 3:
        clauses.pop(rng.randrange(1, len(clauses)))
    text = f"Hello there! {', '.join(clauses)}. Thank you!"
    if rules:
        numbers = ", ".join(re.findall(r"[0-9.]*[0-9]", rules[0].replace("1. ", "")))
        text += f" There is a coupon and a limit to what I can pay: {numbers}."
    return reworded(problem, text)


@cache
def swaps() -> list[dict[str, Any]]:
    """The phrases of paraphrases.toml."""
    text = (Path(__file__).parent / "paraphrases.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["swap"]
    return found


def of_tasks(problems: Sequence[Problem]) -> dict[str, Pairs]:
    """The four kinds of variants of real tasks, and wordings of one product that people wrote."""
    rng = random.Random(11)
    first: dict[str, Problem] = {}
    natural: Pairs = []
    for problem in problems:
        for key in product_keys(problem):
            if key in first and first[key] is not problem:
                natural.append((first[key], problem))
            first.setdefault(key, problem)
    vouchers = [problem for problem in problems if problem.voucher is not None]
    return {
        "white space": [(p, respaced(p, rng)) for p in problems],
        "reorder": [(p, reordered(p, rng)) for p in problems if p.kind != "web"],
        "paraphrase": [(p, paraphrased(p, rng)) for p in problems if p.kind != "web"],
        "voucher": [(p, revouchered(p, rng)) for p in vouchers],
        "same product, other words": natural,
    }
