"""Options that several corpus commands have, worded once, and what is chosen by them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from palio.cli.judge_choice import REPLIES, reasoning_judge

if TYPE_CHECKING:
    from contextlib import ExitStack

    from palio.corpus.config import CorpusConfig
    from palio.rollout.verdicts import ReasoningJudge

AS_JSON = typer.Option(False, "--json", help="Print JSON.")
CATALOGUE = typer.Option([], help="Catalogues: judge outcomes against them.")
CONFIG = typer.Option(None, help="TOML with keys of CorpusConfig.")
ENCODER = typer.Option("lexical", help="Title similarity: lexical or minilm.")
FOLDER = typer.Argument(..., help="Folder of a finished `palio corpus build`.")
KEEP_POOLS = typer.Option(None, help="Earlier corpus whose split must stay.")
LINKS = typer.Option(None, help="TOML with must and cannot: pairs of problems.")
OUT = typer.Option(..., help="Corpus folder to write.")
TRAJECTORIES = typer.Option(
    ..., help="Traces, old ones too: files, folders, patterns, or - for standard input."
)
VECTORS = typer.Option(None, help="Folder that keeps vectors of embedding edges.")
VERDICTS = typer.Option([], help="Outcome verdicts of validators.")
WORKERS = typer.Option(2, min=1, help="Processes that judge.")


def config_of(config: Path | None, links: Path | None = None) -> CorpusConfig:
    """What `--config` and `--links` name.

    Raises:
        ConfigError: a file is missing or wrong.
    """
    from palio.corpus.config import CorpusConfig, read_config
    from palio.suites.links import read_links

    chosen = read_config(config) if config else CorpusConfig()
    return chosen.linked(read_links(links)) if links else chosen


def judge_of(stack: ExitStack, judge: str, out: Path) -> ReasoningJudge | None:
    """What `--judge` names, its replies kept in the corpus; None: the evidence judge."""
    return None if judge == "evidence" else reasoning_judge(stack, judge, out / REPLIES)
