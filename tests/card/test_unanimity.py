"""Validators that disagree about a run keep it out; a judge that could not score is silent."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from palio.corpus.build import build
from palio.corpus.config import CorpusConfig
from palio.corpus.gates import agreed
from palio.corpus.opinions import outcomes_by_trajectory, with_opinions
from palio.judging.store import append_verdicts
from palio.records import InputError, JudgeId, OutcomeVerdict, Profile
from palio.rollout.verdicts import Judged
from tests.corpus.making import made_row
from tests.suites.making import made_problem

PROBLEM = made_problem("p", ("7001",))
STRICT = CorpusConfig(unanimous=True)


def opinion(judge: str, says: str, profile: Profile = "oro", version: str = "1") -> OutcomeVerdict:
    """`says` is yes, no or unscored."""
    return OutcomeVerdict(
        trajectory_id="t",
        problem_id="p",
        judge=JudgeId(name=judge, version=version),
        profile=profile,
        status="unscored" if says == "unscored" else "scored",
        success=says == "yes",
    )


def row_with(*outcomes: OutcomeVerdict) -> Judged:
    row = made_row("t", PROBLEM)
    return msgspec.structs.replace(
        row, verdicts=msgspec.structs.replace(row.verdicts, outcomes=outcomes)
    )


@pytest.mark.parametrize(
    ("config", "outcomes", "reason"),
    [
        (CorpusConfig(), (opinion("a", "yes"), opinion("b", "no")), None),
        (STRICT, (opinion("a", "yes"), opinion("b", "yes")), None),
        (STRICT, (opinion("a", "yes"), opinion("b", "no")), "not_unanimous"),
        (STRICT, (opinion("a", "no"), opinion("b", "no")), None),
        (STRICT, (opinion("a", "yes"), opinion("b", "unscored")), None),
        (STRICT, (opinion("a", "yes"), opinion("b", "no", "strict")), None),
        (STRICT, (opinion("a", "yes"), opinion("a", "no", version="2")), "not_unanimous"),
        (STRICT, (), None),
        (CorpusConfig(validators=2), (opinion("a", "yes"),), "too_few_validators"),
        (CorpusConfig(validators=2), (opinion("a", "yes"),) * 2, "too_few_validators"),
        (CorpusConfig(validators=2), (opinion("a", "yes"), opinion("b", "no")), None),
        (
            CorpusConfig(validators=2, unanimous=True),
            (opinion("a", "yes"), opinion("b", "unscored")),
            "too_few_validators",
        ),
        (
            CorpusConfig(unanimous=True, outcome="none"),
            (opinion("a", "yes"), opinion("a", "yes", "strict"), opinion("b", "no", "strict")),
            "not_unanimous",
        ),
    ],
)
def test_agreement(
    config: CorpusConfig, outcomes: tuple[OutcomeVerdict, ...], reason: str | None
) -> None:
    drop = agreed(row_with(*outcomes), config)
    assert (drop.reason if drop else None) == reason


def test_a_row_that_all_call_a_failure_is_a_failure(tmp_path: Path) -> None:
    row = row_with(opinion("a", "no"), opinion("b", "no"))
    funnel = build([row], [PROBLEM], STRICT, tmp_path)
    assert next(s for s in funnel.steps if s.name == "outcome").rejected == {"outcome_failed": 1}


def test_opinions_of_validators_are_joined_once_and_stand_after_ours(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    ours = row_with(opinion("ours", "yes"))
    append_verdicts(path, [opinion("v1", "yes"), opinion("v2", "no"), opinion("ours", "yes")])
    opinions = outcomes_by_trajectory([path, path])
    (joined,) = with_opinions([ours], opinions)
    assert [v.judge.name for v in joined.verdicts.outcomes] == ["ours", "v1", "v2"]
    drop = agreed(joined, STRICT)
    assert drop is not None
    assert drop.detail == "2 of 3 judges say success, not v2 1"
    stranger = made_row("unknown", PROBLEM)
    assert list(with_opinions([stranger], opinions)) == [stranger]
    with pytest.raises(InputError, match="no such verdict file"):
        outcomes_by_trajectory([tmp_path / "none.jsonl"])
