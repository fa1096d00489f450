"""Rows that do or say nearly the same in one cluster are one row, whatever order they came in."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.corpus.candidate import Candidate, Selected
from palio.corpus.config import CorpusConfig
from palio.corpus.conversation import conversation_digest
from palio.corpus.neighbours import (
    Neighbourhood,
    call_sequence,
    distinct,
    shingles,
    similarity,
    written,
)
from palio.corpus.ranking import signals
from palio.corpus.selection import best_of_each_cluster, capped
from palio.records import Message
from tests.corpus.making import PROBLEMS, Turn, conversation, good_turns

BASE = CorpusConfig()
CLUSTERS = {"p000": "c1", "p001": "c1", "p002": "c2"}


class Rows:
    """Candidates and the messages they stand for."""

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self._messages: dict[str, Sequence[Message]] = {}
        self.reads: list[str] = []

    def add(self, name: str, problem: str, turns: Sequence[Turn], score: float = 0.5) -> None:
        messages = conversation(f"ask {problem}", turns)
        self._messages[name] = messages
        self.candidates.append(
            Candidate(
                trajectory_id=name,
                problem_id=problem,
                agent="a",
                place=(0, 0),
                conversation=conversation_digest(messages),
                signals=signals(messages),
                score=score,
            )
        )

    def read(self, candidate: Candidate) -> Sequence[Message]:
        self.reads.append(candidate.trajectory_id)
        return self._messages[candidate.trajectory_id]

    def distinct(self, **fields: object) -> Selected:
        config = msgspec.structs.replace(BASE, **fields)
        return distinct(self.candidates, config, CLUSTERS, self.read)


def names(selected: Selected) -> tuple[list[str], dict[str, str]]:
    kept, dropped = selected
    return [c.trajectory_id for c in kept], {c.trajectory_id: d.reason for c, d in dropped}


def test_by_default_only_equal_conversations_go_and_no_body_is_read() -> None:
    rows = Rows()
    rows.add("b", "p000", good_turns("1", "x"))
    rows.add("a", "p000", good_turns("1", "x"))
    rows.add("c", "p000", good_turns("1", "x y"))
    assert names(rows.distinct()) == (["a", "c"], {"b": "duplicate"})
    assert rows.reads == []


def test_equal_calls_are_one_row_of_a_cluster_and_the_best_ranked_stays() -> None:
    rows = Rows()
    rows.add("plain", "p000", good_turns("1", "one"), score=0.2)
    rows.add("best", "p001", good_turns("1", "something else entirely"), score=0.9)
    rows.add("elsewhere", "p002", good_turns("1", "one"), score=0.1)
    kept, dropped = names(rows.distinct(same_calls=True))
    assert (kept, dropped) == (["best", "elsewhere"], {"plain": "same_calls"})
    assert sorted(rows.reads) == ["best", "plain"]


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        ({"query": "blue mug"}, True),
        ({"q": "blue mug", "page": 1}, True),
        ('{"q": "blue mug", "sort": "default"}', True),
        ({"q": "blue mug", "page": 2}, False),
        ({"q": "blue cup"}, False),
    ],
)
def test_calls_are_compared_by_what_they_ask_for(arguments: object, same: bool) -> None:
    base = conversation("q", [("think", (("find_product", {"q": "blue mug"}, "[]"),), "")])
    other = conversation("q", [("other", (("find_product", arguments, "[]"),), "")])
    assert (call_sequence(base) == call_sequence(other)) is same


def test_rows_without_calls_are_not_equal_to_each_other() -> None:
    rows = Rows()
    rows.add("a", "p000", [("thinking of this", (), "one answer")])
    rows.add("b", "p000", [("thinking of that", (), "another one")])
    assert names(rows.distinct(same_calls=True))[0] == ["a", "b"]


def long_turns(changed: int) -> list[Turn]:
    words = [f"word{n}" for n in range(200)]
    for n in range(changed):
        words[n * 9] = "changed"
    return [(" ".join(words), (("find_product", {"q": "mug"}, "tool text"),), "")]


def test_near_duplicates_are_measured_on_what_the_model_wrote() -> None:
    rows = Rows()
    for changed in (0, 1, 12):
        rows.add(f"changed-{changed:02}", "p000", long_turns(changed), score=1 - changed / 100)
    kept, dropped = names(rows.distinct(near_duplicates=0.9))
    assert (kept, dropped) == (["changed-00", "changed-12"], {"changed-01": "near_duplicate"})
    assert names(rows.distinct(near_duplicates=0.5))[0] == ["changed-00"]
    assert names(rows.distinct(near_duplicates=1.0))[1] == {}


def test_the_reason_names_the_row_that_stayed_and_the_similarity() -> None:
    rows = Rows()
    rows.add("a", "p000", long_turns(0), score=1)
    rows.add("b", "p000", long_turns(1), score=0)
    (_, drop), *_ = rows.distinct(near_duplicates=0.9)[1]
    texts = [shingles(written(conversation("q", long_turns(n)))) for n in (0, 1)]
    assert drop.detail == f"similarity {similarity(*texts):.4f} to a"


def test_tool_results_do_not_make_rows_alike() -> None:
    seen = "the same long list of products " * 50
    turns: list[list[Turn]] = [
        [(thought, (("find_product", {"q": word}, seen),), "")]
        for thought, word in (("first idea here", "cup"), ("quite another plan", "pan"))
    ]
    texts = [written(conversation("q", one)) for one in turns]
    assert "products" not in "".join(texts)
    assert similarity(*map(shingles, texts)) < 0.2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("abc ", max_size=40), min_size=1, max_size=25),
    st.sampled_from([0.1, 1 / 3, 0.5, 0.7, 0.9, 1.0]),
)
def test_the_index_finds_what_comparing_with_every_row_finds(
    texts: list[str], threshold: float
) -> None:
    index, kept = Neighbourhood(threshold), []
    for number, text in enumerate(texts):
        row = shingles(text)
        best = ("", 0.0)
        for name, other in kept:
            found = similarity(row, other)
            if found >= threshold and found > best[1] and len(row):
                best = (name, found)
        assert index.nearest(row) == best
        index.keep(str(number), row)
        kept.append((str(number), row))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_order_of_arrival_decides_nothing(data: st.DataObject) -> None:
    rows = Rows()
    for number in range(data.draw(st.integers(1, 9))):
        note = data.draw(st.sampled_from(["", "a", "a b", "c d e f"]))
        problem = data.draw(st.sampled_from(sorted(CLUSTERS)))
        score = data.draw(st.sampled_from([0.1, 0.5]))
        rows.add(f"t{number}", problem, good_turns(data.draw(st.sampled_from("12")), note), score)
    fields = {"same_calls": data.draw(st.booleans()), "near_duplicates": 0.6}
    first = names(rows.distinct(**fields))
    Random(1).shuffle(rows.candidates)
    assert names(rows.distinct(**fields)) == first
    assert len(first[0]) + len(first[1]) == len(rows.candidates)


def test_the_problems_of_a_cluster_take_turns() -> None:
    rows = Rows()
    for number, score in enumerate((0.9, 0.8, 0.7)):
        rows.add(f"many-{number}", "p000", good_turns("1", str(number)), score)
    rows.add("other", "p001", good_turns("1", "o"), 0.1)
    rows.add("alone", "p002", good_turns("1", "p"), 0.1)
    kept, dropped = names(best_of_each_cluster(rows.candidates, 2, CLUSTERS))
    assert kept == ["alone", "many-0", "other"]
    assert dropped == {"many-1": "over_cluster_cap", "many-2": "over_cluster_cap"}
    assert names(best_of_each_cluster(rows.candidates, 0, CLUSTERS))[1] == {}
    both = msgspec.structs.replace(BASE, per_problem=2, per_cluster=2)
    assert names(capped(rows.candidates, both, CLUSTERS))[1] == {
        "many-1": "over_cluster_cap",
        "many-2": "over_cap",
    }


def test_problems_of_the_fixture_exist() -> None:
    assert set(CLUSTERS) <= {problem.problem_id for problem in PROBLEMS}
