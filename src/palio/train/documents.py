"""Documents that teach copying, looking up and comparing, dense enough to learn in minutes.

A trajectory asks for each of these skills once or twice in 300 tokens, and a small model does not
find them there: in the prototype copying had not formed after 1 M tokens of trajectories, the
equality verdict stayed at chance. Here the results that tools gave in the training conversations
(numbers redrawn, so that nothing can be remembered) are followed by many short questions on them.
Documents hold no request, no tool call and no answer: a model trained on them alone cannot shop.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from palio.records import ConfigError, InputError, Message
from palio.train.text import Segment

Row = dict[str, Any]
Document = list[Segment]


class Material:
    """What documents are made of: rows that tools returned in training conversations.

    Attributes:
        pages: search results (rows with a title).
        views: detail results (rows with named values).
        values: name -> the values seen under it, sorted.
        words: words of titles by place, sorted.
    """

    def __init__(self, conversations: Sequence[Sequence[Message]]) -> None:
        self.pages: list[list[Row]] = []
        self.views: list[list[Row]] = []
        values: defaultdict[str, set[str]] = defaultdict(set)
        words: defaultdict[int, set[str]] = defaultdict(set)
        for rows in _results(conversations):
            if all("title" in row and "product_id" in row for row in rows):
                self.pages.append(rows)
                for row in rows:
                    for place, word in enumerate(str(row["title"]).split()):
                        words[place].add(word)
            elif all("product_id" in row for row in rows):
                self.views.append(rows)
                for row in rows:
                    for name, value in named_values(row).items():
                        values[name].add(value)
        self.values = {name: sorted(found) for name, found in sorted(values.items())}
        self.words = [sorted(words[place]) for place in sorted(words)]
        if not self.pages or not self.views or not self.values:
            raise InputError(
                "the conversations hold no search results or no product details",
                remedy="train on trajectories of the shopping tools, or leave the base stage out",
            )


def _results(conversations: Sequence[Sequence[Message]]) -> Iterator[list[Row]]:
    for messages in conversations:
        for message in messages:
            if message.role != "tool":
                continue
            try:
                rows = json.loads((message.content or "").partition("\nWarning: ")[0])
            except ValueError:
                continue
            if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
                yield rows


def named_values(row: Mapping[str, Any]) -> dict[str, str]:
    """Name -> value of a detail row: attributes, and the options of its first SKU."""
    out: dict[str, str] = {}
    for sku in list((row.get("sku_options") or {}).values())[:1]:
        out.update({name: str(value) for name, value in sku.items()})
    for name, held in (row.get("attributes") or {}).items():
        if held:
            out[name] = str(held[0] if isinstance(held, list) else held)
    return out


class Author:
    """Writes documents from material; the same seed gives the same documents."""

    def __init__(self, material: Material, seed: int) -> None:
        self.material = material
        self.rng = random.Random(f"documents-{seed}")
        self._kinds: dict[str, Callable[[], Document]] = {
            "copy": self.copying,
            "lookup": self.lookup,
            "fit": self.fitting,
            "equal": self.equality,
            "verdict": self.verdicts,
            "least": self.least,
            "far": self.far,
        }

    def write(self, weights: Mapping[str, float], count: int) -> list[Document]:
        """`count` documents, kinds drawn by weight.

        Raises:
            ConfigError: an unknown kind, a negative weight, or none above 0.
        """
        names = sorted(weights)
        wrong = [name for name in names if name not in self._kinds or not weights[name] >= 0]
        if wrong or not any(weights.values()):
            fault = f"{wrong[0]!r} cannot be" if wrong else "none has a weight"
            raise ConfigError(
                f"kinds of documents: {fault}",
                remedy=f"in [stage.kinds] give weights above 0 to {', '.join(self._kinds)}",
            )
        drawn = self.rng.choices(names, [weights[name] for name in names], k=count)
        return [self._kinds[name]() for name in drawn]

    def number(self, digits: int) -> str:
        """A number without leading zero."""
        return str(self.rng.randrange(10 ** (digits - 1), 10**digits))

    def word(self) -> str:
        """A new word spliced from two title words."""
        left, right = (
            self.rng.choice(self.material.words[0]),
            self.rng.choice(self.material.words[0]),
        )
        return left[: max(2, len(left) // 2)] + right[len(right) // 2 :]

    def _item(self) -> str:
        draw = self.rng.random()
        if draw < 0.35:
            return self.word()
        if draw < 0.6:
            return self.number(self.rng.choice((2, 3, 4, 4, 4)))
        if draw < 0.8:
            return self.rng.choice(self.rng.choice(self.material.words[1:] or self.material.words))
        return self.rng.choice(self.rng.choice(list(self.material.values.values())))

    def copying(self) -> Document:
        """A list of words, then stretches of it again."""
        items = [self._item() for _ in range(self.rng.choice((5, 8, 12, 16)))]
        out = [Segment(" ".join(items), False)]
        for _ in range(8):
            start = self.rng.randrange(len(items) - 3)
            stop = self.rng.randrange(start + 3, min(start + 9, len(items)) + 1)
            noise = [self._item() for _ in range(self.rng.randrange(3))]
            out.append(Segment("\n" + " ".join([*noise, items[start]]), False))
            out.append(Segment(" " + " ".join(items[start + 1 : stop]), True))
        return out

    def _page(self) -> list[Row]:
        """Rows of a search result with new numbers, and often new first words of the titles."""
        rows = [dict(row) for row in self.rng.choice(self.material.pages)]
        renamed: dict[str, str] = {}
        shops: dict[str, str] = {}
        for row in rows:
            brand, _, rest = str(row["title"]).partition(" ")
            if brand not in renamed:
                renamed[brand] = self.word() if self.rng.random() < 0.7 else brand
            row["title"] = f"{renamed[brand]} {rest}"
            row["product_id"] = self.number(4)
            shop = str(row.get("shop_id", ""))
            if shop:
                row["shop_id"] = shops.setdefault(shop, self.number(4))
            if "price" in row:
                row["price"] = int(self.number(self.rng.choice((2, 3, 3))))
        self.rng.shuffle(rows)
        return rows

    def _ask(self, row: Row) -> Document:
        """One question on a row of a search result."""
        number, title = row["product_id"], row["title"]
        kind = self.rng.randrange(4)
        if kind == 0 and "shop_id" in row:
            return [Segment(f"\n{number} shop", False), Segment(f" {row['shop_id']}.", True)]
        if kind == 1 and "price" in row:
            return [Segment(f"\n{number}", False), Segment(f" {row['price']}.", True)]
        if kind == 2:
            return [Segment(f"\n{number} is", False), Segment(f" {title}.", True)]
        return [Segment(f"\n{title} is", False), Segment(f" {number}.", True)]

    def lookup(self) -> Document:
        """A search result, then its parts by id and ids by title."""
        rows = self._page()
        titles = [row["title"] for row in rows]
        once = [row for row in rows if titles.count(row["title"]) == 1] or rows
        asked = [self._ask(self.rng.choice(once)) for _ in range(self.rng.randrange(5, 10))]
        return [Segment(_json(rows), False), *(part for parts in asked for part in parts)]

    def fitting(self) -> Document:
        """A search result, then for some words the ids of the rows whose title holds them all."""
        rows = self._page()
        out = [Segment(_json(rows), False)]
        for _ in range(self.rng.randrange(4, 8)):
            held = str(self.rng.choice(rows)["title"]).split()
            dropped = self.rng.choice(held) if self.rng.random() < 0.6 and len(held) > 1 else ""
            some = [word for word in held if word != dropped]
            fits = [r["product_id"] for r in rows if set(some) <= set(str(r["title"]).split())]
            out.append(Segment(f"\nsearch {' '.join(some)}.", False))
            out.append(Segment(f"\n{' '.join(fits)} fit.", True))
        return out

    def equality(self) -> Document:
        """Pairs of values of one name with the verdict whether they are the same."""
        out: Document = []
        for _ in range(22):
            held = self.rng.choice(list(self.material.values.values()))
            wanted = self.rng.choice(held)
            seen = wanted if self.rng.random() < 0.5 else self.rng.choice(held)
            out.append(Segment(f"{wanted} {seen}", False))
            out.append(Segment(" yes" if wanted == seen else " no", True))
            out.append(Segment(" ", False))
        return out

    def _view(self) -> list[Row]:
        rows = json.loads(json.dumps(self.rng.choice(self.material.views)))
        for row in rows:
            row["product_id"] = self.number(4)
        return list(rows)

    def verdicts(self) -> Document:
        """Product details, then wanted and seen side by side for some wanted values."""
        rows = self._view()
        out = [Segment(_json(rows), False)]
        for _ in range(self.rng.randrange(3, 6)):
            held = named_values(self.rng.choice(rows))
            names = self.rng.sample(sorted(held), min(len(held), self.rng.choice((1, 1, 2, 3))))
            wanted = {
                name: held[name] if self.rng.random() < 0.8 else self._other(name) for name in names
            }
            out.append(Segment(f"\nneed {' '.join(wanted.values())}.", False))
            for row in self.rng.sample(rows, min(len(rows), 3)):
                out.append(Segment(f" {row['product_id']}", False))
                out.append(Segment(verdict_text(wanted, named_values(row)), True))
        return out

    def _other(self, name: str) -> str:
        return self.rng.choice(self.material.values[name])

    def least(self) -> Document:
        """Ids with prices, then the least price and its id."""
        out: Document = []
        for _ in range(6):
            count, top = self.rng.choice((2, 2, 3, 3, 4)), self.rng.choice((99, 500, 999))
            prices = self.rng.sample(range(10, top + 1), count)
            pairs = [(self.number(4), price) for price in prices]
            listed = " ".join(f"{number} {price} {number}." for number, price in pairs)
            number, price = min(pairs, key=lambda pair: pair[1])
            out.append(Segment(listed, False))
            out.append(Segment(f" {price} {number}.", True))
            out.append(Segment("\n", False))
        return out

    def far(self) -> Document:
        """A search result, details and another result, then questions on the first one."""
        rows = self._page()
        between = [_json(self._view()) for _ in range(self.rng.randrange(1, 3))]
        if self.rng.random() < 0.5:
            between.append(_json(self._page()))
        out = [Segment("\n".join([_json(rows), *between]), False)]
        for row in self.rng.sample(rows, len(rows)):
            out.extend(self._ask(row))
            if "shop_id" in row:
                out.append(Segment(f"\n{row['product_id']} shop", False))
                out.append(Segment(f" {row['shop_id']}.", True))
        return out


def verdict_text(wanted: Mapping[str, str], seen: Mapping[str, str]) -> str:
    """`` {wanted} {seen} yes|no ...`` up to the first no, with a full stop."""
    parts: list[str] = []
    for name, value in wanted.items():
        held = seen.get(name, "none")
        parts += [value, held, "yes" if held == value else "no"]
        if held != value:
            break
    return f" {' '.join(parts)}."


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
