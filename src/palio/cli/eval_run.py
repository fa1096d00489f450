"""palio eval run: roll a policy out on a suite, and stand it beside floors on the same problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from palio.cli.eval_inputs import (
    API_KEY,
    AS_JSON,
    CATALOGUES,
    CORPUS,
    ENCODER,
    LIMIT,
    MODEL_URL,
    POOL,
    SUITE,
    Exam,
    check_key,
    exam_of,
    problems_of,
)
from palio.cli.eval_output import counted, in_numbers, show
from palio.cli.given import refuse_idle
from palio.cli.world import WORLD

if TYPE_CHECKING:
    from palio.evaluate.cluster import PolicySource
    from palio.evaluate.policy import EvalSettings, Policy
    from palio.evaluate.report_data import StageResult
    from palio.evaluate.results import EvalResult
    from palio.evaluate.rollouts import Hands

_GIVE_UP = 16
"""Rollouts that a server may break before one is scored: as many as are in flight by default."""
Workers = Callable[..., AbstractContextManager["Hands"]]


def run(
    context: typer.Context,
    suite: Path = SUITE,
    catalogue: list[Path] = CATALOGUES,
    out: Path = typer.Option(..., "--out", help="Folder for rollouts; resumed when it exists."),
    model: str = typer.Option("", "--model", help="Model name; scripted-* needs no server."),
    model_url: str = MODEL_URL,
    api_key: str = API_KEY,
    checkpoint: Path | None = typer.Option(None, "--checkpoint", help="Folder of a checkpoint."),
    name: str = typer.Option("", "--name", help="Name in tables; by default the model's."),
    floor: list[str] = typer.Option(
        [], "--floor", help="[NAME=]checkpoint, or evaluation of one, as a floor; repeatable."
    ),
    tools: str = typer.Option(
        "7", "--tools", help="Tools of the harness: 4, 7, or names of them with commas between."
    ),
    k: int = typer.Option(0, "--k", min=0, help="Also draw k samples a problem for pass@k."),
    temperature: float = typer.Option(1.0, "--temperature", min=0.01, help="Of the k samples."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of samples and intervals."),
    concurrency: int = typer.Option(
        16, "--concurrency", "--threads", min=1, help="Rollouts in flight, in each worker."
    ),
    max_tokens: int = typer.Option(0, "--max-tokens", min=0, help="Of one turn; 0: the server's."),
    seconds: float = typer.Option(300.0, "--seconds", min=1.0, help="Wall clock of a rollout."),
    executor: str = typer.Option("inline", "--executor", help="inline: in this process; or ray."),
    workers: int = typer.Option(2, "--workers", min=1, help="Processes of ray."),
    address: str = typer.Option("", "--address", help="Ray cluster; a local one is started else."),
    gpus: float = typer.Option(0.0, "--gpus", min=0.0, help="GPUs of each ray worker."),
    world: str = WORLD,
    encoder: str = ENCODER,
    limit: int = LIMIT,
    corpus: Path | None = CORPUS,
    pool: str = POOL,
    as_json: bool = AS_JSON,
) -> None:
    """Greedy ASR by intent with intervals and floors; with --k also sampled pass@1 and pass@k."""
    from palio.broker.limits import Limits
    from palio.evaluate.cluster import PolicySource
    from palio.evaluate.policy import EvalSettings, harness_tools

    _check_idle(context, k=k, model_url=model_url, executor=executor)
    source = PolicySource(model, model_url, api_key, checkpoint, name)
    once = EvalSettings(
        seed=seed,
        threads=concurrency,
        tools=harness_tools(tools),
        max_tokens=max_tokens,
        limits=Limits(seconds=seconds),
    )
    ray = _ray(executor, workers=workers, address=address, gpus=gpus)
    problems = problems_of(suite, limit, corpus, pool)
    exam = exam_of(problems, catalogue, world, encoder, corpus)
    evaluator = _Evaluator(exam, out, once, ray)
    _run(evaluator, source, floor, k=k, temperature=temperature, as_json=as_json)


class _Evaluator(NamedTuple):
    """Evaluates policies on one exam, on equal terms."""

    exam: Exam
    out: Path
    once: EvalSettings
    ray: Workers | None

    def stage(self, source: PolicySource, folder: Path, k: int, temperature: float) -> StageResult:
        """Greedy rollouts of a policy, and `k` samples a problem unless it is 0."""
        import msgspec

        from palio.evaluate.kept import GREEDY, sampled_folder
        from palio.evaluate.report_data import StageResult

        many = msgspec.structs.replace(self.once, samples=k or 1, temperature=temperature)
        with nullcontext(source.closed()) if self.ray else source.open() as policy:
            return StageResult(
                name=policy.name,
                origin="scripted" if source.model.startswith("scripted-") else "learned",
                greedy=self._evaluated(source, policy, folder / GREEDY, self.once),
                sampled=self._evaluated(source, policy, sampled_folder(folder, k), many)
                if k
                else None,
            )

    def _evaluated(
        self, source: PolicySource, policy: Policy, folder: Path, settings: EvalSettings
    ) -> EvalResult:
        from palio.evaluate.policy import evaluate_policy

        problems, worlds, titles, clusters = self.exam
        title, total = f"{policy.name}, {folder.name}", len(problems) * settings.samples
        with counted(title, total) as progress:
            return evaluate_policy(
                policy,
                problems,
                worlds,
                titles,
                out=folder,
                settings=settings,
                clusters=clusters,
                progress=progress,
                hands=self.ray(source, worlds, titles, settings, pin=policy.pin)
                if self.ray
                else None,
                give_up=_GIVE_UP,
            )


def _run(
    evaluator: _Evaluator,
    source: PolicySource,
    floor: Sequence[str],
    *,
    k: int,
    temperature: float,
    as_json: bool,
) -> None:
    from palio.evaluate.floors import compare_with_floor
    from palio.evaluate.kept import keep_results
    from palio.evaluate.learned_floor import evaluation_at
    from palio.evaluate.pairing import compare_results
    from palio.evaluate.policy import terms_of

    exam, settings = evaluator.exam, evaluator.once
    named = _named(floor, source.called)
    learned = [_floor(name, path, evaluator) for name, path in named]
    stage = evaluator.stage(source, evaluator.out, k, temperature)
    below = exam.below(settings.seed, settings.tools)
    stages, pairs = [stage], []
    if stage.greedy:
        pairs.append(
            compare_with_floor(stage.greedy, below[0], exam.problems, clusters=exam.clusters)
        )
    for made in learned:
        held = made()
        stages.append(held)
        if stage.greedy and held.greedy:
            pairs.append(
                compare_results(stage.greedy, held.greedy, exam.problems, clusters=exam.clusters)
            )
    told = in_numbers(stages, below, pairs, settings.tools)
    terms = terms_of(exam.problems, exam.worlds, exam.titles, settings)
    rolled_out = [_rolled_out(name, evaluator) for name, path in named if not evaluation_at(path)]
    keep_results(evaluator.out, told, stage, terms, settings.seed, rolled_out)
    show(stages, below, pairs, settings.tools, as_json=as_json)


def _named(floors: Sequence[str], policy: str) -> list[tuple[str, Path]]:
    """Name and path of each floor; two rows of a table must not be called alike."""
    from palio.evaluate.learned_floor import called, named_floor
    from palio.records import ConfigError

    named = [(called(*found), found[1]) for found in map(named_floor, floors)]
    names = [policy, "first-hit", "random-hit", "reader", *(name for name, _ in named)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two rows of the results would be called {twice[0]!r}",
            remedy="give one its own name: --floor NAME=FOLDER, or --name for the policy",
        )
    return named


def _rolled_out(floor: str, evaluator: _Evaluator) -> Path:
    """Folder of the rollouts of a floor that is a checkpoint."""
    return evaluator.out / "floors" / floor


def _floor(name: str, path: Path, evaluator: _Evaluator) -> Callable[[], StageResult]:
    """What gives a learned floor; refused now, before hours of rollouts, where it cannot be one."""
    from palio.evaluate.cluster import PolicySource
    from palio.evaluate.learned_floor import as_floor, check_checkpoint, evaluation_at, kept_floor
    from palio.evaluate.policy import terms_of

    exam = evaluator.exam
    kept = evaluation_at(path)
    if kept is not None:
        terms = terms_of(exam.problems, exam.worlds, exam.titles, evaluator.once)
        held = kept_floor(kept, exam.problems, terms, exam.clusters, name)
        return lambda: held
    check_checkpoint(path)
    folder = _rolled_out(name, evaluator)

    def rolled_out() -> StageResult:
        made = evaluator.stage(PolicySource(checkpoint=path, name=name), folder, 0, 1.0)
        assert made.greedy is not None
        return as_floor(made.greedy)

    return rolled_out


def _check_idle(context: typer.Context, *, k: int, model_url: str, executor: str) -> None:
    """Refuse options that belong to what was not asked for.

    Raises:
        ConfigError: names them.
    """
    check_key(context, model_url)
    if not k:
        where = "without --k: greedy rollouts have none"
        refuse_idle(context, ["--temperature"], where, "draw samples with --k N")
    if executor == "inline":
        options = ["--workers", "--address", "--gpus"]
        refuse_idle(context, options, "in this process", "say --executor ray")


def _ray(executor: str, **options: Any) -> Workers | None:
    """Makes the workers of an evaluation; None: threads of this process.

    Raises:
        ConfigError: there is no such executor.
    """
    from palio.evaluate.cluster import ray_hands
    from palio.records import ConfigError

    if executor not in ("inline", "ray"):
        raise ConfigError(f"no executor {executor!r}", remedy="inline or ray")
    return partial(ray_hands, **options) if executor == "ray" else None
