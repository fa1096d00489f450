"""Public benchmarks are recognised by hashes; the shipped entry can be written again."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from palio.records import to_json
from palio.suites.files import read_any_suite
from palio.suites.registry import (
    HASH_DIGITS,
    entry_of,
    fingerprint,
    fingerprints,
    known_benchmarks,
    known_problems,
)
from palio.world.synthesis import full_config, synthesise
from tests.suites.making import made_problem, public_problems

ROOT = Path(__file__).parents[2]
TASKS = ("product", "shop", "voucher", "web_simpleqa")


def test_the_900_public_tasks_are_the_first_entry() -> None:
    entry = next(e for e in known_benchmarks() if e.name == "shoppingbench-public")
    assert entry.tasks == 900
    assert {rule: len(keys) for rule, keys in entry.keys.items()} == {
        "product": 1818,
        "spec": 893,
        "text": 900,
    }
    hashes = [key for keys in entry.keys.values() for key in keys]
    assert all(len(key) == HASH_DIGITS and int(key, 16) >= 0 for key in hashes)


@pytest.mark.shared
def test_the_script_writes_the_same_bytes(shared_data: Path, tmp_path: Path) -> None:
    entry = next(e for e in known_benchmarks() if e.name == "shoppingbench-public")
    files = [str(shared_data / f"tasks_shoppingbench_{name}.jsonl") for name in TASKS]
    command = [sys.executable, "scripts/registry_entry.py", entry.name, entry.version]
    more = ["--source", entry.source, "--licence", entry.licence, "--out", str(tmp_path / "e")]
    subprocess.run([*command, *more, *files], cwd=ROOT, check=True, capture_output=True)
    shipped = resources.files("palio.suites.registry") / "shoppingbench-public.json"
    assert (tmp_path / "e").read_bytes() == shipped.read_bytes()


@pytest.mark.shared
def test_no_text_and_no_id_stands_in_the_entry(shared_data: Path) -> None:
    shipped = (resources.files("palio.suites.registry") / "shoppingbench-public.json").read_text()
    for problem in public_problems(shared_data):
        assert problem.query[:40] not in shipped
        assert not any(f'"{reward.product_id}"' in shipped for reward in problem.rewards)


@pytest.mark.shared
def test_every_public_task_is_known_and_white_space_hides_none(shared_data: Path) -> None:
    problems = [
        problem
        for name in TASKS
        for problem in read_any_suite(shared_data / f"tasks_shoppingbench_{name}.jsonl")[0].problems
    ]
    spaced = [
        msgspec.structs.replace(
            problem, problem_id=f"x{n}", query=problem.query.replace(" ", "  ").upper(), rewards=()
        )
        for n, problem in enumerate(problems)
    ]
    assert len({hit.problem_id for hit in known_problems(spaced)}) == 900
    assert {hit.rule for hit in known_problems(spaced)} == {"text"}
    assert len({(hit.problem_id, hit.rule) for hit in known_problems(problems)}) == 2700


def test_synthetic_worlds_are_not_in_it() -> None:
    problems = synthesise(full_config(5, products=1500, problems=150)).problems
    assert known_problems(problems) == ()


def test_products_of_a_synthetic_problem_have_no_hash() -> None:
    plain = made_problem("a", ("7",))
    assert fingerprints(plain)["product"] == (fingerprint("product", "7"),)
    synthetic = made_problem("a", ("7",), families=("f",))
    assert fingerprints(synthetic)["product"] == ()


def test_an_entry_finds_its_own_problems_by_rule() -> None:
    problems = (made_problem("a", ("1",)), made_problem("b", ("2",)))
    entry = entry_of(problems, name="n", version="1", source="s", licence="MIT")
    assert entry.tasks == 2
    assert json.loads(to_json(entry))["keys"]["text"] == sorted(entry.keys["text"])
    other = made_problem("c", ("2",), query="something else", title="else")
    assert [(h.problem_id, h.rule) for h in known_problems([other], [entry])] == [("c", "product")]
    assert len(known_problems(problems, [entry])) == 6
