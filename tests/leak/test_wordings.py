"""A wording that is held out never trains; who trains on it, or hides that he does, is named."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from palio.cli.main import app
from palio.corpus.build import build, read_pools
from palio.corpus.certificate import read_certificate
from palio.corpus.config import NEVER, CorpusConfig
from palio.corpus.verify import verify
from palio.records import ConfigError, IntegrityError, Problem, Product, Suite, digest, to_json
from palio.suites import write_suite
from palio.world.catalogue import Catalogue, write_catalogue
from tests.corpus.making import made_row, made_trajectory
from tests.leak.making import CONFIG, edited, lines, people, reseal
from tests.leak.test_verify import SHARES, guarded, requests
from tests.suites.making import made_problem

BANKS = ("prose", "ask", "list")
HELD = msgspec.structs.replace(CONFIG, heldout_banks=("list",))


def spoken(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Problems in the words of three banks, in turn."""
    return tuple(msgspec.structs.replace(p, bank=BANKS[n % 3]) for n, p in enumerate(problems))


PROBLEMS = spoken(people(42))


def built(
    folder: Path,
    config: CorpusConfig = HELD,
    problems: tuple[Problem, ...] = PROBLEMS,
    previous: dict[str, str] | None = None,
) -> Path:
    rows = [made_row(f"t{n:04}", problem) for n, problem in enumerate(problems)]
    build(rows, problems, config, folder, previous=previous)
    return folder


def ended(folder: Path, *options: str) -> int:
    return CliRunner().invoke(app, ["corpus", "verify", str(folder), *options]).exit_code


def test_no_row_of_a_held_out_wording_trains_and_the_certificate_says_so(tmp_path: Path) -> None:
    folder, plain = built(tmp_path / "held"), built(tmp_path / "plain", CONFIG)
    bank_of = {problem.problem_id: problem.bank for problem in PROBLEMS}
    rows = {
        pool: Counter(bank_of[row["problem_id"]] for row in lines(folder / f"{pool}.jsonl"))
        for pool in CONFIG.fractions
    }
    assert rows["train"].keys() == rows["development"].keys() == {"prose", "ask"}
    assert rows["heldout"]["list"] == 14
    before, after = read_pools(plain), read_pools(folder)
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {n for n, pool in before.items() if bank_of[n] == "list" and pool != "heldout"}
    rule = read_certificate(folder).rule
    assert rule is not None
    told = msgspec.to_builtins(rule.wordings)
    assert told == {"banks": ("list",), "problems": 14, "units": 14, "mixed": 0, "along": 0}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["config"]["heldout_banks"] == ["list"]
    outcome = verify(folder)
    assert outcome.whole, outcome
    assert outcome.checked["wording"] == 14
    assert ended(folder) == 0


def test_without_the_key_no_file_says_a_word_of_it(tmp_path: Path) -> None:
    folder = built(tmp_path, CONFIG)
    for name in ("certificate.json", "manifest.json"):
        text = (folder / name).read_text()
        assert "wording" not in text
        assert "heldout_banks" not in text
    assert json.loads((folder / "certificate.json").read_text())["rule"].keys() == {
        "salt", "fractions", "earlier", "carried", "version",
    }  # fmt: skip
    assert read_certificate(folder).rule.version == "palio-pools-1"  # type: ignore[union-attr]
    assert verify(folder).whole


def test_a_unit_of_several_wordings_goes_whole_and_is_counted(tmp_path: Path) -> None:
    mixed = [made_problem(f"m{n}", (str(n),), families=("one",), catalogue="") for n in range(3)]
    problems = (*PROBLEMS, *spoken(tuple(mixed)))
    folder = built(tmp_path, problems=problems)
    pools = read_pools(folder)
    assert {pools[problem.problem_id] for problem in mixed} == {"heldout"}
    rule = read_certificate(folder).rule
    assert rule is not None
    told = msgspec.to_builtins(rule.wordings)
    assert told == {"banks": ("list",), "problems": 15, "units": 15, "mixed": 1, "along": 2}
    assert verify(folder).whole


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    requests(),
    st.data(),
    st.sampled_from(["drop", "together"]),
    st.sampled_from(["hash", "stratified"]),
    st.sampled_from([CONFIG.fractions, SHARES]),
)
def test_whatever_is_built_holds_the_law_and_passes_the_verifier_grown_or_not(
    tmp_path: Path,
    plain: tuple[Problem, ...],
    data: st.DataObject,
    weak: str,
    split: str,
    shares: dict[str, float],
) -> None:
    problems = tuple(
        msgspec.structs.replace(p, bank=data.draw(st.sampled_from(BANKS))) for p in plain
    )
    banks = tuple({problems[0].bank, data.draw(st.sampled_from(problems)).bank})
    config = msgspec.structs.replace(
        guarded(weak=weak, split=split), fractions=shares, heldout_banks=banks
    )
    folder = built(tmp_path / "c", config, problems)
    bank_of = {problem.problem_id: problem.bank for problem in problems}
    for pool in ("train", "development"):
        assert not {bank_of[row["problem_id"]] for row in lines(folder / f"{pool}.jsonl")} & {
            *banks
        }
    outcome = verify(folder)
    assert outcome.good, outcome.findings
    hidden = NEVER in read_pools(folder).values() and split == "stratified"
    assert outcome.whole is not hidden
    grown = built(tmp_path / "d", config, problems, previous=read_pools(folder))
    assert read_pools(grown) == read_pools(folder)
    assert verify(grown, folder).good


