"""palio eval steps: on a teacher's own histories, does a policy make the teacher's next call?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from palio.cli.corpus_screen import counter
from palio.cli.eval_inputs import API_KEY, MODEL_URL, check_key
from palio.cli.world import WORLD, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from palio.corpus.rows import CorpusRow
    from palio.evaluate.cluster import PolicySource
    from palio.evaluate.statistics import Proportion
    from palio.evaluate.steps import StepAnswer, StepComparison, StepScore
    from palio.world.catalogue import Catalogue
    from palio.world.tools import Toolbox


def steps(
    context: typer.Context,
    corpus: Path = typer.Option(..., help="Corpus with the teacher's conversations."),
    suite: Path = typer.Option(..., help="Its suite."),
    catalogue: list[Path] = typer.Option(..., help="Catalogues of the suite."),
    out: Path = typer.Option(..., help="Folder for the answers; resumed when it exists."),
    checkpoint: Path | None = typer.Option(None, help="Folder of a checkpoint."),
    model: str = typer.Option("", help="Model name; scripted-* needs no server."),
    model_url: str = MODEL_URL,
    api_key: str = API_KEY,
    name: str = typer.Option("", help="Name in tables; by default the model's."),
    against: Path | None = typer.Option(None, help="Folder of another policy's answers."),
    pool: str = typer.Option("heldout", help="Pool of the corpus: heldout or development."),
    limit: int = typer.Option(0, min=0, help="Only N problems, of all kinds; 0 = all."),
    max_tokens: int = typer.Option(512, min=1, help="Of one answer."),
    concurrency: int = typer.Option(
        8, "--concurrency", "--threads", min=1, help="Conversations in flight."
    ),
    world: str = WORLD,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Valid calls and step match: at each turn of the teacher, what would the policy do next?"""
    import msgspec

    from palio.evaluate.cluster import PolicySource
    from palio.evaluate.pin import MODEL, plain
    from palio.evaluate.step_folder import held_steps, read_against
    from palio.evaluate.steps import compare_steps, step_score
    from palio.world.artefacts import file_digest

    check_key(context, model_url)
    source = PolicySource(model, model_url, api_key, checkpoint, name)
    asked = _rows(corpus, suite, pool, limit)
    found = _catalogues(catalogue, asked.catalogues, corpus)
    pin = source.pin()
    config = {
        "policy": source.called,
        "rows": file_digest(corpus / f"{pool}.jsonl"),
        "max_tokens": max_tokens,
        "world": world,
        "catalogues": {name: each.digest for name, each in sorted(found.items())},
        **({MODEL: plain(pin)} if pin else {}),
    }
    other = read_against(against, config) if against is not None else None
    with held_steps(out, config) as before:
        tools = _tools(found, world, asked.catalogues)
        held = _answered(asked, source, tools, out, before, max_tokens, concurrency)
    score = step_score(held, source.called, pin)
    paired = None
    if other is not None:
        names, models = (other.name, source.called), (other.model, pin)
        paired = compare_steps(other.answers, held, names, models)
    if as_json:
        plain_form = {"score": score, "paired": paired}
        typer.echo(msgspec.json.format(msgspec.json.encode(plain_form), indent=2).decode())
        return
    _show(score, paired)


class Asked(NamedTuple):
    """A teacher's conversations, and of every problem its kind and its catalogue."""

    rows: list[CorpusRow]
    kinds: dict[str, str]
    catalogues: dict[str, str]


def _answered(
    asked: Asked,
    source: PolicySource,
    tools: Callable[[str], Toolbox],
    out: Path,
    before: list[StepAnswer],
    max_tokens: int,
    threads: int,
) -> list[StepAnswer]:
    """Answers to all turns: those in the folder, and the rest from the policy."""
    from palio.evaluate.step_folder import append_answer
    from palio.evaluate.steps import answer_steps, questions

    wanted = {(row.problem_id, one.turn) for row in asked.rows for one in questions(row)}
    held = [each for each in before if (each.problem_id, each.turn) in wanted]
    done = {(each.problem_id, each.turn) for each in held}
    if done == wanted:
        return held
    with source.open() as policy, counter("asking the policy") as show:
        for answer in answer_steps(
            asked.rows,
            policy.upstream,
            policy.spec.model,
            tools,
            asked.kinds,
            max_tokens=max_tokens,
            threads=threads,
            skip=done,
        ):
            append_answer(out, answer)
            held.append(answer)
            show(len(held))
    return held


