"""What a Dr. GRPO stage is told."""

from __future__ import annotations

from typing import Literal

from palio.agents.scripted import check_models
from palio.records import ConfigError, Profile, Record
from palio.train.rl.advantages import CreditKind
from palio.train.rl.order import check_enough
from palio.train.rl.rollouts import Play
from palio.train.settings import TrlSettings
from palio.train.stage import StageSettings

Reward = Literal["outcome", "on_policy", "prefix"]


class TeacherSettings(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Who is asked for the next step on the student's own history.

    Attributes:
        model: its name; a scripted one where there is no address.
        base_url: OpenAI-compatible server; "": the scripted models.
        seed: of the scripted models.
    """

    model: str = "scripted-careful"
    base_url: str = ""
    seed: int = 0


class GrpoSettings(StageSettings, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Dr. GRPO.

    Attributes:
        reward: `outcome`: strict success alone; `on_policy`: also a credit for each step that the
            teacher would take on the student's history; `prefix`: one turn after a teacher's
            prefix by ShoppingBench's formula, without a world.
        problems: training problems, the kinds evenly; 0: all. In prefix mode: teacher's rows, of
            which turns are left out that are over `longest`, or whose calls cannot be read.
        group: rollouts of a problem.
        groups: problems of a step; each update is on the rollouts of one step, so group * groups
            is batch size * accumulation (* processes). With TRL's `num_iterations` several are on
            them, and states are between two steps only.
        outcome_weight: lambda of A = turn_weight * A_turn + lambda * A_outcome.
        credit: what a turn answers for.
        profile: whose strict success is the outcome.
        brevity: bonus of a success in one turn, 1 / n of it in n turns; failures never earn it.
        longest: tokens of a conversation.
        probe: rollouts of a step on which KL and the sampler's gap are measured.
        probe_every: steps from one such measurement to the next.
        watch: stop when calls a rollout stay below this share of the first step's; 0: never.
        base_url: vLLM server that samples; "" for our engine, or the model itself.
        served_model: the model's name at `base_url`.
        threads: rollouts in flight.
    """

    reward: Reward = "on_policy"
    problems: int = 0
    group: int = 8
    groups: int = 16
    turn_weight: float = 0.3
    outcome_weight: float = 1.0
    credit: CreditKind = "step"
    teacher: TeacherSettings = TeacherSettings()
    temperature: float = 1.0
    max_tokens: int = 160
    longest: int = 1200
    profile: Profile = "strict"
    brevity: float = 0.0
    probe: int = 16
    probe_every: int = 1
    watch: float = 0.5
    base_url: str = ""
    served_model: str = ""
    threads: int = 64
    seconds: float = 300.0
    trl: TrlSettings = TrlSettings(
        learning_rate=1e-4,
        lr_scheduler_type="constant_with_warmup",
        max_steps=50,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=4,
    )

    def __post_init__(self) -> None:
        self.trl.check_extra("grpo")
        batch = self.trl.per_device_train_batch_size * self.trl.gradient_accumulation_steps
        rollouts = self.group * self.groups
        if self.group < 2:
            raise ConfigError("a group needs at least 2 rollouts to have a mean of others")
        if self.temperature <= 0:
            raise ConfigError("rollouts of a group must differ: temperature above 0")
        if self.groups < 1 or self.problems < 0:
            raise ConfigError("groups must be at least 1, problems at least 0")
        if rollouts % batch if self.trl.launch else rollouts != batch:
            raise ConfigError(
                f"a step makes {rollouts} rollouts ({self.groups} groups of {self.group}), which "
                f"are no batch of {batch}",
                remedy="group * groups = batch size * accumulation (* processes)",
            )
        self._check_windows()
        if self.reward != "prefix" and self.problems:
            self.check_problems(self.problems)
        if self.max_tokens < 1:
            raise ConfigError("max_tokens must be at least 1: a turn has tokens")
        if self.reward == "on_policy" and not self.teacher.base_url:
            check_models([self.teacher.model])

    @property
    def updates(self) -> int:
        """Updates on the rollouts of one step: TRL's `num_iterations`.

        Raises:
            ConfigError: it is no number of updates.
        """
        found = self.trl.extra.get("num_iterations", 1)
        if type(found) is not int or found < 1:
            raise ConfigError(f"num_iterations must be an integer from 1, not {found!r}")
        return found

    def _check_windows(self) -> None:
        """A state holds no rollouts: from one amid their updates a run would make others."""
        for name in ("save_steps", "max_steps"):
            steps, every = getattr(self.trl, name), self.updates
            if steps > 0 and steps % every:
                raise ConfigError(
                    f"{name} is {steps}, and {every} updates (num_iterations) are on the same "
                    "rollouts: amid them a run can neither end nor go on, for no state holds them",
                    remedy=f"say {name} = {steps - steps % every + every} in [stage.trl], or any "
                    f"multiple of {every}",
                )

    def play(self) -> Play:
        """How rollouts are made."""
        return Play.of(self)

    def check_problems(self, found: int) -> None:
        """Each step is on `groups` different problems, or turns in prefix mode.

        Raises:
            ConfigError: there are fewer.
        """
        what = "turns of a teacher" if self.reward == "prefix" else "problems"
        remedy = f"lower `groups` and the batch with it, or give the stage more {what}"
        check_enough(found, self.groups, what, remedy)
