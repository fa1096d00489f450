"""The card's numbers are those of the files, the Hub can read it, and no agent can write in it."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.corpus.card import About, Stats, measure, read_about, render_card, write_card
from palio.corpus.card.charts import charts
from palio.corpus.card.spread import BINS, effective, entropy, spread
from palio.corpus.config import POOLS
from palio.corpus.rows import read_rows
from palio.records import ConfigError, InputError, Problem, from_json, to_json
from palio.rollout.verdicts import Judged
from tests.card.growing import CONFIG, built
from tests.corpus.making import good_turns, made_problems, made_row

HOSTILE = (
    "</title><script>document.title='owned'</script>",
    "a|b`c`\n## injected\n---\nlicense: mit",
    '"><img src=x onerror="document.title=1">&lt;',
    "$x$ \x1b[31m\u202e]]>",
)


def corpus(folder: Path, problems: tuple[Problem, ...] = made_problems(9)) -> list[Judged]:
    rows = [
        made_row(f"t{n}-{k}", problem, good_turns(problem.rewards[0].product_id, f"say {n} {k}"),
                 agent=f"agent-{k if n % 3 else 0}", source=("rollout", "chat:day.jsonl")[n % 2])
        for n, problem in enumerate(problems)
        for k in range(1 + n % 3)
    ]  # fmt: skip
    built(rows, problems, folder, config=msgspec.structs.replace(CONFIG, near_duplicates=0.0))
    return rows


def test_the_numbers_are_those_of_the_published_rows(tmp_path: Path) -> None:
    corpus(tmp_path)
    stats = measure(tmp_path, About(licences={"day.jsonl": "cc-by-4.0"}))
    rows = [(pool, row) for pool in POOLS for row in read_rows(tmp_path / f"{pool}.jsonl")]
    assert stats.total.rows == len(rows) == stats.funnel.kept
    for pool in POOLS:
        held = [row for name, row in rows if name == pool]
        assert stats.pools[pool].rows == len(held)
        assert stats.pools[pool].queries == len({row.problem_id for row in held})
        assert stats.pools[pool].clusters == len({row.cluster_id for row in held})
        assert stats.pools[pool].bytes.total == sum(len(to_json(row.messages)) for row in held)
    assert sum(pool.queries for pool in stats.pools.values()) == stats.total.queries == 9
    agents = Counter(row.agent for _, row in rows)
    assert {name: one.rows for name, one in stats.diversity.agents.items()} == agents
    top, most = agents.most_common(1)[0]
    assert (stats.diversity.top_agent, stats.diversity.top_share) == (top, most / len(rows))
    assert stats.diversity.sequences == 1
    assert stats.diversity.sequence_entropy == 0
    assert stats.diversity.top_sequences[0].tools == (
        *("find_product", "view_product_information", "recommend_product", "terminate"),
    )
    assert {name: one.licence for name, one in stats.sources.items()} == {
        "rollout": "unknown",
        "chat:day.jsonl": "cc-by-4.0",
    }
    assert sum(one.rows for one in stats.sources.values()) == len(rows)
    assert stats.judging.quality["0.9"] == stats.judging.richness["1"] == len(rows)
    assert stats.judging.outcomes["oro"].success == len(rows)
    assert stats.total.tokens is None
    counted = measure(tmp_path, About(), tokens=len).total.tokens
    assert counted is not None
    assert counted.total == sum(len(row.messages) for _, row in rows)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 10**6), st.floats(0, 1e6, width=32)), min_size=1, max_size=60)
)
def test_a_spread_loses_no_number(values: list[float]) -> None:
    found = spread(values)
    assert found.n == sum(found.counts) == len(values)
    assert len(found.edges) == len(found.counts) + 1 <= BINS + 2
    assert found.least <= found.p10 <= found.median <= found.p90 <= found.p99 <= found.most
    assert found.median == pytest.approx(float(np.median(values)))
    assert found.least <= found.mean * (1 + 1e-9)
    assert found.mean <= found.most * (1 + 1e-9)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(2, 5))
def test_entropy_counts_kinds(counts: list[int], factor: int) -> None:
    assert 1 - 1e-9 <= effective(counts) <= len(counts) + 1e-9
    assert effective([7] * len(counts)) == pytest.approx(len(counts))
    assert entropy([n * factor for n in counts]) == pytest.approx(entropy(counts))
    assert entropy([*counts, 0]) == entropy(counts)
    assert (entropy([]), effective([])) == (0, 0)


def front_matter(card: str) -> dict[str, object]:
    head, sep, _ = card.removeprefix("---\n").partition("\n---\n")
    assert sep
    found = yaml.safe_load(head)
    assert isinstance(found, dict)
    return found


def test_the_front_matter_is_what_the_hub_reads(tmp_path: Path) -> None:
    corpus(tmp_path)
    about = About(title='Odd "title": yes', licence="cc-by-4.0", licences={"rollout": "mit"})
    written = write_card(tmp_path, measure(tmp_path, about), about)
    assert [path.name for path in written] == ["README.md", "stats.json", "report.html"]
    head = front_matter((tmp_path / "README.md").read_text())
    assert head["pretty_name"] == 'Odd "title": yes'
    assert head["license"] == ["mit", "cc-by-4.0"] or head["license"] == ["cc-by-4.0", "mit"]
    assert head["size_categories"] == ["n<1K"]
    files = head["configs"][0]["data_files"]  # type: ignore[index]
    assert all((tmp_path / one["path"]).is_file() for one in files)
    hub = pytest.importorskip("huggingface_hub")
    card = hub.DatasetCard.load(tmp_path / "README.md")
    assert card.data.to_dict()["configs"] == head["configs"]
    assert "## Sources and licences" in card.text


def test_datasets_loads_the_folder_by_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    corpus(tmp_path / "c")
    stats = measure(tmp_path / "c", About())
    write_card(tmp_path / "c", stats, About())
    loaded = datasets.load_dataset(str(tmp_path / "c"), cache_dir=str(tmp_path / "cache"))
    rows = {pool: held.rows for pool, held in stats.pools.items() if held.rows}
    assert {pool: loaded[pool].num_rows for pool in loaded} == rows


def test_the_card_says_what_is_missing(tmp_path: Path) -> None:
    built([], [], tmp_path / "empty")
    stats = measure(tmp_path / "empty", About())
    card = render_card(stats, About())
    assert "configs" not in front_matter(card)
    assert "not searched for secrets" in card
    bare = msgspec.structs.replace(stats, certificate=None)
    assert "carries no certificate" in render_card(bare, About())
    assert charts(stats)["agents"] == ""
    write_card(tmp_path / "empty", stats, About())
    corpus(tmp_path / "full")
    full = render_card(measure(tmp_path / "full", About()), About(contact="us@x.example"))
    assert "| train |" in full
    assert "`us@x.example`" in full
    with pytest.raises(InputError, match="another corpus"):
        write_card(tmp_path / "full", stats, About())


def test_the_same_corpus_gives_the_same_bytes(tmp_path: Path) -> None:
    corpus(tmp_path)
    found = []
    for _ in range(2):
        paths = write_card(tmp_path, measure(tmp_path, About()), About())
        found.append([path.read_bytes() for path in paths])
    assert found[0] == found[1]
    stats = from_json((tmp_path / "stats.json").read_bytes(), Stats)
    assert stats == measure(tmp_path, About())
    built([], [], tmp_path)
    with pytest.raises(InputError, match="another corpus"):
        write_card(tmp_path, stats, About())


class Page(HTMLParser):
    """Elements, ids and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.attributes.append((name, value or ""))
            if name == "id":
                self.ids[value or ""] += 1


