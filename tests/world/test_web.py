"""`web_search` finds the passage that answers; documents come in whole and bad lines are kept."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from palio.cli.main import app
from palio.records import InputError, IntegrityError
from palio.world import FULL, Toolbox, World, read_catalogue, write_catalogue
from palio.world.analyser import analyse
from palio.world.catalogue import Catalogue
from palio.world.documents import (
    DOCUMENT_REJECTS,
    DOCUMENTS,
    Document,
    import_documents,
    read_documents,
    write_documents,
)
from palio.world.importing import import_suite
from palio.world.web import PASSAGE, DocumentIndex, WebResult, passages
from tests.world.shelf import shelf

PAGES = (
    Document("Violins", "A violin has four strings. The bow is made of horsehair.", "u1"),
    Document("Alec Aitken", "Aitken was born in 1895. He taught. He played the violin well.", "u2"),
    Document("Aitken's house", "The house stands in a quiet street of the old town.", "u3"),
    Document("Weather", "It will rain. " * 60 + "Only one storm was called Aitken." + " Sun." * 9),
)


def world(pages: tuple[Document, ...] = PAGES) -> World:
    held = shelf()
    return World.build(Catalogue("shelf", held.products, "full", pages), FULL)


class TestSearch:
    def test_the_text_that_a_model_reads(self) -> None:
        reply = Toolbox(world()).call("web_search", {"query": "Aitken violin", "max_results": "1"})
        assert reply.result == (
            '[{"title":"Alec Aitken","snippet":"Aitken was born in 1895. He taught. '
            'He played the violin well.","url":"u2"}]'
        )
        assert reply.warnings == ()

    def test_the_snippet_is_the_passage_that_fits_best(self) -> None:
        (found,) = DocumentIndex(PAGES).search("storm", 5)
        assert "Only one storm was called Aitken." in found.snippet
        assert len(found.snippet) <= PASSAGE

    def test_order_and_number(self) -> None:
        same = tuple(Document("page", "equal words", f"u{n}") for n in range(30))
        index = DocumentIndex(same)
        assert [hit.url for hit in index.search("equal", 4)] == ["u0", "u1", "u2", "u3"]
        assert len(index.search("equal", 10)) == 10
        assert index.search("", 5) == index.search("the of ?", 5) == index.search("zzz", 5) == ()

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [({}, "empty"), ({"q": 3.5j}, ""), ({"q": ["a"]}, "empty"), ("[", "not a JSON object")],
    )
    def test_mistakes_are_observations(self, arguments: object, word: str) -> None:
        reply = Toolbox(world()).call("web_search", arguments)  # type: ignore[arg-type]
        assert word in reply.error or not word

    @pytest.mark.parametrize("most", [0, 11, -1, "many", True, 2.5])
    def test_a_wrong_number_is_named_and_five_are_given(self, most: object) -> None:
        reply = Toolbox(world()).call("web_search", {"q": "aitken", "max_results": most})
        assert "max_results" in reply.warnings[0]
        assert json.loads(reply.result)

    def test_a_world_without_documents_says_so(self) -> None:
        toolbox = Toolbox(World.build(shelf(), FULL))
        assert "no documents" in toolbox.call("web_search", {"q": "x"}).error
        assert "web_search" not in toolbox.call("zzz", {}).error
        assert "web_search" in Toolbox(world()).call("zzz", {}).error

    def test_another_backend_may_answer(self) -> None:
        class Live:
            digest = "live"

            def search(self, q: str, max_results: int) -> list[WebResult]:
                return [WebResult(f"{q} {max_results}", "s", "u")]

        made = World.build(shelf(), FULL, Live())
        reply = Toolbox(made).call("web_search", {"q": "a", "max_results": 3})
        assert json.loads(reply.result) == [{"title": "a 3", "snippet": "s", "url": "u"}]
        assert made.digest != World.build(shelf(), FULL).digest

    def test_digests(self) -> None:
        plain = World.build(shelf(), FULL)
        assert world(()).digest == plain.digest
        assert world().digest == world().digest != plain.digest
        assert world(PAGES[::-1]).digest != world().digest
        assert world().catalogue.digest == plain.catalogue.digest

    def test_it_can_be_sent_to_a_worker(self) -> None:
        again = pickle.loads(pickle.dumps(world()))
        asked = {"q": "violin"}
        assert Toolbox(again).call("web_search", asked) == Toolbox(world()).call(
            "web_search", asked
        )


class TestPassages:
    @given(st.text(max_size=1500))
    def test_they_are_short_and_lose_no_word(self, text: str) -> None:
        found = passages(text)
        assert all(len(part) <= PASSAGE for part in found)
        if all(len(word) < 40 for word in text.split()) and len(text) < PASSAGE:
            assert {*analyse(" ".join(text.split()))} <= {*analyse(" ".join(found))}

    def test_sentences_are_kept_whole(self) -> None:
        text = " ".join(f"Sentence {n} has a few words more." for n in range(40))
        assert all(part.endswith("more.") for part in passages(text))
        assert passages(text)[3].startswith("Sentence 3 ")


class TestImport:
    LINES = (
        b'{"title": "A", "text": "one", "url": "u"}',
        b'{"title": "B", "snippet": "two", "link": "v", "more": 1}',
        b"",
        b'{"title": "C"}',
        b"{",
        b'{"title": 3, "text": "x"}',
        b'{"title": "A", "text": "one", "url": "u"}',
        b'{"title": "D", "text": "a\\u0000b"}',
        b'{"title": "\xff", "text": "x"}',
    )

    @pytest.mark.parametrize("packed", [False, True])
    def test_bad_lines_are_kept_with_reasons(self, packed: bool, tmp_path: Path) -> None:
        source = tmp_path / "web.jsonl"
        data = b"\n".join(self.LINES)
        source.write_bytes(gzip.compress(data) if packed else data)
        manifest = import_documents(source, tmp_path / "out")
        held, _ = read_documents(tmp_path / "out")
        assert held == (Document("A", "one", "u"), Document("B", "two", "v"))
        assert manifest.counts["in"] == 8
        assert manifest.counts["kept"] == 2
        lines = (tmp_path / "out" / DOCUMENT_REJECTS).read_bytes().splitlines()
        kept = [(row["line"], row["reason"]) for row in map(msgspec.json.decode, lines)]
        expected = [
            (4, "text"),
            (5, "json"),
            (6, "type"),
            (7, "duplicate"),
            (8, "text"),
            (9, "encoding"),
        ]
        assert kept == expected  # fmt: skip

    def test_nothing_and_damage_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError):
            read_documents(tmp_path / "none.jsonl")
        (tmp_path / "bad.jsonl").write_text("{}")
        with pytest.raises(InputError, match="no document"):
            import_documents(tmp_path / "bad.jsonl", tmp_path / "out")
        write_documents(PAGES, tmp_path / "web")
        with (tmp_path / "web" / DOCUMENTS).open("ab") as file:
            file.write(b'{"title": "E", "text": "more"}\n')
        with pytest.raises(IntegrityError):
            read_documents(tmp_path / "web")

    def test_documents_in_a_catalogues_folder_are_its_worlds(self, tmp_path: Path) -> None:
        write_catalogue(shelf(), tmp_path)
        assert read_catalogue(tmp_path)[0].documents == ()
        write_documents(PAGES, tmp_path)
        held, rejects = read_catalogue(tmp_path)
        assert (held.documents, rejects) == (PAGES, ())
        assert World.build(held).web is not None

    def test_the_commands(self, tmp_path: Path) -> None:
        source = tmp_path / "web.jsonl"
        source.write_bytes(b"\n".join(self.LINES))
        out = str(tmp_path / "out")
        run = CliRunner().invoke(app, ["world", "documents", "import", str(source), "--out", out])
        assert (run.exit_code, "kept 2" in run.stdout) == (0, True)
        more = ["world", "documents", "search", out, "two", "--json"]
        found = CliRunner().invoke(app, more)
        assert json.loads(found.stdout) == [{"title": "B", "snippet": "two", "url": "v"}]


@pytest.mark.shared
def test_the_public_web_tasks_are_read_without_a_reject(shared_data: Path) -> None:
    suite, rejects = import_suite(shared_data / "tasks_shoppingbench_web_simpleqa.jsonl")
    assert rejects == ()
    assert len(suite.problems) == 150
    assert {problem.kind for problem in suite.problems} == {"web"}
    assert all(problem.knowledge and problem.rewards[0].title for problem in suite.problems)
    assert suite.problems[0].knowledge == "Violin"