def forged(folder: Path, **keys: object) -> None:
    """Another configuration, told to everything that states it."""

    def manifest(document: dict[str, dict[str, object]]) -> None:
        document["config"].update(keys)
        if not document["config"].get("heldout_banks"):
            document["config"].pop("heldout_banks", None)
        document["config_digest"] = digest(document["config"])  # type: ignore[assignment]

    edited(folder / "manifest.json", manifest)
    reseal(folder)


def claims_it(folder: Path) -> None:
    """Trains on all wordings, and says that one of them was held out."""
    built(folder, CONFIG)
    told = {"banks": ["list"], "problems": 14, "units": 14, "mixed": 0, "along": 0}
    rule = {"version": "palio-pools-2", "wordings": told}
    edited(folder / "certificate.json", lambda c: c["rule"].update(rule))
    forged(folder, heldout_banks=["list"])


def trains_on_one(folder: Path) -> None:
    """A forger with palio itself: one problem of the wording is put into training, unsaid."""
    pools = read_pools(built(folder))
    other = msgspec.structs.replace(HELD, heldout_banks=("prose",))
    name = next(p.problem_id for p in PROBLEMS if p.bank == "list")
    kept = {p.problem_id: pools[p.problem_id] for p in PROBLEMS if p.bank != "prose"}
    built(folder, other, previous={**kept, name: "train"})
    told = {"banks": ["list"], "problems": 14, "units": 14, "mixed": 0, "along": 0}
    rule = {"earlier": "", "carried": [], "wordings": told}
    edited(folder / "certificate.json", lambda c: c["rule"].update(rule))
    edited(folder / "manifest.json", lambda m: m["inputs"].pop("previous", None))
    forged(folder, heldout_banks=["list"])


def denies_it(folder: Path) -> None:
    """Holds a wording out, and says that nothing was."""
    built(folder)
    edited(folder / "certificate.json", lambda c: c["rule"].pop("wordings"))
    edited(folder / "certificate.json", lambda c: c["rule"].update(version="palio-pools-1"))
    forged(folder, heldout_banks=[])


def other_version(folder: Path) -> None:
    built(folder)
    edited(folder / "certificate.json", lambda c: c["rule"].update(version="palio-pools-1"))
    reseal(folder)


def another_bank(folder: Path) -> None:
    """The certificate names another wording than the configuration."""
    built(folder)
    edited(folder / "certificate.json", lambda c: c["rule"]["wordings"].update(banks=["prose"]))
    reseal(folder)


def other_counts(folder: Path) -> None:
    built(folder)
    edited(folder / "certificate.json", lambda c: c["rule"]["wordings"].update(along=3))
    reseal(folder)


FORGERIES: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "trains on all": ("wording", "stands in train, and its wording 'list' is held", claims_it),
    "trains on one": ("wording", "stands in train, and its wording 'list' is held", trains_on_one),
    "denies it": ("split", "here heldout is the pool", denies_it),
    "an older rule": ("split", "'palio-pools-1' with", other_version),
    "another bank": ("certificate", "not those of the configuration", another_bank),
    "other counts": ("certificate", "states wordings along = 3, found 0", other_counts),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_resealed_forgery_is_named(tmp_path: Path, kind: str) -> None:
    rule, what, forge = FORGERIES[kind]
    forge(tmp_path)
    found = [finding for finding in verify(tmp_path).findings if finding.rule == rule]
    assert any(what in finding.what for finding in found), verify(tmp_path).findings
    if rule == "wording":
        assert any(row.startswith("train.jsonl:") for finding in found for row in finding.rows)
    assert ended(tmp_path) == 1
    assert ended(tmp_path, "--accept-unchecked") == 1


def test_pools_that_are_kept_may_not_let_the_wording_train(tmp_path: Path) -> None:
    pools = read_pools(built(tmp_path / "plain", CONFIG))
    with pytest.raises(
        IntegrityError, match="bank 'list', which is held out, and its unit is kept"
    ):
        built(tmp_path / "held", previous=pools)


def test_the_command_takes_it_from_its_configuration(tmp_path: Path) -> None:
    products = [
        Product(product_id=p.rewards[0].product_id, shop_id="s1", title="Blue mug", price=12.0)
        for p in PROBLEMS
    ]
    write_catalogue(Catalogue.from_products("c", products), tmp_path / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=PROBLEMS), tmp_path / "suite.json")
    runs = [to_json(made_trajectory(f"t{n}", p)) + b"\n" for n, p in enumerate(PROBLEMS)]
    (tmp_path / "runs.jsonl").write_bytes(b"".join(runs))
    (tmp_path / "corpus.toml").write_text('coefficient = 0\nheldout_banks = ["ask", "list"]\n')

    def command(config: str) -> object:
        words = [
            *("corpus", "build", "--trajectories", "runs.jsonl", "--suite", "suite.json"),
            *("--catalogue", "catalogue", "--out", "corpus", "--workers", "1"),
            *("--config", config, "--json"),
        ]
        placed = [
            str(tmp_path / word) if "." in word or word in ("catalogue", "corpus") else word
            for word in words[2:]
        ]
        return CliRunner().invoke(app, [*words[:2], *placed])

    result = command("corpus.toml")
    assert result.exit_code == 0, result.output  # type: ignore[attr-defined]
    bank_of = {problem.problem_id: problem.bank for problem in PROBLEMS}
    trained = {bank_of[row["problem_id"]] for row in lines(tmp_path / "corpus" / "train.jsonl")}
    assert trained == {"prose"}
    assert ended(tmp_path / "corpus") == 0
    (tmp_path / "typo.toml").write_text('heldout_banks = ["lists"]\n')
    error = command("typo.toml").exception  # type: ignore[attr-defined]
    assert isinstance(error, ConfigError)
    assert "no problem is in the words of bank 'lists'" in str(error)
    assert "ask, list, prose" in error.remedy
