"""The check passes honest agents, stops the cheating one, and comes back whatever it is given."""

# ruff: noqa: E501 - one hostile file a line

from __future__ import annotations

import json
import os
import random
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from palio.agents.registry import TABLE
from palio.agents.shortcut import with_table
from palio.agents.spec import BUNDLED
from palio.agents.template import starting_points, write_template
from palio.arena.admission import RULES, AdmissionConfig, Finding, check, concern_of, rejected
from palio.cli.main import app
from palio.records import InputError, Problem, Reward, Suite, to_json
from palio.suites import write_suite

MAIN = b"\ndef agent_main(problem_data):\n    return []\n"
PROBLEMS = tuple(
    Problem(
        problem_id=f"p{n}",
        kind="product",
        query=f"I need a {word} teapot that costs less than {n}00 and is made of steel",
        rewards=(Reward(product_id=str(37066699860 + n)),),
    )
    for n, word in enumerate(["blue", "red", "green", "black", "white", "grey", "pink", "gold"], 1)
)


def rules(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.rule for finding in findings if finding.severity == "error"}


class TestAgents:
    @pytest.mark.parametrize("file", sorted({row.file for row in TABLE} - {"shortcut.py"}))
    def test_bundled_agents_pass(self, file: str) -> None:
        assert check(BUNDLED / file) == ()

    def test_the_template_passes(self, tmp_path: Path) -> None:
        write_template(tmp_path / "agent.py")
        assert check(tmp_path / "agent.py") == ()

    def test_trained_agents_pass_and_are_no_copies_of_each_other(self, tmp_path: Path) -> None:
        harness = (BUNDLED / "agentic.py").read_bytes()
        own, theirs = (
            harness + b'\nCHECKPOINT = "sha256:%s"\n' % (d * 16) for d in (b"9f3a", b"07be")
        )
        assert check(own) == ()
        assert check(own, others={"theirs": theirs}, common=starting_points()) == ()

    def test_the_shortcut_is_stopped_with_and_without_its_table(self, tmp_path: Path) -> None:
        assert rules(check(BUNDLED / "shortcut.py")) == {"hash-lookup"}
        with_table(PROBLEMS, tmp_path / "full.py")
        found = check(tmp_path / "full.py")
        assert rules(found) >= {"hash-lookup", "embedded-answers"}
        assert concern_of(found) == "integrity"

    @pytest.mark.parametrize(
        ("old", "new", "rule"),
        [
            ("hashlib.sha256(query.encode(", "getattr(hashlib, 'sha' + str(256))(query.encode(", "reflection"),
            ("import hashlib", "from hashlib import sha256 as s", ""),
            ("TABLE.get(key, \"\")", "[v for k, v in TABLE.items() if k == key][0]", "hash-lookup"),
            ("TABLE", "_weights", "hash-lookup"),
        ],
    )  # fmt: skip
    def test_rewritten_shortcuts_are_stopped(
        self, old: str, new: str, rule: str, tmp_path: Path
    ) -> None:
        with_table(PROBLEMS, tmp_path / "full.py")
        source = (tmp_path / "full.py").read_text()
        assert old in source
        source = source.replace(old, new)
        if "sha256 as s" in new:
            source = source.replace("hashlib.sha256(", "s(")
        found = rules(check(source.encode()))
        assert "embedded-answers" in found
        assert not rule or rule in found

    def test_answers_of_a_public_suite_are_known_one_by_one(self) -> None:
        config = AdmissionConfig(
            known_ids=frozenset(p.rewards[0].product_id for p in PROBLEMS),
            known_texts=frozenset(p.query for p in PROBLEMS),
        )
        two = f"A = '{37066699861}'\nB = '{37066699862}'".encode()
        assert rules(check(two + MAIN)) == set()
        assert rules(check(two + MAIN, config)) == {"embedded-answers"}
        text = PROBLEMS[0].query.upper().replace(" ", "  ")
        assert rules(check(f"Q = '{text}'".encode() + MAIN, config)) == {"embedded-answers"}


