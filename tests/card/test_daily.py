"""A corpus that grew day by day is the corpus of one build, and only what is new is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palio.corpus.build import read_pools
from palio.corpus.daily import Day
from palio.corpus.standing import standing
from palio.records import (
    InputError,
    IntegrityError,
    Problem,
    Provenance,
    ResumeError,
    Trajectory,
    from_json,
)
from palio.rollout.verdicts import Judged
from tests.card.growing import CONFIG, built, made_rows, published, rejects, renamed
from tests.corpus.making import good_turns, made_problems, made_row
from tests.suites.making import problem_sets

LAW = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = st.permutations(["c", "b", "a"])
"""Prefixes of a day's ids: of equal rows the one with the smaller id stays, so that with ascending
names hardly any row of a later day would displace one of an earlier day."""


class Judge:
    """Gives the verdicts that the made rows came with, and remembers whom it judged."""

    def __init__(self, *days: list[Judged]) -> None:
        self._rows = {row.trajectory.trajectory_id: row for rows in days for row in rows}
        self.judged: list[str] = []

    def __call__(self, trajectories: Iterator[Trajectory]) -> Iterator[Judged]:
        for trajectory in trajectories:
            self.judged.append(trajectory.trajectory_id)
            yield self._rows[trajectory.trajectory_id]


def grown(
    folder: Path, out: Path, problems: tuple[Problem, ...], rows: list[Judged], judge: Judge
) -> Day:
    day = Day(standing(folder), problems)
    day.build(judge(day.to_judge(row.trajectory for row in rows)), out)
    return day


@LAW
@given(problem_sets(most=3), st.data())
def test_days_are_one_build(
    tmp_path_factory: pytest.TempPathFactory, problems: tuple[Problem, ...], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("days")
    strangers = (*problems, *made_problems(1))
    names = data.draw(NAMES)
    days = [data.draw(made_rows(strangers, name, least=3, most=6)) for name in names]
    every = [row for rows in days for row in rows]
    judge = Judge(*days)
    built(days[0], problems, folder / "0")
    for number in (1, 2):
        grown(folder / str(number - 1), folder / str(number), problems, days[number], judge)
    built(every, problems, folder / "whole")
    assert published(folder / "2") == published(folder / "whole")
    assert rejects(folder / "2") == rejects(folder / "whole")
    assert judge.judged == [row.trajectory.trajectory_id for rows in days[1:] for row in rows]
    one, other = (
        from_json((folder / name / "manifest.json").read_bytes(), Provenance)
        for name in ("2", "whole")
    )
    assert one.inputs["trajectories"] == other.inputs["trajectories"]
    assert one.counts == other.counts


@LAW
@given(st.data())
def test_days_with_new_problems_are_one_build_that_keeps_the_split(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("days")
    problems = made_problems(6)
    known = problems[: data.draw(st.integers(1, 6))]
    names = data.draw(NAMES)[:2]
    first, second = (data.draw(made_rows(problems, name, least=3, most=6)) for name in names)
    judge = Judge(first, second)
    built(first, known, folder / "first")
    day = grown(folder / "first", folder / "second", problems, second, judge)
    pools = read_pools(folder / "first")
    built([*first, *second], problems, folder / "whole", previous=pools)
    assert published(folder / "second") == published(folder / "whole")
    assert rejects(folder / "second") == rejects(folder / "whole")
    ids = {problem.problem_id for problem in known}
    late = [row for row in first if row.trajectory.problem_id not in ids]
    assert day.revived == len(late)
    assert len(judge.judged) == len(late) + len(second)
    after = read_pools(folder / "second")
    assert {name: after[name] for name in pools} == pools


def test_what_is_known_is_neither_judged_nor_counted_again(tmp_path: Path) -> None:
    problems = made_problems(3)
    rows = [made_row(f"t{n}", problems[n % 3], success=n != 1) for n in range(6)]
    judge = Judge(rows)
    built(rows[:4], problems, tmp_path / "a")
    day = grown(tmp_path / "a", tmp_path / "b", problems, rows, judge)
    assert (day.skipped, judge.judged) == (4, ["t4", "t5"])
    built(rows, problems, tmp_path / "whole")
    assert published(tmp_path / "b") == published(tmp_path / "whole")


def test_a_better_row_displaces_an_older_one_which_is_kept_in_the_rejects(tmp_path: Path) -> None:
    problem = made_problems(1)[0]
    hasty = [turn for turn in good_turns("1000", "x") if turn[0] != "look at 1000."]
    plain = [
        made_row(f"plain-{n}", problem, [(f"{n} said {n * 7} apart", *hasty[0][1:]), *hasty[1:]])
        for n in range(2)
    ]
    best = made_row("best", problem, good_turns("1000", "the deeper one"))
    built(plain, [problem], tmp_path / "a")
    grown(tmp_path / "a", tmp_path / "b", (problem,), [best], Judge([best]))
    text = published(tmp_path / "b")
    assert sum(b'"best"' in text[f"{pool}.jsonl"] for pool in ("train", "development", "heldout"))
    (dropped,) = rejects(tmp_path / "b")
    assert '"reason": "over_cap"' in dropped
    assert '"messages"' in dropped
    built([*plain, best], [problem], tmp_path / "whole")
    assert rejects(tmp_path / "b") == rejects(tmp_path / "whole")


def test_the_old_version_stays_and_bad_starts_are_refused(tmp_path: Path) -> None:
    problems = made_problems(2)
    rows = [made_row("t", problems[0])]
    built(rows, problems, tmp_path / "a")
    before = published(tmp_path / "a")
    with pytest.raises(InputError, match="grows from"):
        grown(tmp_path / "a", tmp_path / "a", problems, rows, Judge(rows))
    with pytest.raises(InputError, match="in no suite"):
        Day(standing(tmp_path / "a"), problems[:1])
    with pytest.raises(InputError, match="no corpus manifest"):
        standing(tmp_path)
    other = msgspec.structs.replace(CONFIG, coefficient=0.1, salt="x")
    with pytest.raises(ResumeError, match="coefficient, salt"):
        standing(tmp_path / "a", other)
    assert standing(tmp_path / "a", CONFIG).config == CONFIG
    assert published(tmp_path / "a") == before
    with (tmp_path / "a" / "train.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(IntegrityError, match="differs from the manifest"):
        standing(tmp_path / "a")


def test_without_bodies_a_corpus_grows_only_while_nothing_was_outranked(tmp_path: Path) -> None:
    problem = made_problems(1)[0]
    slim = msgspec.structs.replace(CONFIG, keep_bodies=False)
    rows = [made_row("a", problem), made_row("failed", problem, success=False)]
    built(rows, [problem], tmp_path / "a", config=slim)
    grown(tmp_path / "a", tmp_path / "b", (problem,), [], Judge())
    copies = [renamed(rows[0], trajectory_id=f"copy-{n}") for n in range(2)]
    built(copies, [problem], tmp_path / "c", config=slim)
    with pytest.raises(InputError, match="keep_bodies"):
        grown(tmp_path / "c", tmp_path / "d", (problem,), [], Judge())
