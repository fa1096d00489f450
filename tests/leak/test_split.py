"""Pools follow from a published rule: exchanged pools are named, and kept ones must say from where.

The forger here has palio itself: he builds a whole corpus with the pools that he wants, so that
every count, digest and similarity of it is right, and then hides how he did it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from palio.cli.corpus import app
from palio.corpus.build import build, read_pools
from palio.corpus.certificate import read_certificate
from palio.corpus.config import NEVER, CorpusConfig
from palio.corpus.verify import Verification, verify
from palio.records import Problem, digest
from tests.corpus.making import made_row
from tests.leak.making import CONFIG, corpus, edited, people, reseal, synthetic
from tests.leak.test_verify import SHARES, guarded, requests
from tests.suites.making import made_problem

PROBLEMS = people(40)
STRATIFIED = msgspec.structs.replace(
    CONFIG, guard=msgspec.structs.replace(CONFIG.guard, split="stratified")
)
OTHER = {"train": "heldout", "heldout": "train", "development": "development"}


def built(
    folder: Path,
    problems: tuple[Problem, ...] = PROBLEMS,
    config: CorpusConfig = CONFIG,
    previous: dict[str, str] | None = None,
) -> Path:
    rows = [made_row(f"t{n:04}", problem) for n, problem in enumerate(problems)]
    build(rows, problems, config, folder, previous=previous)
    return folder


def exchanged(
    folder: Path, config: CorpusConfig = CONFIG, problems: tuple[Problem, ...] = PROBLEMS
) -> dict[str, str]:
    """Build the corpus with train and held-out exchanged in all files; gives the right pools."""
    right = read_pools(built(folder, problems, config))
    built(folder, problems, config, previous={name: OTHER[pool] for name, pool in right.items()})
    return right


def unsaid(folder: Path) -> None:
    """No word of pools that were kept."""
    edited(folder / "certificate.json", lambda c: c["rule"].update(earlier="", carried=[]))
    edited(folder / "manifest.json", lambda m: m["inputs"].pop("previous", None))
    reseal(folder)


def reconfigured(folder: Path, **keys: Any) -> None:
    """Another configuration, told to everything that states it."""

    def manifest(document: dict[str, Any]) -> None:
        document["config"].update(keys)
        document["config_digest"] = digest(document["config"])

    edited(folder / "manifest.json", manifest)
    edited(folder / "certificate.json", lambda c: c["rule"].update(keys))
    reseal(folder)


def named(outcome: Verification) -> list[str]:
    return [finding.what for finding in outcome.findings if finding.rule == "split"]


@pytest.mark.parametrize("config", [CONFIG, STRATIFIED])
def test_pools_that_were_exchanged_in_every_file_are_named(
    tmp_path: Path, config: CorpusConfig
) -> None:
    right = exchanged(tmp_path, config)
    unsaid(tmp_path)
    outcome = verify(tmp_path)
    found = named(outcome)
    assert {finding.rule for finding in outcome.findings} == {"split"}
    assert CliRunner().invoke(app, ["verify", str(tmp_path)]).exit_code == 1
    if config == CONFIG:  # one unit a problem, and development stayed
        moved = {name for name, pool in right.items() if pool != "development"}
        assert len(found) == len(moved) > 20
        assert all(any(f"'{name}'" in what for what in found) for name in moved)
        assert all(finding.rows for finding in outcome.findings)


def test_one_exchanged_problem_is_named_with_its_rows(tmp_path: Path) -> None:
    pools = read_pools(built(tmp_path))
    name = next(name for name, pool in pools.items() if pool == "heldout")
    built(tmp_path, previous=pools | {name: "train"})
    unsaid(tmp_path)
    (finding,) = verify(tmp_path).findings
    assert finding.rule == "split"
    assert finding.what == f"the rule puts {name!r} into heldout, here train is the pool"
    assert finding.rows[0].startswith("train.jsonl:")


FORGERIES: dict[str, Callable[[Path], None]] = {
    "another salt": lambda f: reconfigured(f, salt="other"),
    "other shares": lambda f: reconfigured(
        f, fractions={"train": 0.3, "development": 0.2, "heldout": 0.5}
    ),
    "no shares": lambda f: reconfigured(f, fractions={}),
    "shares of other pools": lambda f: reconfigured(f, fractions={"test": 1.0}),
    "a stratified split": lambda f: (
        edited(f / "certificate.json", lambda c: c["guard"].update(split="stratified")),
        edited(f / "manifest.json", lambda m: m["config"]["guard"].update(split="stratified")),
        reconfigured(f),
    )[0],
    "another rule": lambda f: (
        edited(f / "certificate.json", lambda c: c["rule"].update(version="mine")),
        reseal(f),
    )[0],
    "kept from nowhere": lambda f: (
        edited(f / "certificate.json", lambda c: c["rule"].update(carried=["p001"])),
        reseal(f),
    )[0],
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_rule_that_does_not_give_these_pools_is_named(tmp_path: Path, kind: str) -> None:
    built(tmp_path)
    FORGERIES[kind](tmp_path)
    outcome = verify(tmp_path)
    assert named(outcome), outcome
    assert CliRunner().invoke(app, ["verify", str(tmp_path)]).exit_code == 1


def test_salt_and_shares_are_those_of_the_configuration(tmp_path: Path) -> None:
    built(tmp_path)
    edited(tmp_path / "certificate.json", lambda c: c["rule"].update(salt="other"))
    reseal(tmp_path)
    assert any("salt is not that" in finding.what for finding in verify(tmp_path).findings)


def test_exchanged_pools_that_are_said_to_be_kept_are_no_pass(tmp_path: Path) -> None:
    """Without the corpus that they came from nothing is proved; beside the true one they fall."""
    true = built(tmp_path / "true")
    exchanged(tmp_path / "forged")
    outcome = verify(tmp_path / "forged")
    assert outcome.good
    assert not outcome.whole
    assert "'p000' in" in outcome.unchecked[0]
    ended = CliRunner().invoke(app, ["verify", str(tmp_path / "forged")])
    assert ended.exit_code == 3
    assert "NOT CHECKED: pools" in ended.stdout
    assert "leaks nothing" not in ended.stdout
    found = named(verify(tmp_path / "forged", true))
    assert "the pools were kept from another corpus than this one" in found
    assert any("said to have kept its pool" in what for what in found)


@pytest.mark.parametrize("options", [[], ["--json"], ["--accept-unchecked"]])
def test_an_older_certificate_is_no_pass(tmp_path: Path, options: list[str]) -> None:
    built(tmp_path)
    edited(tmp_path / "certificate.json", lambda c: c.pop("rule"))
    reseal(tmp_path)
    assert read_certificate(tmp_path).rule is None
    ended = CliRunner().invoke(app, ["verify", str(tmp_path), *options])
    assert ended.exit_code == (0 if "--accept-unchecked" in options else 3)
    if "--json" in options:
        told = json.loads(ended.stdout)
        assert (told["good"], told["whole"]) == (True, False)
        assert "older than the statement" in told["unchecked"][0]
    else:
        assert "NOT CHECKED: pools: this certificate is older" in ended.stdout


def test_a_corpus_without_fault_is_whole(tmp_path: Path) -> None:
    outcome = verify(corpus(tmp_path, synthetic(60), runs=1))
    assert outcome.whole, outcome
    assert 20 < outcome.checked["split"] <= 60
    assert CliRunner().invoke(app, ["verify", str(tmp_path)]).exit_code == 0


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    requests(),
    st.data(),
    st.sampled_from(["drop", "together"]),
    st.sampled_from(["hash", "stratified"]),
    st.sampled_from([CONFIG.fractions, SHARES]),
)
def test_a_corpus_that_grew_is_good_and_whole_beside_the_one_before(
    tmp_path: Path,
    problems: tuple[Problem, ...],
    data: st.DataObject,
    weak: str,
    split: str,
    shares: dict[str, float],
) -> None:
    config = msgspec.structs.replace(guarded(weak=weak, split=split), fractions=shares)
    # links of texts may go when others come, and what they joined may then be two
    guard = msgspec.structs.replace(config.guard, lexical=None, grams=None)
    config = msgspec.structs.replace(config, guard=guard)
    known = problems[: data.draw(st.integers(1, len(problems)))]
    pools = read_pools(built(tmp_path / "old", known, config))
    # a problem that joins two pools is refused: leave those out
    fresh = tuple(p for p in problems[len(known) :] if _alone(p, problems))
    built(tmp_path / "new", (*known, *fresh), config, previous=pools)
    hidden = split == "stratified" and NEVER in read_pools(tmp_path / "new").values()
    outcome = verify(tmp_path / "new", tmp_path / "old")
    assert outcome.good, outcome.findings
    assert outcome.whole is not hidden, outcome.unchecked
    if split == "hash":
        assert verify(tmp_path / "new").whole


def _alone(problem: Problem, others: tuple[Problem, ...]) -> bool:
    """Whether it shares a product with at most one other problem, and neither title nor family."""
    ids = {reward.product_id for reward in problem.rewards}
    near = [
        other
        for other in others
        if other is not problem and ids & {reward.product_id for reward in other.rewards}
    ]
    titled = any("same title" in reward.title for reward in problem.rewards)
    return len(near) < 2 and not problem.families and not titled


def test_a_unit_that_grew_shows_whose_pool_it_kept(tmp_path: Path) -> None:
    """Joined by a newcomer with another anchor it stays, and its old member is the witness."""
    config = msgspec.structs.replace(CONFIG, salt="grow")
    old = tuple(made_problem(f"p{n}", (str(n),), query=f"thing {n * 7919}") for n in range(60))
    pools = read_pools(built(tmp_path / "old", old, config))
    new = tuple(
        made_problem(f"q{n}", (str(n), str(1000 + n)), query=f"stuff {n * 104729}")
        for n in range(60)
    )
    built(tmp_path / "new", (*old, *new), config, previous=pools)
    rule = read_certificate(tmp_path / "new").rule
    assert rule is not None
    assert len(rule.carried) > 5
    assert verify(tmp_path / "new").whole
    edited(tmp_path / "new" / "certificate.json", lambda c: c["rule"].update(carried=[]))
    reseal(tmp_path / "new")
    assert len(named(verify(tmp_path / "new"))) == len(rule.carried)
