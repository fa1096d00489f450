"""Plays a script in a scene; a change alters the record and leaves the text as it is."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from episode import Episode, Tamper, calls_of
from scenes import Scene

from palio.records import Product, Trajectory

CHANNELS = ("reasoning", "reasoning", "reasoning", "tags", "content")
AUTHOR = "palio, written without sight of any judge"
PADDING = 4
CRUMB = 58
"""Bytes of a crumb at most: about 15 tokens, half of what counts as an inference."""


def play(
    scene: Scene,
    steps: list[str],
    rng: random.Random,
    *,
    key: str,
    change: str = "",
    still: bool = False,
) -> tuple[Trajectory, str]:
    """The trajectory of a script, and where its thinking stands."""
    channel = rng.choice(CHANNELS)
    told = [_told(step, scene) for step in steps]
    episode = Episode(scene, rng, channel=channel, tamper=_tamper(change, scene))
    if change == "unseen":
        told = [(_unseen(operation), text) for operation, text in told]
    if change == "early":
        told = [("none", text) for _, text in told] + [(f"do {op}", "") for op, _ in told]
    if not told[0][0].startswith(("do ", "ask ")):
        episode.open()
    if not still:
        told = _padded(told, rng, after_words=change == "early")
    for place, (operation, text) in enumerate(told):
        _step(episode, operation, text, change, last=place == len(told) - 1)
    return episode.close(key), channel


def _padded(
    told: list[tuple[str, str]], rng: random.Random, *, after_words: bool
) -> list[tuple[str, str]]:
    """The steps with up to `PADDING` wordless searches among them.

    Without them the number of events and messages told the bin in one case of three: runs without
    thinking were short.
    """
    silent = not any(operation.startswith("ask") or text for operation, text in told)
    pages = [f"page {number}" for number in rng.sample(range(2, 6), rng.randint(0, PADDING))]
    pad = [(f"do {page}" if silent else page, "") for page in pages]
    begun = [place for place, (step, _) in enumerate(told) if silent or not step.startswith("do ")]
    cut = rng.randint(begun[0] + 1, max(begun[0] + 1, len(told) - 1))
    if after_words:  # where the words come before any result, so must they come before these
        cut = max(place for place, (_, text) in enumerate(told) if text) + 1
    return [*told[:cut], *pad, *told[cut:]]


def _told(step: str, scene: Scene) -> tuple[str, str]:
    """Operation and text of a step; slots of the text are filled, those of prompts later."""
    operation, _, text = step.partition(">>")
    slots = {**scene.slots, "page": "", "detail": ""}
    return operation.strip(), text.strip().format(**slots)


def _step(episode: Episode, operation: str, text: str, change: str, *, last: bool) -> None:
    verb, _, rest = operation.partition(" ")
    if verb == "do":
        _carry_out(episode, rest)
    elif verb == "ask":
        prompt = rest.format(**episode.scene.slots, page=episode.page, detail=episode.detail)
        episode.ask(prompt, text)
    elif verb == "page":
        if not episode.waiting:
            episode.say("Look further.")
        episode.think("", calls_of(operation, episode.scene))
    elif change == "harness":
        episode.ask(f"Notes of the shopping program: {text}\nReply ok.", "ok")
        _carry_out(episode, operation)
    elif change == "crumbs":
        for crumb in _crumbs(text):
            episode.think(crumb, [])
            episode.say("Go on.")
        _carry_out(episode, operation)
    else:
        episode.think(text, calls_of(operation, episode.scene))
        if change == "early" and not last:
            episode.say("Go on.")


def _carry_out(episode: Episode, operation: str) -> None:
    for tool, arguments in calls_of(operation, episode.scene):
        episode.dispatch(tool, arguments)


def _crumbs(text: str) -> list[str]:
    crumbs = [""]
    for word in text.split(" "):
        if len(f"{crumbs[-1]} {word}".encode()) > CRUMB:
            crumbs.append(word)
        else:
            crumbs[-1] = f"{crumbs[-1]} {word}".strip()
    return crumbs


def _unseen(operation: str) -> str:
    return "again" if operation.startswith("view") else operation


def _tamper(change: str, scene: Scene) -> Tamper | None:
    """A function of a tool's parsed answer; None when results stay as they are."""
    slots = scene.slots
    if change == "price":
        return lambda data: _each(data, {slots["a"].id: {"price": float(slots["y"].price)}})
    if change == "prices":
        a, b = float(slots["a"].price), float(slots["b"].price)
        return lambda data: _each(data, {slots["a"].id: {"price": b}, slots["b"].id: {"price": a}})
    if change == "values":
        return lambda data: _traded(data, scene)
    if change in ("b_gone", "both_gone"):
        gone = ["b"] if change == "b_gone" else ["a", "b"]
        return lambda data: _replaced(data, scene, gone)
    return None


def _each(data: Any, changes: dict[str, dict[str, Any]]) -> Any:
    if not isinstance(data, list):
        return data
    return [
        {name: changes.get(row["product_id"], {}).get(name, value) for name, value in row.items()}
        for row in data
    ]


def _traded(data: Any, scene: Scene) -> Any:
    """Views of a and b show each other's details; prices and ids stay."""
    if not isinstance(data, list) or not any("attributes" in row for row in data):
        return data
    by_id = {row["product_id"]: row for row in data}
    a, b = scene.slots["a"].id, scene.slots["b"].id
    if a not in by_id or b not in by_id:
        return data
    twin = {a: b, b: a}
    return [
        {**by_id[twin.get(row["product_id"], row["product_id"])], "product_id": row["product_id"]}
        for row in data
    ]


def _replaced(data: Any, scene: Scene, gone: list[str]) -> Any:
    """The named rows are other products of the catalogue that the text does not speak of."""
    if not isinstance(data, list):
        return data
    stand_ins = _stand_ins(scene)
    swap = {scene.slots[name].id: product for name, product in zip(gone, stand_ins, strict=False)}
    return [
        {**row, **_shown(swap[row["product_id"]], row)} if row["product_id"] in swap else row
        for row in data
    ]


def _stand_ins(scene: Scene) -> list[Product]:
    page = set(scene.world.index.page(scene.words)) | set(scene.world.index.page(scene.words, 2))
    taken = {scene.slots[name].price for name in ("a", "b", "c")}
    return [
        product
        for name, product in scene.world.catalogue.products.items()
        if name not in page and f"{product.price:g}" not in taken
    ][:2]


def _shown(product: Product, row: dict[str, Any]) -> dict[str, Any]:
    plain = msgspec.to_builtins(product)
    shown = {name: plain.get(name, row[name]) for name in row}
    if "price" in shown and isinstance(row["price"], int):
        shown["price"] = int(product.price)
    return shown
