"""A configuration is read from TOML, refuses what makes no sense, and has one digest."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from palio.corpus.config import CorpusConfig, read_config
from palio.records import ConfigError


def test_toml_overrides_defaults(tmp_path: Path) -> None:
    path = tmp_path / "corpus.toml"
    path.write_text(
        'agentic = 0.8\naxes = ["agentic", "mixed"]\noutcome = "strict"\nper_problem = 7\n'
        "[weights]\ndepth = 0.5\n[fractions]\ntrain = 0.5\nheldout = 0.5\n"
    )
    config = read_config(path)
    assert config.agentic == 0.8
    assert config.axes == ("agentic", "mixed")
    assert config.weights.depth == 0.5
    assert config.weights.verification == 0.4
    assert config.fractions == {"train": 0.5, "heldout": 0.5}
    assert config.coefficient == 0.7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agentik = 0.8", "agentik"),
        ("agentic = 1.5", "outside 0 to 1"),
        ("agentic = nan", "outside 0 to 1"),
        ('agentic = "much"', "agentic"),
        ("agentic = 0.1", "below agentic"),
        ('axes = ["agent"]', "axes"),
        ("token_budget = 0", "positive"),
        ("near_duplicates = 1.1", "outside 0 to 1"),
        ("validators = 0", "at least 1"),
        ('scrub = ["names"]', "scrub"),
        ("[fractions]\ntrain = 0.5", "fractions"),
        ("[fractions]\ntrain = 0.5\ntest = 0.5", "'test'"),
        ("[weights]\nlength = 1.0", "length"),
        ('pipeline = "0"', "pipeline 0"),
        ("agentic = ", "TOML|value|Invalid"),
        ('heldout_banks = [""]', "imported"),
        ('heldout_banks = ["b"]\n[fractions]\ntrain = 0.5\ndevelopment = 0.5', "no pool to go"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "corpus.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.toml")


def test_the_digest_covers_every_field() -> None:
    base = CorpusConfig()
    seen = {base.digest()}
    changes: dict[str, object] = {
        "agentic": 0.8, "subtask": 0.2, "axes": (), "evidence": (), "outcome": "none",
        "coefficient": 0.6, "grounding": False, "thinking": 0.0, "format": False,
        "claims": False,
        "token_budget": 1, "bytes_per_token": 2.0, "count_tools": False, "terminal_tools": (),
        "per_problem": 1, "weights": msgspec.structs.replace(base.weights, depth=0.0),
        "edges": (), "guard": msgspec.structs.replace(base.guard, lexical=None),
        "fractions": {"train": 1.0}, "salt": "x", "keep_bodies": False,
        "unanimous": True, "validators": 2, "per_cluster": 1, "same_calls": True,
        "near_duplicates": 0.9, "scrub": ("secrets",), "phone_region": "",
        "oracle_search": False, "salvaged": True, "salvaged_share": 0.5,
        "heldout_banks": ("compact-list",),
        "pipeline": "1",
    }  # fmt: skip
    assert changes.keys() == {field.name for field in msgspec.structs.fields(CorpusConfig)}
    for name, value in changes.items():
        seen.add(msgspec.structs.replace(base, **{name: value}).digest())
    assert len(seen) == len(changes) + 1


def test_without_held_out_wordings_nothing_is_other_than_it_was(tmp_path: Path) -> None:
    """The digest is that of the version before there was the key: published runs name it."""
    before = "sha256:bebafb4424070b3369522033a72d823e3be55a981312e525f1a56a346a231c64"
    assert CorpusConfig().digest() == before
    assert CorpusConfig(heldout_banks=()).digest() == before
    assert "heldout_banks" not in msgspec.to_builtins(CorpusConfig())
    path = tmp_path / "corpus.toml"
    path.write_text('heldout_banks = ["b", "a", "b"]')
    named = read_config(path)
    assert named.banks == ("a", "b")
    assert named.digest() == CorpusConfig(heldout_banks=("a", "b")).digest() != before
