"""The lexicon's laws: what makes reading exact and brands new."""

from __future__ import annotations

from collections import Counter

import pytest

from palio.records import ConfigError
from palio.world.synthesis.brands import SYLLABLES, invent_brands
from palio.world.synthesis.lexicon import WORLDS, Group, lexicon_words, load_lexicon
from palio.world.synthesis.wording import chosen_banks, filler_words, load_banks, request_words

GROUPS = [(world, group) for world in WORLDS for group in load_lexicon(world).groups]
IDS = [f"{world}-{group.name}" for world, group in GROUPS]


@pytest.mark.parametrize(("world", "group"), GROUPS, ids=IDS)
def test_a_spoken_form_means_one_value_of_its_group(world: str, group: Group) -> None:
    spoken = Counter(f for t in group.traits for forms in t.values.values() for f in forms)
    assert [form for form, count in spoken.items() if count > 1] == []


@pytest.mark.parametrize(("world", "group"), GROUPS, ids=IDS)
def test_names_hold_no_value_of_their_group(world: str, group: Group) -> None:
    spoken = {f for t in group.traits for forms in t.values.values() for f in forms}
    names = [*load_lexicon(world).lines, *group.features]
    names += [n for kind in group.types for n in (kind.name, *kind.spoken)]
    clash = [(n, f) for n in names for f in spoken if f" {f} " in f" {n} "]
    assert clash == []


@pytest.mark.parametrize("world", WORLDS)
def test_a_type_name_is_given_once_and_names_are_lower_case(world: str) -> None:
    kinds = [kind for group in load_lexicon(world).groups for kind in group.types]
    names = Counter(name for kind in kinds for name in (kind.name, *kind.spoken))
    assert [name for name, count in names.items() if count > 1] == []
    assert all(name == name.lower() for name in names)


@pytest.mark.parametrize("world", WORLDS)
def test_lines_are_no_fillers_no_features_and_different(world: str) -> None:
    lexicon = load_lexicon(world)
    features = {word for g in lexicon.groups for f in g.features for word in f.split()}
    kinds = {
        w for g in lexicon.groups for k in g.types for n in (k.name, *k.spoken) for w in n.split()
    }
    assert len(set(lexicon.lines)) == len(lexicon.lines)
    assert not set(lexicon.lines) & (filler_words() | features | kinds)


def test_a_feature_never_holds_a_type_name() -> None:
    lexicon = load_lexicon("full")
    names = [n for g in lexicon.groups for k in g.types for n in (k.name, *k.spoken)]
    features = [f for g in lexicon.groups for f in g.features]
    assert [(f, n) for f in features for n in names if f" {n} " in f" {f} "] == []


def test_brands_are_new_to_each_catalogue_and_never_words() -> None:
    first, second = invent_brands(400, 1, lexicon_words("full")), invent_brands(400, 2, set())
    assert len(set(first)) == 400
    assert len(set(first) & set(second)) < 20
    assert not set(first) & lexicon_words("full")
    assert invent_brands(400, 1, lexicon_words("full")) == first
    assert invent_brands(3, 1, set(first))[0] not in first


def test_the_compact_world_has_few_words() -> None:
    words = set(request_words("compact"))
    assert {"lazmall", "striped", "wallet", "exceeds", "budget", "color"} <= words
    assert len(words) < 320
    assert len(SYLLABLES) == len(set(SYLLABLES)) == 220


def test_an_unknown_world_or_bank_is_named() -> None:
    with pytest.raises(ConfigError, match="moon"):
        load_lexicon("moon")
    with pytest.raises(ConfigError, match="moon"):
        load_banks("moon")
    with pytest.raises(ConfigError, match="compact-prose"):
        chosen_banks("compact", ("compact-haiku",))