def hostile_stats(folder: Path) -> Stats:
    problems = made_problems(4)
    rows = []
    for n, text in enumerate(HOSTILE):
        turns = list(good_turns(problems[n].rewards[0].product_id, text))
        turns[0] = (text, ((text, {"q": text}, text), *turns[0][1]), text)
        rows.append(made_row(f"t{n}{text}", problems[n], turns, agent=text, source=text, tools=()))
    built(rows, problems, folder, config=msgspec.structs.replace(CONFIG, format=False))
    stats = measure(folder, About(title=HOSTILE[0]))
    assert stats.total.rows == len(HOSTILE)
    write_card(folder, stats, About(title=HOSTILE[0]))
    return stats


def test_text_of_agents_is_never_markup(tmp_path: Path) -> None:
    hostile_stats(tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert page.tags["script"] == page.tags["img"] == page.tags["link"] == page.tags["iframe"] == 0
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    links = [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert all(value.startswith("#") for value in links)
    assert [name for name, count in page.ids.items() if count > 1] == []
    targets = {value[1:] for value in links}
    assert targets <= set(page.ids)
    assert "http-equiv" in dict(page.attributes)
    card = (tmp_path / "README.md").read_text()
    assert front_matter(card)["license"] == "unknown"
    body = card.partition("\n---\n")[2]
    assert "\n## injected" not in body
    assert "\n---" not in body
    for line in body.splitlines():
        outside = "".join(line.split("`")[::2])
        assert "<script" not in outside
        assert "<img" not in outside
    tables = [line for line in body.splitlines() if line.startswith("| `")]
    agents = [line for line in tables if line.count("|") - line.count("\\|") == 9]
    assert len(agents) == len(HOSTILE)


def test_a_browser_shows_the_page_and_runs_nothing(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("needs chromium")
    hostile_stats(tmp_path / "c")
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-sync"
    flags += " disable-background-networking disable-component-update dump-dom"
    shown = subprocess.run(
        [browser, *(f"--{flag}" for flag in flags.split()), f"--user-data-dir={tmp_path / 'u'}",
         (tmp_path / "c" / "report.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "<title>&lt;/title&gt;&lt;script&gt;document.title='owned'" in shown.stdout
    assert shown.stdout.count("<svg") == 5
    assert Page(shown.stdout).tags["script"] == 0


def test_the_author_part_is_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "about.toml"
    path.write_text('title = "T"\nlicence = "mit"\n[licences]\nsalvage = "cc0-1.0"\n')
    about = read_about(path)
    assert (about.title, about.licence_of("rollout")) == ("T", "mit")
    assert about.licence_of("salvage") == "cc0-1.0"
    path.write_text("licens = 1")
    with pytest.raises(ConfigError, match="licens"):
        read_about(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_about(tmp_path / "none.toml")