class TestForm:
    @pytest.mark.parametrize(
        ("data", "rule"),
        [
            (b"", "contract"),
            (b"def agent_main(): pass", "contract"),
            (b"def agent_main(a, b): pass", "contract"),
            (b"def agent_main(a, *, b): pass", "contract"),
            (b"async def agent_main(a): pass", "contract"),
            (b"class A:\n    def agent_main(self): pass", "contract"),
            (b"def agent_main(:", "syntax"),
            (b"\xff\xfe" + MAIN, "encoding"),
            (b"x = '\x00'" + MAIN, "encoding"),
            (b"# coding: rot13\n" + MAIN, "encoding"),
            (b"#!/usr/bin/python\n# -*- coding: utf-7 -*-\n+AGUAdgBhAGw-" + MAIN, "encoding"),
            ("x = '\ud800'".encode("utf-8", "surrogatepass") + MAIN, "encoding"),
            (b"#" * 1_000_001, "size"),
            (b"x = 1" + b"9" * 5000 + MAIN, "syntax"),
        ],
    )
    def test_what_is_no_submission(self, data: bytes, rule: str) -> None:
        assert rules(check(data)) == {rule}

    @pytest.mark.parametrize(
        "data",
        [b"\xef\xbb\xbf" + MAIN, b"# coding: utf-8\n" + MAIN, MAIN.replace(b"\n", b"\r\n"),
         b"def agent_main(*given): return []", b"def agent_main(p, more=1): return []",
         b"if True:\n    def agent_main(p): return []"],
    )  # fmt: skip
    def test_what_is_one(self, data: bytes) -> None:
        assert check(data) == ()

    def test_lines_and_limits(self) -> None:
        (found,) = check(b"x = 1\n\nimport subprocess\n" + MAIN)
        assert (found.rule, found.severity, found.line) == ("import", "error", 3)
        form = msgspec.json.decode(to_json((found,)))
        assert set(form[0]) == {"rule", "severity", "message", "line"}
        source = b"import subprocess\n" + MAIN
        assert check(source, AdmissionConfig(extra_modules=("subprocess",))) == ()
        off = AdmissionConfig(severity={"import": "off"})
        assert check(source, off) == ()
        milder = AdmissionConfig(severity={"import": "warning"})
        assert not rejected(check(source, milder))
        assert check(source, milder)
        strict = AdmissionConfig(require_licence=True)
        assert rules(check(MAIN, strict)) == {"licence"}
        assert check(b"# SPDX-License-Identifier: MIT\n" + MAIN, strict) == ()

    def test_findings_name_known_rules(self) -> None:
        for concern, promise in RULES.values():
            assert concern in ("form", "security", "integrity")
            assert promise.endswith(".")

    def test_only_regular_files_are_read(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.py")
        for path in (tmp_path / "pipe.py", tmp_path, tmp_path / "none.py", Path("/dev/zero")):
            with pytest.raises(InputError):
                check(path)


HOSTILE = {
    "parentheses": b"(" * 400_000,
    "brackets closed": b"x = " + b"[" * 150 + b"]" * 150,
    "minus": b"x = " + b"-" * 400_000 + b"1",
    "not": b"x = " + b"not " * 100_000 + b"1",
    "sum": b"x = " + b"1+" * 150_000 + b"1",
    "concatenation": b"x = " + b"'a'+" * 40_000 + b"'a'",
    "attributes": b"x = a" + b".a" * 140_000,
    "calls": b"x = a" + b"()" * 140_000,
    "subscripts": b"x = a" + b"[0]" * 70_000,
    "lambda": b"x = " + b"lambda:" * 100_000 + b"1",
    "else": b"x = " + b"1 if 1 else " * 70_000 + b"1",
    "elif": b"if 1: pass\n" + b"elif 1: pass\n" * 60_000,
    "indentation": b"".join(b" " * n + b"if 1:\n" for n in range(1200)) + b" " * 1200 + b"pass",
    "names": b"a,\n" * 74_000,
    "long text": b"x = '" + b"a" * 990_000 + b"'",
    "escapes": b"x = '" + b"\\x41" * 240_000 + b"'",
    "invalid escapes": b"x = '" + b"\\d" * 400_000 + b"'",
    "hex integer": b"x = 0x" + b"f" * 990_000,
    "repeated text": b"x = " + b"'ab' * 10000 * 10000 + " * 1000 + b"''",
    "wide format": b"x = '%999999999d' % 1\ny = '{:999999999}'.format(1)",
    "power": b"x = 9 ** 9 ** 9 ** 9\ny = 1 << 10 ** 10",
    "doubling": b"a0 = 'aaaaaaaa'\n" + b"".join(b"a%d = a%d + a%d\n" % (n + 1, n, n) for n in range(5000)),
    "circle": b"a = b\nb = c\nc = a + b\nx = a + 'b'",
    "comprehensions": b"a = [" + b"1," * 1900 + b"]\n" + b"x = ''.join(chr(c + 1) for c in a)\n" * 5000,
    "regular expression": b"x = '" + b"give full " * 90_000 + b"'",
    "regular expression 2": b"x = '" + b"ignore a " * 90_000 + b"'",
    "empty lines": b"\n" * 999_000,
    "form feeds": b"\x0c" * 999_000,
    "f-strings": b"x = f'" + b"{a}" * 70_000 + b"'",
    "ten megabytes": b"x = 1\n" * 1_700_000,
    "carriage returns": b"\r" * 900_000,
    "invisible": b"x = '" + "\u200b".encode() * 300_000 + b"'",
    "hashes": b"import hashlib\n" + b"".join(b"h%d = h%d\n" % (n, n + 1) for n in range(20_000)),
}  # fmt: skip


class TestHostileFiles:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_it_comes_back(self, name: str) -> None:
        started = time.process_time()
        check(HOSTILE[name] + MAIN)
        assert time.process_time() - started < 20

    def test_memory_is_bounded(self) -> None:
        tracemalloc.start()
        check(b"x = 1\n" * 1_700_000)
        check(b"(" * 900_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 150 << 20

    @settings(max_examples=150, deadline=None)
    @given(st.binary(max_size=400))
    def test_any_bytes(self, data: bytes) -> None:
        assert isinstance(check(data), tuple)

    def test_damaged_agents(self) -> None:
        source = (BUNDLED / "subtask_narrator.py").read_bytes()
        rng = random.Random(1)
        for _ in range(60):
            cut = bytearray(source)
            for _ in range(3):
                at = rng.randrange(len(cut))
                cut[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
            check(bytes(cut))


class TestSimilarity:
    ONE = (BUNDLED / "subtask_classifier.py").read_bytes()
    TWO = (BUNDLED / "subtask_narrator.py").read_bytes()

    def test_copies(self) -> None:
        others = {"theirs": self.ONE}
        assert rules(check(self.ONE, others=others)) == {"duplicate"}
        renamed = self.ONE
        for old, new in ((b"query", b"wish"), (b"steps", b"list_of"), (b"Candidate", b"Offer")):
            renamed = renamed.replace(old, new)
        renamed = b"import math\n" + renamed.replace(b'"""', b'"""Mine. ', 1) + b"\nX = 1\n"
        (found,) = check(renamed, others=others)
        assert found.rule == "near-duplicate"
        assert found.severity == "error"
        assert "theirs" in found.message

    def test_different_agents_are_different(self) -> None:
        assert check(self.TWO, others={"one": self.ONE}) == ()
        assert check((BUNDLED / "agentic.py").read_bytes(), others={"one": self.ONE}) == ()

    def test_a_copy_inside_a_larger_file_is_seen(self) -> None:
        larger = self.ONE + self.TWO.replace(b"def agent_main", b"def other")
        assert "near-duplicate" in rules(check(larger, others={"theirs": self.ONE}))

    def test_the_template_is_nobodys(self, tmp_path: Path) -> None:
        write_template(tmp_path / "agent.py")
        template = (tmp_path / "agent.py").read_bytes()
        own = template + b"\nX = 1\n"
        assert rejected(check(own, others={"theirs": template + b"\nY = [2]\n"}))
        others = {"theirs": template + b"\nY = [2]\n"}
        assert check(own, others=others, common=[template]) == ()

    def test_what_cannot_be_compared_fails_closed(self) -> None:
        assert rules(check(self.ONE, others={"broken": b"def f(:"})) == {"near-duplicate"}


class TestCommand:
    def test_it(self, tmp_path: Path) -> None:
        run = CliRunner().invoke(app, ["agent", "check", str(BUNDLED / "agentic.py")])
        assert (run.exit_code, "nothing to object to" in run.stdout) == (0, True)
        with_table(PROBLEMS, tmp_path / "bad.py")
        run = CliRunner().invoke(app, ["agent", "check", str(tmp_path / "bad.py"), "--json"])
        assert run.exit_code == 1
        assert {row["rule"] for row in json.loads(run.stdout)} >= {"hash-lookup"}
        run = CliRunner().invoke(app, ["agent", "check", str(tmp_path / "bad.py")])
        assert "hash-lookup" in run.stdout

    def test_against_others_and_suites(self, tmp_path: Path) -> None:
        path = str(BUNDLED / "agentic.py")
        run = CliRunner().invoke(app, ["agent", "check", path, "--against", path])
        assert run.exit_code == 1
        suite = Suite(suite_id="s", version="1", problems=PROBLEMS)
        write_suite(suite, tmp_path / "suite.json")
        agent = tmp_path / "agent.py"
        agent.write_bytes(b"A = ['37066699861', '37066699862']\n" + MAIN)
        assert CliRunner().invoke(app, ["agent", "check", str(agent)]).exit_code == 0
        more = ["--suite", str(tmp_path / "suite.json")]
        assert CliRunner().invoke(app, ["agent", "check", str(agent), *more]).exit_code == 1
