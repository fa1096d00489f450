"""Drafts become products and baskets become problems: ids that tell nothing, titles, texts."""

from __future__ import annotations

import random

from palio.records import Problem, Product, Reward, Voucher
from palio.world.synthesis.baskets import Basket
from palio.world.synthesis.config import SynthesisConfig
from palio.world.synthesis.draft import Draft, Family, Wish
from palio.world.synthesis.wording import Bank, write_request


class Names:
    """Product and shop ids of a catalogue, drawn so that they tell nothing of a product's role.

    Compact ids have four digits and no shop shares one with a product; full ids look like Lazada's.
    """

    def __init__(self, config: SynthesisConfig, products: int, shops: int) -> None:
        rng = random.Random(f"names-{config.seed}")
        if config.world == "compact":
            numbers = rng.sample(range(1000, 10_000), products + shops)
        else:
            numbers = rng.sample(range(10**8, 5 * 10**9), products)
            numbers += rng.sample(range(10_000, 10**7), shops)
        self.products = [str(number) for number in numbers[:products]]
        self.shops = [str(number) for number in numbers[products:]]

    def product(self, draft: Draft) -> str:
        """The id of a numbered draft."""
        return self.products[draft.number]


def publish_product(draft: Draft, names: Names, *, compact: bool) -> Product:
    """The catalogue entry of a draft."""
    rng = random.Random(draft.title_seed)
    family = draft.family
    attributes = dict(draft.attributes)
    if not compact and rng.random() < 0.5:
        attributes["brand"] = (family.brand,)
    number = names.product(draft)
    texts = {} if compact else _texts(rng, draft)
    return Product(
        product_id=number,
        shop_id=names.shops[draft.shop],
        title=family.slug if compact else full_title(rng, family),
        price=draft.price,
        service=draft.services,
        sold_count=draft.sold,
        brand=family.brand if compact else family.brand.capitalize(),
        category=_category(family),
        sku_options={str(n): sku for n, sku in enumerate(draft.skus, 1)},
        attributes=attributes,
        **texts,
    )


def full_title(rng: random.Random, family: Family) -> str:
    """A keyword-stuffed title: brand, line and type first or nearly so, the rest shuffled.

    Members of a family share the brand, the line, the type and the first two features.
    """
    core = [family.brand.capitalize(), family.line.capitalize(), _cased(family.kind.name)]
    words = [_cased(feature) for feature in family.features[:2]]
    words += [_cased(f) for f in family.features[2:] if rng.random() < 0.6]
    words += [_cased(also) for also in family.kind.also if rng.random() < 0.7]
    stuffing = family.group.stuffing
    words += [_cased(word) for word in rng.sample(stuffing, min(len(stuffing), rng.randint(0, 3)))]
    rng.shuffle(words)
    head = rng.random()
    if head < 0.2:
        words.insert(0, _cased(family.kind.name))
    title = " ".join([*core, *words]) if head < 0.85 else " ".join([words[0], *core, *words[1:]])
    return title.upper() if rng.random() < 0.05 else title


def _cased(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in text.split())


def _category(family: Family) -> str:
    leaf = family.kind.leaf or _cased(family.kind.name)
    return f"{family.group.category} > {leaf}"


def _texts(rng: random.Random, draft: Draft) -> dict[str, str]:
    """Descriptions as sellers write them: features, then what the attributes say again."""
    family = draft.family
    facts = [f"{name}:{','.join(values)}" for name, values in draft.attributes.items()]
    features = list(family.features)
    rng.shuffle(features)
    name = f"{family.brand.capitalize()} {family.line.capitalize()}"
    lines = [f"{name} {family.kind.name}.", *(f"{_cased(feature)}." for feature in features)]
    closing = rng.choice(("Ships in one to three days.", "Message us for questions.", ""))
    return {
        "short_description": "; ".join(features[:2]),
        "description": " ".join([*lines, *(f"{fact}." for fact in facts), closing]).strip(),
        "specification": ";".join(facts),
    }


def publish_problem(
    rng: random.Random, basket: Basket, bank: Bank, problem_id: str, catalogue: str, names: Names
) -> Problem:
    """The problem of a basket in a bank's words; `reachable` is not decided yet."""
    shop = basket.kind == "shop"
    query = write_request(rng, bank, basket.wishes, shop=shop, voucher=basket.voucher)
    products = zip(basket.wishes, basket.targets, strict=True)
    return Problem(
        problem_id=problem_id,
        kind=basket.kind,
        query=query,
        rewards=tuple(_reward(wish, target, names) for wish, target in products),
        voucher=basket.voucher,
        difficulty=difficulty(basket),
        families=tuple(target.family.slug for target in basket.targets),
        bank=bank.id,
        catalogue=catalogue,
        title=", ".join(wish.family.kind.name for wish in basket.wishes),
    )


def _reward(wish: Wish, target: Draft, names: Names) -> Reward:
    """All that the wish mentions, and the title. The title is filled in by `with_titles`."""
    skus = {w.trait.name: w.value for w in wish.traits if w.trait.holder == "sku"}
    held = [w for w in wish.traits if w.trait.holder == "attribute"]
    return Reward(
        product_id=names.product(target),
        sku_options=(skus,) if skus else (),
        attributes=tuple({w.trait.name: (w.value,)} for w in held),
        service=wish.services,
        price=(wish.price,) if wish.price else (),
    )


def difficulty(basket: Basket) -> str:
    """One of "easy", "medium" and "hard" by what an agent must keep in mind.

    One point a constraint, two for each further item, one for a voucher and one for each kind of
    decoy beyond the first: up to 3 easy, up to 6 medium.
    """
    points = sum(len(wish.constraints()) for wish in basket.wishes)
    points += 2 * (len(basket.wishes) - 1) + (basket.voucher is not None)
    points += max(0, len({decoy_kind(d.violates) for d in basket.decoys}) - 1)
    return "easy" if points <= 3 else "medium" if points <= 6 else "hard"


def decoy_kind(violates: str) -> str:
    """What a decoy violates in the words of the composition table."""
    return violates.split(":")[0]


def voucher_kind(voucher: Voucher | None) -> str:
    """Type and discount such as "platform fixed", or "none"."""
    return f"{voucher.voucher_type} {voucher.discount_type}" if voucher else "none"
