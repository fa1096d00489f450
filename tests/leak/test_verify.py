"""Every corpus that palio builds passes a verifier that shares no code with the builder."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palio.corpus.build import build, read_pools
from palio.corpus.certificate import read_certificate
from palio.corpus.config import NEVER, CorpusConfig
from palio.corpus.verify import verify
from palio.records import InputError, Problem
from palio.suites.embedding import EmbeddingRule, Vectors, VectorStore
from palio.suites.guard import GuardConfig
from palio.suites.lexical import LexicalRule
from palio.suites.links import Links
from tests.corpus.making import made_row
from tests.leak.making import (
    CONFIG,
    corpus,
    edited,
    inject,
    lines,
    people,
    reseal,
    synthetic,
    wish,
    without_families,
)
from tests.suites.making import made_problem

SOURCE = Path(__file__).parents[2] / "src" / "palio" / "corpus" / "verify"
LOOSE = GuardConfig(
    lexical=LexicalRule(weak_jaccard=0.1, weak_containment=0.3, least=3.0, inside=4.0)
)


def guarded(**fields: object) -> CorpusConfig:
    guard = msgspec.structs.replace(LOOSE, **fields)
    return msgspec.structs.replace(CONFIG, guard=guard)


def test_the_verifier_shares_no_code() -> None:
    allowed = {"msgspec", "pyarrow", *sys.stdlib_module_names}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                own = name == "palio.corpus.verify" or name.startswith("palio.corpus.verify.")
                assert own or name.split(".")[0] in allowed, f"{path}:{node.lineno} {name}"


WORDS = "walnut velvet copper teapot hammock lantern please under 40 60 pesos a for".split()  # noqa: SIM905


@st.composite
def requests(draw: st.DrawFn) -> tuple[Problem, ...]:
    """Problems whose requests, products and families collide often."""
    count = draw(st.integers(1, 14))
    rng = Random(draw(st.integers(0, 10_000)))
    return tuple(
        made_problem(
            f"p{index}",
            tuple(str(rng.randrange(12)) for _ in range(rng.choice((1, 1, 2)))),
            query=" ".join(rng.choices(WORDS, k=rng.randrange(1, 18))),
            title=rng.choice(("", "", "same title")),
            families=rng.choice(((), (), ("one",), ("two",))),
            catalogue=rng.choice(("c1", "c2")),
        )
        for index in range(count)
    )


SHARES = {"train": 0.4, "development": 0.2, "heldout": 0.2, NEVER: 0.2}


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    requests(),
    st.sampled_from(["drop", "together"]),
    st.sampled_from(["hash", "stratified"]),
    st.sampled_from([CONFIG.fractions, SHARES]),
)
def test_whatever_is_built_is_good(
    tmp_path: Path, problems: tuple[Problem, ...], weak: str, split: str, shares: dict[str, float]
) -> None:
    config = msgspec.structs.replace(guarded(weak=weak, split=split), fractions=shares)
    rows = [made_row(f"t{n}", problem) for n, problem in enumerate(problems)]
    build(rows, problems, config, tmp_path / "c")
    outcome = verify(tmp_path / "c")
    assert outcome.good, outcome.findings
    unknown = split == "stratified" and NEVER in read_pools(tmp_path / "c").values()
    assert outcome.whole is not unknown
    certificate = read_certificate(tmp_path / "c")
    assert set(certificate.shared.values()) == {0}
    assert sum(certificate.problems.values()) == len(problems)
    if weak == "together":
        assert certificate.quarantine == ()


def test_real_requests_are_good(tmp_path: Path) -> None:
    problems = without_families(synthetic(90))
    outcome = verify(corpus(tmp_path, problems, runs=1))
    assert outcome.good, outcome.findings
    nearest = read_certificate(tmp_path).nearest
    assert nearest is not None
    assert 0.05 < nearest.jaccard < 0.5


@pytest.mark.parametrize("count", [0, 1])
def test_next_to_nothing_is_good(tmp_path: Path, count: int) -> None:
    assert verify(corpus(tmp_path, people(count))).good


def test_suspects_in_two_pools_are_quarantined_and_their_rows_kept_aside(tmp_path: Path) -> None:
    pairs = people(30)
    twins = tuple(
        made_problem(
            f"q{n:03}",
            (str(80_000 + n),),
            query=f"Is there an almost new {' '.join(p.query.split()[5:9])} in olive corduroy?",
            catalogue="",
        )
        for n, p in enumerate(pairs)
    )
    corpus(tmp_path, (*pairs, *twins))
    certificate = read_certificate(tmp_path)
    assert certificate.suspicions["lexical"] >= 20
    assert certificate.quarantine
    pool_of = read_pools(tmp_path)
    held = {
        row["problem_id"] for pool in CONFIG.fractions for row in lines(tmp_path / f"{pool}.jsonl")
    }
    for each in certificate.quarantine:
        assert pool_of[each.problem] == each.pool != "train"
        assert each.problem not in held
        assert any(pool_of[other] != each.pool for other in each.others)
    funnel = json.loads((tmp_path / "funnel.json").read_text())
    step = next(step for step in funnel["steps"] if step["name"] == "guard")
    assert step["rejected"] == {"quarantined": 2 * len(certificate.quarantine)}
    assert verify(tmp_path).good


def test_nothing_of_a_never_touch_problem_is_published_and_its_return_is_found(
    tmp_path: Path,
) -> None:
    problems = people(40)
    shares = {"train": 0.4, "development": 0.1, "heldout": 0.2, NEVER: 0.3}
    corpus(tmp_path, problems, msgspec.structs.replace(CONFIG, fractions=shares))
    pool_of = read_pools(tmp_path)
    hidden = [problem for problem in problems if pool_of[problem.problem_id] == NEVER]
    assert len(hidden) > 3
    import zstandard

    for path in tmp_path.iterdir():
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(data).read()
        assert not any(problem.query.encode() in data for problem in hidden), path.name
    outcome = verify(tmp_path)
    assert outcome.good, outcome.findings
    assert outcome.notes == (
        "word weights were taken from weights.json: never-touch problems are in them",
    )
    row = lines(tmp_path / "train.jsonl")[0]["trajectory_id"]
    back = msgspec.structs.replace(hidden[0], problem_id="back")
    inject(tmp_path, "train", back, like=row)
    reseal(tmp_path)
    rules = [f for f in verify(tmp_path).findings if f.rule == "never-touch"]
    assert len(rules) == 3  # product, specification and text
    assert all("train.jsonl" in finding.rows[0] for finding in rules)


def test_links_are_kept_and_a_cannot_link_is_checked(tmp_path: Path) -> None:
    problems = people(20)
    twin = made_problem("twin", ("1",), query=f"{problems[0].query} now", catalogue="")
    links = Links(must=(("p001", "p002"),), cannot=(("p000", "twin"),))
    corpus(tmp_path, (*problems, twin), guarded(links=links))
    certificate = read_certificate(tmp_path)
    assert certificate.joins["operator"] == 1
    assert certificate.joins["lexical"] == 0
    assert certificate.clusters == 20
    assert read_pools(tmp_path)["p001"] == read_pools(tmp_path)["p002"]
    assert verify(tmp_path).good
    for name in ("certificate.json", "manifest.json"):
        edited(
            tmp_path / name,
            lambda d: d.get("guard", d.get("config", {}).get("guard"))["links"].update(
                cannot=[["p001", "p002"]]
            ),
        )
    reseal(tmp_path)
    assert any("told apart" in finding.what for finding in verify(tmp_path).findings)


def test_a_folder_without_certificate_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no certificate"):
        read_certificate(tmp_path)
    assert any("certificate.json" in finding.what for finding in verify(tmp_path).findings)


@pytest.mark.shared
def test_the_certificate_names_known_benchmarks(tmp_path: Path, shared_data: Path) -> None:
    from palio.suites.files import read_any_suite

    task_file = shared_data / "tasks_shoppingbench_product.jsonl"
    tasks = read_any_suite(task_file)[0].problems[:30]
    corpus(tmp_path, (*people(30), *tasks), runs=1)
    known = read_certificate(tmp_path).known["shoppingbench-public"]
    assert sum(known["text"].values()) == 30
    assert wish(0) != wish(1)


class Shapes:
    """A model that sees how long a text is and nothing else."""

    model_id = "shapes-1"

    def embed(self, texts: Sequence[str]) -> Vectors:
        angles = np.array([len(text) % 50 for text in texts], np.float32) / 30
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_edges_of_meaning_are_certified_and_checked_as_stated(tmp_path: Path) -> None:
    problems = people(40)
    rule = EmbeddingRule(cosine=0.99999, weak_cosine=0.9999)
    config = guarded(embedding=rule, lexical=None)
    rows = [made_row(f"t{n:02}", problem) for n, problem in enumerate(problems)]
    build(rows, problems, config, tmp_path, vectors=VectorStore(Shapes()))
    certificate = read_certificate(tmp_path)
    assert certificate.model == "shapes-1"
    assert certificate.joins["embedding"] == len(certificate.embedding) > 5
    outcome = verify(tmp_path)
    assert outcome.good, outcome.findings
    assert any("need the model" in note for note in outcome.notes)
    train, heldout = (lines(tmp_path / f"{p}.jsonl")[0]["problem_id"] for p in ("train", "heldout"))
    edge = {"one": train, "other": heldout, "key": "cosine 1", "score": 1.0}
    edited(tmp_path / "certificate.json", lambda c: c["embedding"].append(edge))
    reseal(tmp_path)
    assert any(
        f.rule == "embedding" and f.pair == (train, heldout) for f in verify(tmp_path).findings
    )
