"""Dr. GRPO on TRL: the loss is our own ten lines, a run resumes, and what goes wrong is seen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from trl.trainer.grpo_trainer import GRPOTrainer

from palio.records import ConfigError, IntegrityError
from palio.train.curves import draw_curves
from palio.train.rl.advantages import outcome_advantages, turn_advantages
from palio.train.rl.grpo import dr_grpo_arguments, shrink, train_grpo
from palio.train.rl.hooks import STATES, last_state
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.prefixes import PrefixRoller, prefixes_of
from palio.train.rl.processes import check_batch
from palio.train.rl.rollouts import Rollout, WorldRoller
from palio.train.rl.sampler import Sampler
from palio.train.rl.settings import GrpoSettings
from palio.train.rl.tokens import Span
from palio.train.rl.trainer import Scheme, StepGrpoTrainer
from palio.train.settings import TrlSettings
from palio.train.stage import read_metrics
from tests.train_rl.conftest import Scene

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def settings(steps: int = 2, **more: Any) -> GrpoSettings:
    trl = TrlSettings(
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        warmup_ratio=0.0,
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_steps=2,
    )
    chosen: dict[str, Any] = {"trl": trl, "group": 4, "groups": 2, "max_tokens": 12}
    return GrpoSettings(
        **{**chosen, "probe": 4, "longest": 600, "threads": 8, "watch": 0.0, **more}
    )


class Killed(BaseException):
    pass


def quiet(share: float, note: str) -> None:
    assert 0 <= share <= 1


class Graded:
    """Real rollouts, cut to two turns of different lengths and graded by their tokens.

    A random model makes no calls and earns no real reward.
    """

    def __init__(self, inner: WorldRoller) -> None:
        self.inner = inner
        self.made: list[Rollout] = []

    @property
    def keys(self) -> tuple[str, ...]:
        return self.inner.keys

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        made = self.inner.roll(keys, seeds, sampler)
        self.made = [self._graded(one, seed) for one, seed in zip(made, seeds, strict=True)]
        return self.made

    def _graded(self, rollout: Rollout, seed: int) -> Rollout:
        end = min(8 + seed % 5, sum(rollout.mask))
        spans = (Span(0, 3), Span(5, end)) if seed % 3 and end > 5 else (Span(0, min(3, end)),)
        ids = rollout.completion[: spans[-1].end]
        outcome = float(sum(ids) % 2)
        return replace(
            rollout,
            completion=ids,
            mask=[any(start <= at < stop for start, stop in spans) for at in range(len(ids))],
            logprobs=rollout.logprobs[: len(ids)],
            spans=spans,
            outcome=outcome,
            credits=tuple(sum(ids[start:stop]) % 7 / 6 for start, stop in spans),
            success=outcome > 0,
        )


def graded(scene: Scene, chosen: GrpoSettings, problems: int = 6) -> Graded:
    ground = scene.ground
    play = chosen.play()
    return Graded(WorldRoller(ground.problems[:problems], ground, scene.codec, play, scene.teacher))


def weights(policy: OwnPolicy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


# ---- the formula


def own_loss(model: Any, rollouts: Sequence[Rollout], chosen: GrpoSettings) -> torch.Tensor:
    """Dr. GRPO, from the paper: sum over tokens of -A log p, over batch and a constant."""
    outcomes = outcome_advantages([r.outcome for r in rollouts], chosen.group)
    turns = turn_advantages([r.credits for r in rollouts], chosen.group)
    total = torch.zeros(())
    for number, rollout in enumerate(rollouts):
        ids = torch.tensor([rollout.prompt + rollout.completion])
        scores = torch.log_softmax(model(ids).logits[0, :-1] / chosen.temperature, -1)
        for (start, end), turn in zip(rollout.spans, turns[number], strict=True):
            advantage = chosen.turn_weight * turn + chosen.outcome_weight * outcomes[number]
            for at in range(len(rollout.prompt) + start, len(rollout.prompt) + end):
                logprob = scores[at - 1, ids[0, at]]
                total = total - advantage * torch.exp(logprob - logprob.detach())
    return total / (len(rollouts) * chosen.longest)


def trainer_of(
    policy: OwnPolicy, roller: Graded, chosen: GrpoSettings, out: Path
) -> StepGrpoTrainer:
    scheme = Scheme(
        chosen.group, chosen.turn_weight, chosen.outcome_weight, chosen.credit, 0, chosen.probe, 0.5
    )
    arguments = dr_grpo_arguments(chosen, out, 0)
    start = policy.copy()
    return StepGrpoTrainer(policy, roller, scheme, start=start, args=arguments, keys=roller.keys)


@pytest.mark.parametrize("kernels", [False, True])
def test_loss_and_gradient_are_our_own_ten_lines(
    scene: Scene, policy: OwnPolicy, tmp_path: Path, kernels: bool
) -> None:
    chosen = settings(turn_weight=0.7, outcome_weight=1.5, temperature=1.2)
    roller = graded(scene, chosen)
    trainer = trainer_of(policy, roller, chosen, tmp_path)
    keys = [key for key in roller.keys[:2] for _ in range(4)]
    trainer.model.train()
    batch = trainer._generate_and_score_completions([{"prompt": key} for key in keys])
    assert batch["advantages"].shape == batch["completion_ids"].shape
    trainer.current_gradient_accumulation_steps = 1
    names = [name for name, _ in policy.model.named_parameters()]
    parts = list(policy.model.parameters())
    fast = policy.kernels([policy.model], temperature=1.2, low=False, threads=2)
    with fast if kernels else nullcontext():
        theirs = trainer.compute_loss(trainer.model, batch)
        their_gradients = torch.autograd.grad(theirs, parts)
    ours = own_loss(policy.model, roller.made, chosen)
    assert abs(float(ours.detach())) > 1e-5, "an all-zero loss would show nothing"
    assert float(theirs.detach()) == pytest.approx(float(ours.detach()), abs=1e-6)
    for name, one, other in zip(
        names, their_gradients, torch.autograd.grad(ours, parts), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-6), name


def test_the_outcome_part_is_what_trl_computes_itself(
    scene: Scene, policy: OwnPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(turn_weight=0.0)
    roller = graded(scene, chosen)
    trainer = trainer_of(policy, roller, chosen, tmp_path)
    seen: list[torch.Tensor] = []
    real = GRPOTrainer._generate_and_score_completions

    def spy(self: Any, inputs: Any) -> Any:
        output = real(self, inputs)
        seen.append(output["advantages"].clone())
        return output

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", spy)
    keys = [key for key in roller.keys[:2] for _ in range(4)]
    batch = trainer._generate_and_score_completions([{"prompt": key} for key in keys])
    sampled = (batch["completion_mask"] * batch["tool_mask"]).bool()
    wanted = seen[0][:, None].expand_as(batch["advantages"])
    assert torch.allclose(batch["advantages"][sampled], wanted[sampled], atol=1e-6)
    assert not batch["advantages"][~sampled].any()


# ---- a run


def test_a_run_logs_what_a_sceptic_asks_for(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    chosen = settings(3)
    trainer = train_grpo(policy, graded(scene, chosen), chosen, tmp_path, seed=1, report=quiet)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    wanted = {
        "groups/all_fail", "groups/mixed", "groups/all_success", "kl_to_start",
        "sampling/logp_gap", "sampling/logp_gap_max", "calls/per_rollout", "calls/per_turn",
        "audit/invented_ids", "audit/long_lists", "audit/blind_end", "audit/terminated",
        "step_reward", "success", "reward", "loss", "grad_norm", "unscored", "entropy",
    }  # fmt: skip
    for row in rows:
        assert wanted <= row.keys()
        shares = [row[f"groups/{kind}"] for kind in ("all_fail", "mixed", "all_success")]
        assert sum(shares) == pytest.approx(1)
        assert row["sampling/logp_gap_max"] < 1e-3, "sampler and trainer agree"
    assert rows[0]["kl_to_start"] == pytest.approx(0, abs=1e-6)
    assert rows[2]["kl_to_start"] > 1e-6, "logged though beta is 0"
    assert trainer.args.beta == 0
    pictures = draw_curves({"one": tmp_path}, tmp_path / "curves.png")
    assert pictures.stat().st_size > 10_000


def test_a_seed_reproduces_a_run_and_another_does_not(
    scene: Scene, checkpoint: Path, tmp_path: Path
) -> None:
    ends = []
    for number, seed in enumerate((3, 3, 4)):
        policy, chosen = OwnPolicy(checkpoint, slots=16), settings()
        train_grpo(
            policy, graded(scene, chosen), chosen, tmp_path / str(number), seed=seed, report=quiet
        )
        ends.append(weights(policy))
    assert same(ends[0], ends[1])
    assert not same(ends[0], ends[2])


def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    scene: Scene, checkpoint: Path, tmp_path: Path
) -> None:
    whole, broken = OwnPolicy(checkpoint, slots=16), OwnPolicy(checkpoint, slots=16)
    chosen = settings(4)  # two epochs, and the state is at the edge of them
    train_grpo(
        whole, graded(scene, chosen, problems=4), chosen, tmp_path / "a", seed=2, report=quiet
    )
    out = tmp_path / "b"

    def killed(share: float, note: str) -> None:
        if share >= 0.75:
            raise Killed

    with pytest.raises(Killed):
        train_grpo(broken, graded(scene, chosen, problems=4), chosen, out, seed=2, report=killed)
    assert [row["step"] for row in read_metrics(out)] == [1, 2, 3]
    torn = out / STATES / "checkpoint-3"
    torn.mkdir()
    assert str(last_state(out)).endswith("checkpoint-2"), "a torn state is passed over"
    for _ in range(2):  # and again, where the same save was cut short twice
        torn.mkdir()
        (torn / "model.safetensors").touch()
        assert str(last_state(out)).endswith("checkpoint-2")
    again = OwnPolicy(checkpoint, slots=16)
    train_grpo(again, graded(scene, chosen, problems=4), chosen, out, seed=2, report=quiet)
    assert [row["step"] for row in read_metrics(out)] == [1, 2, 3, 4]
    assert same(weights(whole), weights(again))
    plain = [{k: v for k, v in row.items() if k != "step_time"} for row in read_metrics(out)]
    wanted = [
        {k: v for k, v in row.items() if k != "step_time"} for row in read_metrics(tmp_path / "a")
    ]
    assert plain[-1]["reward"] == wanted[-1]["reward"]


def test_no_dropout_with_an_adapter_that_drops(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    adapter = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.5, target_modules=["q_proj", "up_proj"])
    policy.model = get_peft_model(policy.model, adapter)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    trained: list[bool] = []

    def passed(module: Any, given: tuple[torch.Tensor], made: torch.Tensor) -> None:
        if module.training:  # sampler and probes run without dropout whatever the arguments say
            trained.append(torch.equal(given[0], made))

    drops = [each for each in policy.model.modules() if isinstance(each, torch.nn.Dropout)]
    assert drops
    for module in drops:
        module.register_forward_hook(passed)
    chosen = settings(2)
    train_grpo(policy, graded(scene, chosen), chosen, tmp_path, seed=1, report=quiet)
    assert len(trained) >= 2 * 2 * len(drops), "two updates on two parts of a batch"
    assert all(trained), "nothing is dropped while it trains"
    rows = read_metrics(tmp_path)
    assert max(row["sampling/logp_gap_max"] for row in rows) < 1e-3
    assert rows[1]["kl_to_start"] > 0, "the start is the model without its adapter"


def test_prefix_mode_runs_without_a_world(scene: Scene, policy: OwnPolicy, tmp_path: Path) -> None:
    chosen = settings(2, reward="prefix")
    prefixes = [
        prefix
        for talk in scene.talks[:2]
        for prefix in prefixes_of(talk.problem_id, talk.messages, talk.tools)
    ]
    roller = PrefixRoller(prefixes, scene.codec, chosen.play())
    train_grpo(policy, roller, chosen, tmp_path, seed=1, report=quiet)
    rows = read_metrics(tmp_path)
    assert all(-3 <= row["reward"] <= 4 for row in rows)
    assert "calls/per_rollout" not in rows[0]


def test_a_loss_that_is_no_number_stops_and_keeps_the_state(
    scene: Scene, checkpoint: Path, policy: OwnPolicy, tmp_path: Path
) -> None:
    class Bad(Graded):
        calls = 0

        def roll(
            self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler
        ) -> list[Rollout]:
            self.calls += 1
            found = super().roll(keys, seeds, sampler)
            if self.calls < 4:
                return found
            return [replace(r, outcome=1e38 * n) for n, r in enumerate(found)]

    chosen, out = settings(5), tmp_path / "run"
    with pytest.raises(IntegrityError, match="not a number at step 4"):
        train_grpo(policy, Bad(graded(scene, chosen).inner), chosen, out, seed=1, report=quiet)
    state = last_state(out)
    assert state is not None
    assert state.endswith("checkpoint-2"), "the broken step is not saved"
    kept = load_file(Path(state) / "model.safetensors")
    assert all(bool(torch.isfinite(value).all()) for value in kept.values())
    assert [row["step"] for row in read_metrics(out)] == [1, 2, 3]
    ends = []
    for folder in (out, tmp_path / "straight"):
        fresh = OwnPolicy(checkpoint, slots=16)
        train_grpo(fresh, graded(scene, chosen), chosen, folder, seed=1, report=quiet)
        ends.append(weights(fresh))
    assert same(*ends), "it goes on from the state as if nothing had been"


# ---- settings


def test_the_arguments_are_dr_grpo_and_fit_for_a_cpu(tmp_path: Path) -> None:
    made = dr_grpo_arguments(settings(), tmp_path, 7)
    assert (made.loss_type, made.scale_rewards, made.beta) == ("dr_grpo", "none", 0.0)
    assert (made.bf16, made.gradient_checkpointing, made.disable_dropout) == (False, False, True)
    assert made.num_generations == 4
    assert made.generation_batch_size == 8
    assert made.report_to == []


def test_a_server_is_chosen_by_configuration(tmp_path: Path) -> None:
    made = dr_grpo_arguments(settings(base_url="http://127.0.0.1:9"), tmp_path, 7)
    assert (made.use_vllm, made.vllm_mode) == (True, "server")
    assert made.vllm_server_base_url == "http://127.0.0.1:9"


@pytest.mark.parametrize("wrong", [{"group": 1}, {"temperature": 0.0}, {"group": 3}, {"groups": 3}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        settings(**wrong)


def test_the_dry_run_is_small_and_valid() -> None:
    small = shrink(GrpoSettings())
    assert small.group * small.groups == 4
    assert small.trl.max_steps == 2


def test_a_group_may_lie_in_several_processes_that_a_launcher_starts() -> None:
    few = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
    trl = msgspec.structs.replace(settings().trl, **few)
    with pytest.raises(ConfigError, match="are no batch of 2"):
        settings(trl=trl)
    launched = settings(trl=msgspec.structs.replace(trl, launch=("torchrun",)))
    check_batch(launched.trl, 8, 4)
    with pytest.raises(ConfigError, match="2 processes take 4 rollouts an update.*makes 8"):
        check_batch(launched.trl, 8, 2)
