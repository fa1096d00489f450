"""Evaluation on Ray workers: each opens the policy for itself and rolls out by the same code.

A rollout and its score are the same wherever they are made: the seed is the job's own, the worlds
are the same objects, and the scorer looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palio.agents.scripted import ScriptedUpstream, check_models
from palio.agents.spec import policy_agent
from palio.broker.pin import ModelPin, endpoint_pin
from palio.broker.upstream import HttpUpstream, Upstream, no_upstream
from palio.evaluate.pin import checkpoint_pin, loaded_pin
from palio.evaluate.policy import EvalSettings, Policy, outcome_scorer, policy_runner
from palio.evaluate.rollouts import Hands, Job, RolloutRow, carried_out
from palio.judging.encoders import TitleEncoder
from palio.records import ConfigError, IntegrityError
from palio.rollout.cluster import check_gpus, connected
from palio.world.world import World


@dataclass(frozen=True)
class PolicySource:
    """How to open one policy, in this process or in a worker: exactly one of three kinds.

    Attributes:
        model: name of the model; "scripted-..." without a `base_url` is a program of palio.
        base_url: OpenAI-compatible endpoint, with /v1.
        api_key: its bearer token.
        checkpoint: a checkpoint, a stage's or a run's folder; loaded wherever it is opened.
        name: in tables; by default the model's.

    Raises:
        ConfigError: none or more than one is named, or no such program.
    """

    model: str = ""
    base_url: str = ""
    api_key: str = ""
    checkpoint: Path | None = None
    name: str = ""

    def __post_init__(self) -> None:
        scripted = self.model.startswith("scripted-") and not self.base_url
        if bool(self.base_url) + bool(self.checkpoint) + scripted != 1:
            raise ConfigError(
                "name one policy",
                remedy="--checkpoint DIR, or --model-url URL --model NAME, "
                "or --model scripted-careful",
            )
        if scripted:
            check_models([self.model])

    @property
    def called(self) -> str:
        """What tables call it."""
        if self.name or self.model or self.checkpoint is None:
            return self.name or self.model or "model"
        from palio.train.checkpoint import checkpoint_name

        return checkpoint_name(self.checkpoint)

    def closed(self) -> Policy:
        """The policy with nobody behind it, where others roll it out; it knows its weights.

        Raises:
            InputError: no readable checkpoint.
            UpstreamError: the endpoint does not answer.
        """
        return self._behind(no_upstream, self.pin())

    def pin(self) -> ModelPin | None:
        """Which weights it is, from the checkpoint's files or its server; None for programs."""
        if self.base_url:
            return endpoint_pin(self.base_url, self.api_key, self.model or self.called)
        return checkpoint_pin(self.checkpoint) if self.checkpoint else None

    @contextmanager
    def open(self) -> Iterator[Policy]:
        """The policy; what serves it is closed at the end.

        Raises:
            InputError: no readable checkpoint.
            IntegrityError: its files changed while they were read.
            UpstreamError: the endpoint does not answer.
        """
        if self.base_url:
            with HttpUpstream(self.base_url, self.api_key) as http:
                yield self._behind(http, self.pin())
        elif self.checkpoint:
            from palio.train.serving import open_checkpoint

            with open_checkpoint(self.checkpoint) as engine:
                yield self._behind(engine, loaded_pin(engine.identity))
        else:
            yield self._behind(ScriptedUpstream(), None)

    def _behind(self, upstream: Upstream, pin: ModelPin | None) -> Policy:
        called = self.called
        spec = policy_agent(called, self.model or called)
        return Policy(name=called, spec=spec, upstream=upstream, pin=pin)


@contextmanager
def ray_hands(
    source: PolicySource,
    worlds: Mapping[str, World],
    encoder: TitleEncoder,
    settings: EvalSettings,
    *,
    workers: int = 2,
    address: str = "",
    gpus: float = 0.0,
    pin: ModelPin | None = None,
) -> Iterator[Hands]:
    """Workers of a Ray cluster, for `evaluate_policy`.

    Args:
        source: opened once in each worker.
        worlds: catalogue id -> world, as for the evaluation.
        encoder: title similarity of the scorer.
        settings: of the evaluation; each worker has `threads` rollouts in flight.
        workers: processes.
        address: of a running cluster, "" to start a local one.
        gpus: of each worker, for checkpoints.
        pin: which weights each worker must find; None: it is not asked.

    Raises:
        MissingDependencyError: ray is not installed.
        ConfigError: the machine has fewer GPUs than the workers want.
        IntegrityError: a worker died, or has other weights; rollouts that ended are in the log.
    """
    with connected(workers, address) as ray:
        if not address:  # others may grow
            check_gpus(ray, workers, gpus)
        kind = ray.remote(_Seat).options(max_concurrency=settings.threads, num_gpus=gpus)
        shared = ray.put(dict(worlds))
        seats = [kind.remote(source, shared, encoder, settings, pin) for _ in range(workers)]
        try:
            yield _RayHands(seats, 2 * settings.threads * workers)
            ray.get([seat.close.remote() for seat in seats])
        finally:
            for seat in seats:
                ray.kill(seat)


class _RayHands:
    """Gives each job to the worker that has the fewest."""

    def __init__(self, seats: list[Any], flight: int) -> None:
        self.flight = flight
        self._seats = seats
        self._held: list[set[Future[RolloutRow]]] = [set() for _ in seats]

    def submit(self, job: Job) -> Future[RolloutRow]:
        """Start a rollout; from one thread only."""
        for held in self._held:
            held -= {future for future in held if future.done()}
        least = min(range(len(self._seats)), key=lambda place: len(self._held[place]))
        future: Future[RolloutRow] = self._seats[least].run.remote(job).future()
        self._held[least].add(future)
        return future


class _Seat:
    """In a worker: the policy, opened once; its methods are called from many threads."""

    def __init__(
        self,
        source: PolicySource,
        worlds: Mapping[str, World],
        encoder: TitleEncoder,
        settings: EvalSettings,
        pin: ModelPin | None = None,
    ) -> None:
        self._open = ExitStack()
        policy = self._open.enter_context(source.open())
        if pin is not None and policy.pin != pin:
            found = policy.pin.in_words() if policy.pin else "none"
            raise IntegrityError(
                f"a worker has another model: {found}, not {pin.in_words()}",
                where=str(source.checkpoint or source.base_url),
                remedy="give all workers the same files",
            )
        self._runner = policy_runner(policy, worlds, settings)
        self._scorer = outcome_scorer(worlds, encoder)
        self._profiles = settings.profiles

    def run(self, job: Job) -> RolloutRow:
        """One rollout with its verdicts."""
        return carried_out(job, self._runner, self._scorer, self._profiles)

    def close(self) -> None:
        """Close what serves the policy."""
        self._open.close()
