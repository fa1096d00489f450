"""A difference names every row that came, went, moved or changed, and why."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palio.corpus.config import POOLS
from palio.corpus.difference import KINDS, difference
from palio.corpus.rows import read_rows
from palio.corpus.standing import standing
from palio.corpus.takedown import Notice, take_down
from palio.records import InputError, Problem
from tests.card.growing import CONFIG, built, made_rows, renamed
from tests.corpus.making import good_turns, made_problems, made_row
from tests.suites.making import made_problem


def rows_of(folder: Path) -> dict[str, str]:
    return {
        row.trajectory_id: pool for pool in POOLS for row in read_rows(folder / f"{pool}.jsonl")
    }


def test_a_corpus_does_not_differ_from_itself(tmp_path: Path) -> None:
    problems = made_problems(4)
    built([made_row(f"t{n}", problems[n]) for n in range(4)], problems, tmp_path / "a")
    found = difference(tmp_path / "a", tmp_path / "a")
    assert found.empty
    assert found.same == 4
    assert (found.config, found.rejected) == ({}, {})
    assert list(found.tallies) == list(KINDS)


def test_each_kind_of_change_has_its_reason(tmp_path: Path) -> None:
    problems = made_problems(6)
    rows = [made_row(f"t{n}", problems[n], agent=f"agent-{n}") for n in range(5)]
    was = [*rows[:4], made_row("t4", problems[4], success=False)]
    now = [
        rows[0],
        made_row("t1", problems[1], good_turns("1001", "rewritten")),
        made_row("t2", problems[2], success=False),
        made_row("t3", problems[3], quality=0.7),
        rows[4],
        made_row("t5", problems[5], source="chat:x.jsonl"),
    ]
    config = msgspec.structs.replace(CONFIG, coefficient=0.3)
    built(was, problems, tmp_path / "a")
    built(now, problems, tmp_path / "b", config=config)
    found = difference(tmp_path / "a", tmp_path / "b")
    assert [(c.kind, c.trajectory_id, c.reason) for c in found.changes] == [
        ("added", "t4", "was outcome_failed"),
        ("added", "t5", "new"),
        ("removed", "t2", "outcome_failed"),
        ("changed", "t1", "messages"),
        ("changed", "t3", "verdicts"),
    ]
    assert found.same == 1
    assert found.tallies["added"].sources == {"chat:x.jsonl": 1, "rollout": 1}
    assert found.tallies["removed"].reasons == {"outcome_failed": 1}
    assert found.config == {"coefficient": (0.7, 0.3)}
    assert found.rejected == {}
    assert (found.older.rows, found.newer.rows) == (4, 5)


def test_another_salt_moves_and_a_takedown_says_so(tmp_path: Path) -> None:
    problems = made_problems(30)
    rows = [made_row(f"t{n:02}", problem) for n, problem in enumerate(problems)]
    built(rows, problems, tmp_path / "a")
    built(rows, problems, tmp_path / "b", config=msgspec.structs.replace(CONFIG, salt="other"))
    found = difference(tmp_path / "a", tmp_path / "b")
    assert found.tallies["moved"].rows == len(found.problems["moved"]) > 3
    assert all(" to " in change.reason for change in found.changes)
    named = Notice(trajectories=("t00", "t01"))
    take_down(standing(tmp_path / "a"), named, problems, tmp_path / "c")
    gone = difference(tmp_path / "a", tmp_path / "c")
    assert gone.tallies["removed"].reasons == {"taken_down": 2}
    assert gone.same == 28
    unknown = difference(tmp_path / "c", tmp_path / "a")
    assert unknown.tallies["added"].reasons == {"new": 2}
    built(rows[:3], problems[:3], tmp_path / "d")
    fewer = difference(tmp_path / "a", tmp_path / "d")
    assert fewer.tallies["removed"].reasons == {"absent": 27}
    assert len(fewer.problems["removed"]) == 27


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_the_changes_turn_one_corpus_into_the_other(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("diff")
    problems: tuple[Problem, ...] = (*made_problems(4), made_problem("x", ("1000",)))
    old = data.draw(made_rows(problems, "t"))
    new = [row for row in old if data.draw(st.booleans())] + data.draw(made_rows(problems, "u"))
    built(old, problems, folder / "a")
    salt = data.draw(st.sampled_from(["s", "r"]))
    built(new, problems, folder / "b", config=msgspec.structs.replace(CONFIG, salt=salt))
    before, after = rows_of(folder / "a"), rows_of(folder / "b")
    found = difference(folder / "a", folder / "b")
    for change in found.changes:
        if change.kind == "removed":
            del before[change.trajectory_id]
        else:
            before[change.trajectory_id] = change.pool
    assert before == after
    touched = {c.trajectory_id for c in found.changes if c.kind in ("moved", "changed", "added")}
    assert found.same == len(after) - len(touched)
    back = difference(folder / "b", folder / "a")
    assert back.tallies["added"].rows == found.tallies["removed"].rows


def test_a_folder_without_a_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        difference(tmp_path, tmp_path)


def test_an_id_with_other_bytes_is_a_change(tmp_path: Path) -> None:
    problem = made_problems(1)[0]
    row = made_row("t", problem)
    built([row], [problem], tmp_path / "a")
    built([renamed(row, tools=())], [problem], tmp_path / "b")
    (change,) = difference(tmp_path / "a", tmp_path / "b").changes
    assert (change.kind, change.reason) == ("changed", "tools")
