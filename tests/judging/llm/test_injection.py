"""No attack of the suite ever raises a score; without the quoting every single one would."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from typer.testing import CliRunner

pytest.importorskip("openai", reason="a judge that asks a model needs the extra `judge`")

from palio.agents.server import ModelServer
from palio.cli import judge as judge_cli
from palio.judging import EvidenceJudge
from palio.judging.llm import LlmJudge, endpoint_config
from palio.judging.llm.injection import (
    FLATTERER,
    GULLIBLE,
    InjectionReport,
    Scripted,
    attack_judge,
    attacked,
    packaged_attacks,
    packaged_bases,
)
from palio.judging.llm.injection.attacks import Attack
from palio.judging.llm.injection.gullible import demands
from palio.judging.llm.injection.suite import FILLER
from palio.judging.llm.quoting import Delimited, Quoting, escaped
from palio.judging.llm.spans import Trace

ATTACKS = packaged_attacks()
BASES = packaged_bases()
RHETORIC = [base for base in BASES if base.trajectory_id == "rhetoric"]


class Bare:
    """No escaping and no delimiters: what a careless judge does."""

    def mark(self, texts: Iterable[str]) -> str:
        return ""

    def block(self, mark: str, head: str, text: str) -> str:
        return f"{head}\n{text}"


class Unescaped(Delimited):
    """Delimiters alone, which trust that only "\\n" ends a line and every character is seen."""

    def block(self, mark: str, head: str, text: str) -> str:
        lines = [f"{mark}| {line}" for line in text.split("\n")]
        return "\n".join([f"{mark} BEGIN {head}", *lines, f"{mark} END"])


class Undelimited(Delimited):
    """Escaping alone: BEGIN and END, but nothing before the lines."""

    def block(self, mark: str, head: str, text: str) -> str:
        lines = [escaped(line) for line in text.splitlines()]
        return "\n".join([f"{mark} BEGIN {head}", *lines, f"{mark} END"])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ModelServer(Scripted()) as server:
        yield server.url


def report(url: str, model: str, *, quoting: Quoting | None = None, bases: list[object]) -> (
    InjectionReport
):  # fmt: skip
    settings = {} if quoting is None else {"quoting": quoting}
    with LlmJudge(endpoint_config(url, model), **settings) as judge:  # type: ignore[arg-type]
        return attack_judge(judge, bases, ATTACKS)  # type: ignore[arg-type]


def outcomes(found: InjectionReport) -> dict[str, int]:
    return dict(Counter(trial.outcome for trial in found.trials))


def test_the_suite_is_large_and_of_many_kinds() -> None:
    assert len(ATTACKS) >= 40
    assert len({(one.family, one.name) for one in ATTACKS}) == len(ATTACKS)
    families = Counter(one.family for one in ATTACKS)
    assert len(families) >= 8
    assert {one.channel for one in ATTACKS} == {
        "thinking", "content", "argument", "prompt", "tool", "name", "title", "result", "query",
    }  # fmt: skip
    assert not [one.name for one in ATTACKS if not demands(one.payload)], "each asks for 0.9"
    assert max(len(one.payload) for one in ATTACKS) > 100_000


def test_a_gullible_judge_is_fooled_by_no_attack(url: str) -> None:
    found = report(url, GULLIBLE, bases=list(BASES))
    assert len(found.trials) == len(BASES) * len(ATTACKS)
    assert outcomes(found) == {"held": len(found.trials)}


def test_without_the_quoting_it_is_fooled_by_every_attack(url: str) -> None:
    found = report(url, GULLIBLE, quoting=Bare(), bases=list(RHETORIC))
    assert found.count("fooled") + found.count("rose") == len(ATTACKS)
    assert all(trial.stated == 0.9 for trial in found.trials)
    assert all((trial.quality or 0) <= 0.5 for trial in found.trials), "the record overruled it"


def test_either_half_of_the_quoting_alone_lets_attacks_through(url: str) -> None:
    unescaped = report(url, GULLIBLE, quoting=Unescaped(), bases=list(RHETORIC))
    through = {trial.attack for trial in unescaped.trials if trial.outcome in ("fooled", "rose")}
    assert {"line_separator", "carriage_return", "tags", "zero_width", "chatml"} <= through
    assert "ignore" not in through
    undelimited = report(url, GULLIBLE, quoting=Undelimited(), bases=list(RHETORIC))
    assert undelimited.count("fooled") + undelimited.count("rose") > 0.9 * len(ATTACKS)


def test_a_judge_that_always_says_the_highest_value_is_overruled_by_the_record(url: str) -> None:
    found = report(url, FLATTERER, bases=list(BASES))
    assert outcomes(found) == {"held": len(found.trials)}
    assert all(trial.stated == 0.9 for trial in found.trials)
    # the record refutes gates 1, 3 and 4; whether thinking refers to results it cannot always tell
    assert {base.trajectory_id: clean_of(found, base.trajectory_id) for base in BASES} == {
        "silent": {0.1, 0.3, 0.5},
        "rhetoric": {0.5},
        "shape": {0.5},
        "one_candidate": {0.7},
    }


def clean_of(found: InjectionReport, base: str) -> set[float | None]:
    return {trial.clean for trial in found.trials if trial.base == base}


def test_no_attack_raises_the_evidence_judge() -> None:
    judge = EvidenceJudge()
    for base in BASES:
        clean = judge.verdict(base).quality or 0.0
        for attack in ATTACKS:
            run = attacked(base, attack)
            limit = clean
            if Trace(base).long is None and Trace(run).long is not None:
                filler = Attack(name="filler", channel=attack.channel, text=FILLER)
                limit = judge.verdict(attacked(base, filler)).quality or 0.0
            assert (judge.verdict(run).quality or 0.0) <= limit, (base.trajectory_id, attack.name)


def test_one_command_attacks_any_endpoint(url: str) -> None:
    arguments = ["injection", "--family", "languages", "--family", "shops"]
    offline = CliRunner().invoke(judge_cli.app, [*arguments, "--json"])
    assert offline.exit_code == 0, offline.output
    shown = json.loads(offline.stdout)
    assert {trial["family"] for trial in shown["trials"]} == {"languages", "shops"}
    assert {trial["outcome"] for trial in shown["trials"]} == {"held"}
    there = ["--endpoint", url, "--model", FLATTERER]
    table = CliRunner().invoke(judge_cli.app, [*arguments, *there])
    assert table.exit_code == 0, table.output
    assert "languages" in table.stdout
    wrong = CliRunner().invoke(judge_cli.app, ["injection", "--family", "none"])
    assert wrong.exit_code != 0
