"""The report is one file that runs nothing and loads nothing, whatever agents wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from msgspec.structs import replace

from palio.broker.pin import ModelPin
from palio.evaluate.reading import example_view, marked
from palio.evaluate.report import render_report, write_report
from palio.evaluate.report_data import ReportData, StageResult, race_rows
from palio.evaluate.results import summarise
from palio.records import Fault, FaultCode
from tests.evaluate.sample import CLUSTERS, HOSTILE, PROBLEMS, example, report_data, result


class Page(HTMLParser):
    """Tags, attributes and text of a page, and whether every tag is closed."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr", "path", "use", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def hostile_data() -> ReportData:
    plain = report_data()
    attacked = example(HOSTILE, False, thinking=HOSTILE, query=HOSTILE, answer=[HOSTILE, 1])
    return msgspec.structs.replace(
        plain,
        title=HOSTILE,
        lead=HOSTILE,
        stages=tuple(
            msgspec.structs.replace(stage, name=HOSTILE, note=HOSTILE) for stage in plain.stages
        ),
        examples=(*plain.examples, attacked),
        caveats=(HOSTILE,),
    )


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(report_data())


def test_every_section_is_there_in_order(page: str) -> None:
    order = ["results", "paired", "sampling", "behaviour", "plainly", "race", "corpus"]
    order += ["training", "world", "examples", "provenance"]
    assert re.findall(r'<section id="([a-z]+)"', page) == order
    assert Page(page).open == []


def test_the_table_shows_rates_intervals_and_n(page: str) -> None:
    data = report_data()
    greedy = data.stages[1].greedy
    assert greedy is not None
    rate = greedy.overall.asr["oro"]
    words = " ".join(" ".join(Page(page).words).split())
    assert rate.rate is not None
    shown = f"{100 * rate.rate:.1f} %"
    interval = f"{100 * rate.low:.1f}\N{EN DASH}{100 * rate.high:.1f}"
    assert f"{shown} {interval} n {rate.n}" in words
    assert "first-hit" in words
    assert "p, Holm" in words


def test_hostile_text_is_shown_as_text(page: str) -> None:
    attacked = render_report(hostile_data())
    parsed = Page(attacked)
    assert not {"script", "img", "iframe", "object", "link"} & set(parsed.tags)
    assert not parsed.handlers
    assert all(link.startswith("#") for link in parsed.links)
    assert HOSTILE in "".join(parsed.words)
    assert HOSTILE not in attacked
    assert parsed.open == []
    assert "default-src 'none'" in page


def test_an_empty_report_renders() -> None:
    text = render_report(ReportData(title="nothing yet", lead="no stage has run"))
    assert "nothing yet" in text
    assert "<svg" not in text


def test_writing_is_whole_and_survives_lone_surrogates(tmp_path: Path) -> None:
    odd = ReportData(title="odd", lead="broken \ud800 text")
    path = write_report(odd, tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    assert text.rstrip().endswith("</html>")
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_an_example_ties_calls_to_results_and_marks_evidence() -> None:
    view = example_view(example("A success", True), 1)
    first, second, harness = view["turns"]
    assert [row["target"] for row in first["calls"][0]["rows"]] == [True, False]
    assert first["calls"][0]["warnings"] == ("one filter was ignored",)
    assert [piece["text"] for piece in second["thinking"] if piece["marked"]] == ["4821"]
    assert harness["harness"]
    assert harness["calls"][0]["tool"] == "terminate"
    assert view["gates"][2]["anchor"] == 2
    assert "coefficient 1" in view["quality"]


def test_marks_are_whole_ids_only() -> None:
    pieces = marked("4821 14821 48210 (4821)", {"4821"})
    assert [piece["text"] for piece in pieces if piece["marked"]] == ["4821", "4821"]
    assert "".join(piece["text"] for piece in pieces) == "4821 14821 48210 (4821)"


def test_standings_become_rows_with_their_kind_and_place() -> None:
    from palio.arena.standings import StandingEntry, standings

    entries = [
        StandingEntry(
            agent=agent,
            version="1",
            problem_id=f"p{i}",
            status="counted",
            success=float(i < wins),
            quality=0.9,
            eligible=agent != "oracle",
        )
        for agent, wins in (("careful", 8), ("hasty", 2), ("oracle", 10))
        for i in range(10)
    ]
    rows = race_rows(standings(entries), {"careful": "agentic", "oracle": "oracle"})
    assert [(row.agent, row.kind, row.rank) for row in rows] == [
        ("careful", "agentic", 1),
        ("hasty", "unknown", 2),
        ("oracle", "oracle", None),
    ]
    assert rows[0].success.n == 10
    assert rows[2].note


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to prove that nothing runs or loads")
def test_a_browser_runs_nothing_and_asks_for_nothing(tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        trap = f"http://127.0.0.1:{server.server_port}/asked"
        attack = (
            f"<script>document.title='ran'</script><img src={trap}>"
            f"</style><style>body{{background:url({trap})}}</style>"
        )
        shown_one = example(attack, True, thinking=attack)
        data = ReportData(title="palio demo", lead=attack, examples=(shown_one,))
        path = write_report(data, tmp_path / "report.html")
        shown = dumped(path, tmp_path / "profile")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert "<title>palio demo</title>" in shown
    assert "Two trajectories" not in shown
    assert "</html>" in shown
    assert asked == []


def dumped(path: Path, profile: Path) -> str:
    """The page as a headless browser sees it after loading."""
    assert CHROMIUM is not None
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --dump-dom "
    flags += "--disable-background-networking --disable-component-update --disable-sync"
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={profile}", path.as_uri()]
    run = subprocess.run(command, capture_output=True, timeout=60, check=True)
    return run.stdout.decode()


def test_the_report_says_which_weights_answered_and_what_broke() -> None:
    fault = Fault(code=FaultCode.upstream_key_refused, what="no")
    made = result("after SFT", 0.5)
    first, *rest = made.scores
    lost = replace(first, status="unscored", success={"oro": False, "strict": False}, fault=fault)
    pin = ModelPin(weights="sha256:" + 8 * "0123abcd")
    stage = StageResult(name="after SFT", greedy=replace(made, scores=(lost, *rest), model=pin))
    page = render_report(replace(report_data(), stages=(stage,)))
    assert "after SFT: weights 0123abcd0123" in page
    assert "1 platform 3009 upstream_key_refused" in page


def test_a_ceiling_is_not_told_as_what_reads_nothing() -> None:
    data = report_data()
    reader = replace(data.floors[0], name="reader", definition="regular expressions read it")
    page = render_report(replace(data, floors=(*data.floors, reader)))
    assert "ceiling · regular expressions read it" in page
    assert "and a ceiling (reader), which reads by rules" in page
    assert "ceiling" not in render_report(data)


def test_unscored_rollouts_of_other_words_are_told_and_asr_has_both_intervals() -> None:
    data = report_data()
    made = result("after SFT", 0.5)
    scores = [replace(made.scores[0], status="unscored"), *made.scores[1:]]
    broken = summarise(
        scores, PROBLEMS, name="after SFT", samples=1, temperature=0.0, seed=0, clusters=CLUSTERS
    )
    page = render_report(replace(data, reworded=StageResult(name="after SFT", greedy=broken)))
    assert "after SFT in other words, greedy: 1 of 60" in page
    greedy = data.stages[1].greedy
    assert greedy is not None
    over = greedy.overall.asr_clustered["oro"]
    interval = f"{100 * over.low:.1f}\N{EN DASH}{100 * over.high:.1f}"
    assert f"after SFT {interval} (30 clusters of 60 problems)" in page
