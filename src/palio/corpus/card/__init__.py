"""The data set card of a corpus: README.md, stats.json and a page, from the published files."""

from palio.corpus.card.about import About, read_about
from palio.corpus.card.measure import measure
from palio.corpus.card.render import examples, render_card, render_page, write_card
from palio.corpus.card.stats import Stats

__all__ = [
    "About",
    "Stats",
    "examples",
    "measure",
    "read_about",
    "render_card",
    "render_page",
    "write_card",
]