def _rows(corpus: Path, suite: Path, pool: str, limit: int) -> Asked:
    from palio.corpus.membership import check_problems
    from palio.corpus.rows import read_rows
    from palio.records import InputError
    from palio.suites.files import read_suite
    from palio.suites.taking import first_of_each_kind

    path = corpus / f"{pool}.jsonl"
    if not path.is_file():
        raise InputError("no such pool", where=str(path), remedy="heldout, development or train")
    by_problem: dict[str, CorpusRow] = {}
    for row in read_rows(path):
        by_problem.setdefault(row.problem_id, row)
    held = read_suite(suite).problems
    problems = [p for p in held if p.problem_id in by_problem]
    if not problems:
        raise InputError("no conversation of the pool is about the suite", where=str(suite))
    check_problems(corpus, held, suite)
    taken = first_of_each_kind(tuple(problems), limit)
    return Asked(
        [by_problem[problem.problem_id] for problem in taken],
        {problem.problem_id: problem.kind for problem in taken},
        {problem.problem_id: problem.catalogue for problem in taken},
    )


def _catalogues(paths: list[Path], needed: Mapping[str, str], corpus: Path) -> dict[str, Catalogue]:
    """The catalogues that are named; those of `needed` (problem id -> catalogue) are among them."""
    from palio.corpus.membership import check_catalogues
    from palio.records import InputError
    from palio.world.catalogue import read_catalogues

    found, rejects = read_catalogues(paths)
    warn_of(rejects)
    missing = sorted(set(needed.values()) - found.keys())
    if missing:
        raise InputError(f"no catalogue {missing[0]!r}", remedy="name it with --catalogue")
    check_catalogues(corpus, {name: each.digest for name, each in found.items()})
    return found


def _tools(
    found: Mapping[str, Catalogue], world: str, catalogues: Mapping[str, str]
) -> Callable[[str], Toolbox]:
    """Problem id -> the tools of its world."""
    from palio.world.tools import Toolbox
    from palio.world.world import world_of_catalogue

    made = {
        name: Toolbox(world_of_catalogue(found[name], world)) for name in set(catalogues.values())
    }
    return lambda problem: made[catalogues[problem]]


def _show(score: StepScore, paired: StepComparison | None) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console(width=max(Console().width, 110))
    title = f"{score.policy}: {score.turns} turns of {score.problems} teacher's conversations"
    table = Table(
        "teacher's turn", "n", "valid call", "same tools", "step match", title=Text(title)
    )
    for kind in score.kinds:
        shares = (kind.valid, kind.same_tools, kind.match)
        table.add_row(Text(kind.kind), str(kind.n), *(_percent(share) for share in shares))
    shares = (score.valid.turns, score.same_tools.turns, score.match.turns)
    table.add_row("all", str(score.turns), *(_percent(share) for share in shares))
    whole = (score.valid.problems, score.same_tools.problems, score.match.problems)
    over = (f"({100 * share.low:.1f}-{100 * share.high:.1f})" for share in whole)
    table.add_row("  over conversations", str(score.problems), *over)
    console.print(table)
    for what, count in list(score.differences.items())[:8]:
        console.print(f"{count:6d}  {what}", markup=False)
    if score.model is not None:
        console.print(f"{score.policy}: {score.model.in_words()}", markup=False)
    if paired is None:
        return
    gap = Text(f"{paired.b} minus {paired.a} (95 %)")
    table = Table(f"on the same {paired.turns} turns", "gained", "lost", Column(gap))
    for share in paired.shares:
        told = share.difference
        shown = f"{100 * (told.value or 0):+.1f} ({100 * told.low:+.1f} to {100 * told.high:+.1f})"
        table.add_row(share.what.replace("_", " "), str(share.gained), str(share.lost), shown)
    console.print(table)
    for called, pin in ((paired.a, paired.model_a), (paired.b, paired.model_b)):
        if pin is not None:
            console.print(f"{called}: {pin.in_words()}", markup=False)


def _percent(share: Proportion) -> Any:
    return f"{100 * (share.rate or 0):.1f} ({100 * share.low:.1f}-{100 * share.high:.1f})"
