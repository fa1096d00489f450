"""A catalogue in the making: every family is handed out once, every draft is numbered."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from palio.records.faults import ConfigError
from palio.world.synthesis.brands import invent_brands
from palio.world.synthesis.config import SynthesisConfig
from palio.world.synthesis.draft import Draft, Family, Shape, free_draft
from palio.world.synthesis.lexicon import Group, Lexicon, ProductType, load_lexicon
from palio.world.synthesis.wording import filler_words, request_words


@dataclass(slots=True)
class Stock:
    """The drafts of a catalogue in the making.

    Attributes:
        lines_of: type -> lines not yet used with it, so that line and type name one family.
    """

    config: SynthesisConfig
    rng: random.Random
    lexicon: Lexicon
    shape: Shape
    brands: list[str]
    shops: int
    kinds: list[tuple[Group, ProductType]]
    drafts: list[Draft] = field(default_factory=list)
    taken: set[tuple[str, str]] = field(default_factory=set)
    lines_of: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def open(cls, config: SynthesisConfig) -> Stock:
        """An empty stock with its brands and shops."""
        lexicon = load_lexicon(config.world)
        shape = Shape(config.world == "compact", config.sku_limit, config.trait_presence)
        count = max(12, config.products // config.products_a_brand)
        seed = config.seed if config.brand_seed is None else config.brand_seed
        brands = invent_brands(count, seed, frozenset(request_words(config.world)) | filler_words())
        kinds = [(group, kind) for group in lexicon.groups for kind in group.types]
        return cls(
            config=config,
            rng=random.Random(f"synthesis-{config.seed}"),
            lexicon=lexicon,
            shape=shape,
            brands=brands,
            shops=max(6, config.products // config.products_a_shop),
            kinds=kinds,
        )

    def family(self, avoid: frozenset[str] = frozenset()) -> Family:
        """A family that was not handed out before, of a type that is not in `avoid`.

        Brand and type name one family, and so do line and type while unused lines are left.
        """
        for _ in range(1000):
            group, kind = self.rng.choice(self.kinds)
            brand = self.rng.choice(self.brands)
            if kind.name not in avoid and (brand, kind.name) not in self.taken:
                self.taken.add((brand, kind.name))
                features = self._features(group)
                return Family(brand, self._line(kind), kind, group, features)
        raise ConfigError(
            "no unused pair of brand and type is left",
            remedy="ask for more products, or lower products_a_brand",
        )

    def add(self, draft: Draft) -> Draft:
        """Count a draft in and number it."""
        draft.number = len(self.drafts)
        self.drafts.append(draft)
        return draft

    def shop(self, avoid: frozenset[int] = frozenset()) -> int:
        """A random shop outside `avoid`."""
        while True:
            shop = self.rng.randrange(self.shops)
            if shop not in avoid or len(avoid) >= self.shops:
                return shop

    def fill(self) -> None:
        """Background products until the catalogue has its size.

        Raises:
            ConfigError: the problems alone need more products than the catalogue may have.
        """
        missing = self.config.products - len(self.drafts)
        if missing < 0:
            raise ConfigError(
                f"{self.config.problems} problems with their decoys need {len(self.drafts)} "
                f"products, the catalogue may have {self.config.products}",
                remedy=f"ask for at least {len(self.drafts)} products, or for fewer problems",
            )
        while missing > 0:
            family = self.family()
            for _ in range(min(missing, self.rng.choice((1, 2, 2, 3, 4)))):
                self.add(free_draft(self.rng, family, self.shop(), self.shape))
                missing -= 1

    def _line(self, kind: ProductType) -> str:
        unused = self.lines_of.get(kind.name)
        if not unused:
            unused = list(self.lexicon.lines)
            self.rng.shuffle(unused)
            self.lines_of[kind.name] = unused
        return unused.pop()

    def _features(self, group: Group) -> tuple[str, ...]:
        if not group.features:
            return ()
        return tuple(self.rng.sample(group.features, min(4, len(group.features))))
