"""After a take-down the corpus is the one that never had the source, and the source stays out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palio.corpus.build import read_pools
from palio.corpus.daily import Day
from palio.corpus.standing import standing
from palio.corpus.takedown import Notice, read_notices, take_down
from palio.records import InputError, Problem, Provenance, from_json
from tests.card.growing import (
    AGENTS,
    CONFIG,
    SOURCES,
    built,
    made_rows,
    published,
    rejects,
    renamed,
    without,
)
from tests.card.test_daily import Judge
from tests.corpus.making import made_problems, made_row
from tests.suites.making import problem_sets


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem_sets(most=6), st.data())
def test_what_is_left_is_the_corpus_that_never_had_the_source(
    tmp_path_factory: pytest.TempPathFactory, problems: tuple[Problem, ...], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("down")
    rows = data.draw(made_rows((*problems, *made_problems(1)), "t"))
    everybody = [row.trajectory.agent for row in rows]
    rows += [renamed(row, agent=data.draw(st.sampled_from(everybody))) for row in rows[:2]]
    kind, names = data.draw(
        st.sampled_from(
            [
                ("agents", AGENTS[:1]),
                ("agents", AGENTS[1:]),
                ("sources", SOURCES[1:2]),
                ("problems", tuple(p.problem_id for p in problems[:2])),
                ("trajectories", ("t0", "t3")),
            ]
        )
    )
    left = without(rows, **{kind: names})
    built(rows, problems, folder / "before")
    before = published(folder / "before")
    if len(left) == len(rows):
        with pytest.raises(InputError, match="no row|nothing"):
            take_down(standing(folder / "before"), Notice(**{kind: names}), problems, folder / "x")
        return
    notice = Notice(**{kind: names}, why="asked for")
    funnel, done = take_down(standing(folder / "before"), notice, problems, folder / "after")
    built(left, problems, folder / "never")
    assert published(folder / "after") == published(folder / "never")
    assert rejects(folder / "after") == rejects(folder / "never")
    assert published(folder / "before") == before
    assert done.rows + done.rejects == len(rows) - len(left)
    assert funnel.taken == len(left)


def test_a_file_name_names_its_rows_and_the_manifest_names_the_version_before(
    tmp_path: Path,
) -> None:
    problems = made_problems(4)
    rows = [made_row(f"t{n}", problems[n], source=SOURCES[n % 3]) for n in range(4)]
    built(rows, problems, tmp_path / "a")
    take_down(standing(tmp_path / "a"), Notice(sources=("day-1.jsonl",)), problems, tmp_path / "b")
    kept = published(tmp_path / "b")["provenance.jsonl"]
    assert [f'"t{n}"'.encode() in kept for n in range(4)] == [True, False, True, True]
    one, other = (
        from_json((tmp_path / name / "manifest.json").read_bytes(), Provenance) for name in "ab"
    )
    assert set(other.inputs) >= {"previous", "problems"}
    assert "trajectories" not in other.inputs
    assert "takedowns.json" in other.outputs
    assert one.counts["in"] == other.counts["in"] + 1
    assert read_pools(tmp_path / "a") == read_pools(tmp_path / "b")
    if importlib.util.find_spec("palio.corpus.certificate"):
        certificates = [(tmp_path / name / "certificate.json").read_bytes() for name in "ab"]
        assert certificates[0] != certificates[1]


def test_what_was_taken_down_does_not_come_back(tmp_path: Path) -> None:
    problems = made_problems(3)
    rows = [made_row(f"t{n}", problems[n], agent=AGENTS[n]) for n in range(3)]
    built(rows, problems, tmp_path / "a")
    take_down(standing(tmp_path / "a"), Notice(agents=("bob",), why="w"), problems, tmp_path / "b")
    again = [made_row("new", problems[1], agent="bob"), made_row("fine", problems[1], agent="ann")]
    for old, new in ("bc", "cd"):
        day = Day(standing(tmp_path / old), problems)
        funnel = day.build(Judge(again)(day.to_judge(r.trajectory for r in again)), tmp_path / new)
        assert (funnel.taken, funnel.kept) == (4, 3)
        assert funnel.steps[1].rejected == {"taken_down": 1}
    (gone,) = rejects(tmp_path / "d")
    assert '"judged": null' in gone
    assert "mug" not in gone
    assert read_notices(tmp_path / "d") == (
        Notice(agents=("bob",), why="w", rows=1, removed=("t1",)),
    )
    assert read_notices(tmp_path / "a") == ()


def test_nothing_named_and_nobody_named_are_refused(tmp_path: Path) -> None:
    problems = made_problems(1)
    built([made_row("t", problems[0])], problems, tmp_path / "a")
    old = standing(tmp_path / "a")
    with pytest.raises(InputError, match="nothing is named"):
        take_down(old, Notice(), problems, tmp_path / "b")
    with pytest.raises(InputError, match="no row"):
        take_down(old, Notice(agents=("nobody",)), problems, tmp_path / "b")
    with pytest.raises(InputError, match="grows from"):
        take_down(old, Notice(agents=("careful",)), problems, tmp_path / "a")
    assert not (tmp_path / "b").exists()


def test_rows_made_of_a_row_by_salvage_go_with_it(tmp_path: Path) -> None:
    problems = made_problems(4)
    rows = [
        made_row("t0", problems[0], agent="ann", emitted=False, richness=0.0),
        made_row("made-of-t0", problems[0], agent="ann+salvage", source="salvage:t0"),
        made_row("t1", problems[1], agent="bob", source=SOURCES[1], success=False),
        made_row("made-of-t1", problems[1], agent="bob+salvage", source="salvage:t1"),
        made_row("t2", problems[2], agent="cid"),
    ]
    config = msgspec.structs.replace(CONFIG, salvaged=True, salvaged_share=1.0)
    built(rows, problems, tmp_path / "a", config=config)
    old = standing(tmp_path / "a")
    for number, (notice, left) in enumerate(
        [
            (Notice(agents=("ann",)), rows[2:]),
            (Notice(trajectories=("t0",)), rows[2:]),
            (Notice(sources=("day-1.jsonl",)), [*rows[:2], rows[4]]),
        ]
    ):
        _, done = take_down(old, notice, problems, tmp_path / f"b{number}")
        assert (done.rows, done.rejects) == (1, 1)
        built(left, problems, tmp_path / f"never{number}", config=config)
        assert published(tmp_path / f"b{number}") == published(tmp_path / f"never{number}")
    day = Day(standing(tmp_path / "b2"), problems)
    again = [made_row("again", problems[1], agent="bob+salvage", source="salvage:t1")]
    funnel = day.build(Judge(again)(day.to_judge(r.trajectory for r in again)), tmp_path / "c")
    assert funnel.steps[1].rejected == {"taken_down": 1}
