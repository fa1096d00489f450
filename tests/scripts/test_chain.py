"""What is told of the checkpoint that ships: made by a script, of these weights, on these pages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from scripts.chain import Chain, card, check_pools, trained_on

from palio.evaluate.mainjob.config import MainJobConfig, read_config
from palio.records import InputError, digest
from palio.suites import check_disjoint
from palio.train.card import CARD, OUTSIDE
from palio.train.checkpoint import BUNDLED, MANIFEST, checkpoint_folder
from palio.train.serving import checkpoint_digests
from palio.world.artefacts import read_manifest
from tests.mainjob.silent import SilentReporter

ROOT = Path(__file__).parents[2]
TOLD: dict[str, Any] = json.loads((ROOT / "docs" / "chain.json").read_bytes())
SUITES = {"heldout": 702, "fresh": 600, "reworded": 300}
ORDER = ("heldout", "reworded", "fresh")
KINDS = ("product", "shop", "voucher")
INTENTS = ("overall", *KINDS)
SMALL = MainJobConfig(
    seed=3,
    catalogues=1,
    products=300,
    problems=60,
    race_problems=3,
    reworded=6,
    evaluated=6,
    sampled=3,
    samples=2,
    train_share=0.7,
    development_share=0.1,
)


@pytest.fixture(scope="module")
def shipped() -> Path:
    return checkpoint_folder(Path(BUNDLED))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(SMALL, tmp_path_factory.mktemp("chain"), SilentReporter(), fresh=6)


def test_three_suites_are_measured_with_floors_beside_them(small: Chain, shipped: Path) -> None:
    exams = small.exams()
    check_disjoint({name: exam.problems for name, exam in exams.items()})
    told = small.measure(shipped, exams)
    assert told.keys() == TOLD.keys()
    assert told["checkpoint"] == checkpoint_digests(shipped)
    for name, suite in told["suites"].items():
        assert suite.keys() == TOLD["suites"][name].keys()
        assert suite["problems"] == digest(list(exams[name].problems))
        for intent in INTENTS:
            rate, floor = suite["greedy"][intent], suite["floors"]["first-hit"][intent]
            assert rate["successes"] == round(rate["rate"] * rate["n"])
            assert rate["n"] == floor["n"] == suite["minus_first_hit"][intent]["n"] > 0
            gap = suite["minus_first_hit"][intent]["difference"]
            assert gap == pytest.approx(rate["rate"] - floor["value"], abs=1e-5)
    drawn = told["suites"]["heldout"]["sampled"]
    assert drawn["pass_at"].keys() == {"1", "2"}
    assert drawn["pass_at"]["2"]["samples"] == 6
    rows = (small.out / "heldout-measured" / "greedy" / "rollouts.jsonl").stat()
    again = Chain(SMALL, small.out, SilentReporter(), fresh=6)
    assert again.measure(shipped, again.exams()) == told
    assert (small.out / "heldout-measured" / "greedy" / "rollouts.jsonl").stat() == rows


def test_worlds_of_another_run_are_refused(small: Chain, shipped: Path) -> None:
    with pytest.raises(InputError, match="trained on the problems sha256:216a8b.*, these worlds"):
        check_pools(small.ground, shipped)


def test_what_is_told_is_of_the_weights_that_ship_and_of_its_run(shipped: Path) -> None:
    manifest = read_manifest(shipped / MANIFEST)
    assert manifest is not None
    assert TOLD["checkpoint"] == checkpoint_digests(shipped)
    assert TOLD["training_problems"] == manifest.inputs["problems"]
    assert TOLD["made"]["config"] == digest(read_config(Path("chain"), 31))
    asked = {name: suite["greedy"]["overall"]["n"] for name, suite in TOLD["suites"].items()}
    assert asked == SUITES


def shown(number: dict[str, Any], bold: str = "") -> str:
    """A rate or mean as the pages have it: percent, and its interval."""
    value = number.get("rate", number.get("value"))
    low, high = 100 * number["low"], 100 * number["high"]
    return f"{bold}{100 * value:.1f}{bold} ({low:.1f}-{high:.1f})"


def row(name: str) -> str:
    """The cells of a suite in the table of docs/training.md, from "all" to pass@8."""
    suite = TOLD["suites"][name]
    drawn = suite.get("sampled", {"pass_at": {}})["pass_at"]
    cells = [shown(suite["greedy"]["overall"], "**")]
    cells += [shown(suite["greedy"][kind]) for kind in KINDS]
    cells += [shown(drawn[k]) if drawn else "" for k in ("1", "8")]
    return " | ".join(cells).strip().replace("|  |", "| |")


def floor_row() -> str:
    """The same of the first hit: its cells tell held-out / reworded / fresh."""
    floors = [TOLD["suites"][name]["floors"]["first-hit"] for name in ORDER]
    cells = [[f"{100 * each[intent]['value']:.1f}" for each in floors] for intent in INTENTS]
    return " | ".join(" / ".join(values) for values in cells)


@pytest.mark.parametrize("name", SUITES)
def test_the_page_shows_the_numbers_of_the_file(name: str) -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    lines = [line for line in page.splitlines() if row(name) in line]
    assert len(lines) == 1, f"no row of {name}: {row(name)}"
    assert lines[0].startswith("| the whole chain")
    assert floor_row() in page
    assert "(chain.json)" in page


def test_readme_tells_the_same_numbers() -> None:
    readme = " ".join((ROOT / "README.md").read_text("utf-8").replace("**", "").split())
    for name in SUITES:
        percent, interval = shown(TOLD["suites"][name]["greedy"]["overall"]).split(" ")
        assert f"{percent} % {interval.removesuffix(')')}" in readme, name


def test_the_page_tells_the_gap_to_the_first_hit() -> None:
    page = " ".join((ROOT / "docs" / "training.md").read_text("utf-8").split())
    gaps = TOLD["suites"]["heldout"]["minus_first_hit"]
    told = gaps["overall"]
    low, high = 100 * told["low"], 100 * told["high"]
    said = f"minus the first hit +{100 * told['difference']:.1f} ({low:.1f} to {high:.1f})"
    assert said in page
    assert all(gap["low"] > 0 for gap in gaps.values()), "above it in every intent"


def test_the_card_tells_the_same_numbers_with_their_pools(shipped: Path) -> None:
    card = (shipped / CARD).read_text("utf-8")
    rows = [line for line in card.splitlines() if line.startswith("| greedy ASR")]
    wanted = [
        f"| greedy ASR (oro), {intent}, {name}-31, 7 tools, titles by {suite['encoder']} "
        f"| {100 * rate['rate']:.1f} % | {100 * rate['low']:.1f} to {100 * rate['high']:.1f} "
        f"| {rate['n']} | {'heldout' if name == 'heldout' else OUTSIDE} |"
        for name, suite in TOLD["suites"].items()
        for intent, rate in suite["greedy"].items()
    ]
    assert rows == wanted
    assert TOLD["checkpoint"]["weights"] in card
    assert "do not tell which weights" not in card


def test_a_card_is_renewed_with_what_was_measured(
    small: Chain, shipped: Path, tmp_path: Path
) -> None:
    lone = tmp_path / "lone"
    shutil.copytree(shipped, lone)
    exams = small.exams()
    small.measure(shipped, exams)
    told = card(small, lone, exams).read_text("utf-8")
    assert [f"{name}-3, 7 tools" in told for name in SUITES] == [True] * 3
    assert "-31, 7 tools" not in told


@pytest.mark.slow
def test_the_problems_are_made_anew_from_the_seed(tmp_path: Path, shipped: Path) -> None:
    chain = Chain(read_config(Path("chain"), 31), tmp_path, SilentReporter())
    check_pools(chain.ground, shipped)
    for name, exam in chain.exams().items():
        told = TOLD["suites"][name]
        worlds = {name: world.digest for name, world in sorted(exam.worlds.items())}
        assert (digest(list(exam.problems)), digest(worlds)) == (told["problems"], told["worlds"])
    assert trained_on(chain.ground) == TOLD["training_problems"]
