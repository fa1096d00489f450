"""What could not be scored is a third outcome: no rate counts it, and it says who is to blame."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from palio.records import FaultCode, UpstreamError
from palio.train.rl import hooks
from palio.train.rl.audit import group_shares, success_rate
from palio.train.rl.distill import train_distill
from palio.train.rl.grpo import train_grpo
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.rollouts import Play, Rollout, WorldRoller, checked
from palio.train.rl.sampler import Sampler
from palio.train.stage import read_metrics
from tests.train_rl.conftest import Scene, ToldSampler
from tests.train_rl.test_distill import settings as distill_settings
from tests.train_rl.test_grpo import Graded, graded, quiet, settings, trainer_of, weights

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_a_first_prompt_over_longest_is_unscored_and_says_what_to_do(scene: Scene) -> None:
    play = Play(longest=20, max_tokens=8, threads=1)
    roller = WorldRoller(scene.ground.problems[:1], scene.ground, scene.codec, play, scene.teacher)
    sampler = ToldSampler([])
    one = roller.roll(roller.keys, [1], sampler)[0]
    assert sampler.prompts == [], "the model was not asked"
    assert (one.outcome, one.success, one.credits) == (None, False, None)
    assert one.trajectory is not None
    assert one.trajectory.fault is not None
    assert one.trajectory.fault.code == FaultCode.upstream_server_error
    with pytest.raises(UpstreamError, match="more than 20 tokens.*raise `longest`"):
        checked([one], scene.codec.end)


def test_a_later_prompt_over_longest_is_the_models_own(scene: Scene) -> None:
    roller = WorldRoller(scene.ground.problems[:1], scene.ground, scene.codec, Play(threads=1))
    probe = ToldSampler([[scene.codec.end]])
    first = roller.roll(roller.keys, [1], probe)[0]
    said = next(message for message in scene.talks[0].messages if message.role == "assistant")
    ids, trained = scene.tokenizer.encode_chat([scene.talks[0].messages[0], said])
    turn = [token for token, own in zip(ids, trained, strict=True) if own]
    room = Play(longest=len(first.prompt) + len(turn) + 1, threads=1)
    roller = WorldRoller(scene.ground.problems[:1], scene.ground, scene.codec, room)
    one = roller.roll(roller.keys, [1], ToldSampler([turn]))[0]
    assert one.outcome == 0.0
    assert one.audit is not None
    assert (one.audit.turns, one.audit.calls) == (1, 1)


@pytest.mark.parametrize("probe", [0, 4])
def test_a_stage_whose_prompts_are_all_too_long_ends_with_the_reason(
    scene: Scene, policy: OwnPolicy, tmp_path: Path, probe: int
) -> None:
    chosen = settings(longest=20, probe=probe)
    play = chosen.play()
    roller = WorldRoller(scene.ground.problems[:6], scene.ground, scene.codec, play, scene.teacher)
    with pytest.raises(UpstreamError, match="none of 8 rollouts could be scored.*`longest`"):
        train_grpo(policy, roller, chosen, tmp_path, seed=1, report=quiet)
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("others", ["scored", "lost"])
def test_a_process_whose_whole_share_is_lost_ends_as_the_others_do(
    scene: Scene, policy: OwnPolicy, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    """A share may hold one problem alone, whose prompt is over `longest`."""
    play = Play(longest=20, max_tokens=8, threads=1)
    roller = WorldRoller(scene.ground.problems[:1], scene.ground, scene.codec, play, scene.teacher)
    state = SimpleNamespace(deepspeed_plugin=None)
    accelerator = SimpleNamespace(process_index=1, state=state, wait_for_everyone=lambda: None)
    trainer: Any = SimpleNamespace(
        is_fsdp_enabled=False, state=SimpleNamespace(global_step=0), accelerator=accelerator
    )
    told: list[Any] = []

    def gathered(own: list[Any]) -> list[Any]:
        told.append(own)
        return [None if others == "scored" else own[0], *own]

    monkeypatch.setattr(hooks, "gather_object", gathered)
    keys = [roller.keys[0]] * 2
    if others == "lost":
        with pytest.raises(UpstreamError, match="none of 3 rollouts .*raise `longest`") as caught:
            hooks.rolled(trainer, policy, roller, keys, 1)
        assert caught.value.code == FaultCode.upstream_server_error
    else:
        made = hooks.rolled(trainer, policy, roller, keys, 1)
        assert [(each.outcome, each.mask) for each in made] == [(None, [False])] * 2
    assert pickle.loads(pickle.dumps(told)) == told, "that is how it travels"


class Lost(Graded):
    """Graded rollouts of which the first ones of each step are lost to the infrastructure."""

    lost = 4

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        made = super().roll(keys, seeds, sampler)
        gone = [
            replace(
                each, completion=[], mask=[], logprobs=[], spans=(), outcome=None, credits=None,
                success=False,
            )
            for each in made[: self.lost]
        ]  # fmt: skip
        self.made = checked([*gone, *made[self.lost :]], self.inner._codec.end)
        return self.made


def test_a_step_learns_from_the_scored_and_counts_no_other(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    chosen = settings(1)
    lost = Lost(graded(scene, chosen).inner)
    before = weights(policy)
    train_grpo(policy, lost, chosen, tmp_path, seed=1, report=quiet)
    [row] = read_metrics(tmp_path)
    known = [each for each in lost.made if each.outcome is not None]
    assert len(known) == 4
    assert row["unscored"] == 0.5
    assert row["success"] == pytest.approx(sum(each.success for each in known) / 4, abs=1e-6)
    assert row["success"] > 0, "or the mean over all would be the same"
    shares = [row[f"groups/{kind}"] for kind in ("all_fail", "mixed", "all_success")]
    assert sum(shares) == pytest.approx(1)
    assert row["groups/unscored"] == 0.5
    turns = [each.audit.turns for each in known if each.audit]
    assert row["turns/per_rollout"] == pytest.approx(sum(turns) / 4)
    assert any(not torch.equal(value, before[name]) for name, value in weights(policy).items())


def test_calls_that_nobody_could_make_stop_no_run(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    """The watch is for a policy that calls less, not for a server that answers less."""
    chosen = settings(1)
    trainer = trainer_of(policy, graded(scene, chosen), chosen, tmp_path)
    lost = Lost(graded(scene, chosen).inner)
    trainer.roller = lost
    keys = [key for key in lost.keys[:2] for _ in range(4)]
    trainer._generate_and_score_completions([{"prompt": key} for key in keys])
    known = [each.audit.calls for each in lost.made if each.outcome is not None and each.audit]
    assert trainer._metrics["train"]["calls/per_rollout"] == [sum(known) / len(known)]


def test_a_probe_of_rollouts_without_a_token_measures_nothing(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    chosen = settings(1, probe=1)  # the first rollout, which is lost
    train_grpo(policy, Lost(graded(scene, chosen).inner), chosen, tmp_path, seed=1, report=quiet)
    [row] = read_metrics(tmp_path)
    assert "kl_to_start" not in row
    assert "sampling/logp_gap" not in row


def test_distillation_leaves_the_unscored_out_of_its_rate(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    chosen = distill_settings(1)
    lost = Lost(WorldRoller(scene.ground.problems[:8], scene.ground, scene.codec, chosen.play()))
    lost.lost = 2
    train_distill(policy, policy.copy(), lost, chosen, tmp_path, seed=1, report=quiet)
    [row] = read_metrics(tmp_path)
    known = [each.success for each in lost.made if each.outcome is not None]
    assert row["unscored"] == 0.5
    assert row["success"] == sum(known) / len(known)
    assert any(known)


def test_rates_are_of_what_was_scored() -> None:
    assert success_rate([True, False, None, None]) == {"success": 0.5, "unscored": 0.5}
    assert success_rate([True, False]) == {"success": 0.5, "unscored": 0.0}
    assert success_rate([None]) == {"unscored": 1.0}
    shares = group_shares([True, None, False, None, None, None, True, False], 2)
    assert shares == {
        "groups/all_fail": pytest.approx(1 / 3),
        "groups/mixed": pytest.approx(1 / 3),
        "groups/all_success": pytest.approx(1 / 3),
        "groups/unscored": 0.25,
    }
    assert "groups/unscored" not in group_shares([True, None, False, False], 2)


# ---- tokens that are not scored


_ODD = 400
"""A token of the vocabulary that a sharp model gives no chance."""


class Unlikely(Graded):
    """What stands between the turns, as a tool's result does, would never have been sampled."""

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        made = super().roll(keys, seeds, sampler)
        swapped = [
            [token if own else _ODD for token, own in zip(each.completion, each.mask, strict=True)]
            for each in made
        ]
        self.made = [replace(e, completion=ids) for e, ids in zip(made, swapped, strict=True)]
        return self.made


def test_old_scores_of_tokens_without_an_advantage_are_no_danger(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    """With `num_iterations` above 1, or a server, TRL keeps old log-probabilities of all tokens."""
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(300)  # sharp: others are at -100 and below
    trl = msgspec.structs.replace(settings(2).trl, extra={"num_iterations": 2})
    chosen = settings(2, trl=trl, probe=0)
    roller = Unlikely(graded(scene, chosen).inner)
    trainer = trainer_of(policy, roller, chosen, tmp_path / "one")
    keys = [key for key in roller.keys[:2] for _ in range(4)]
    trainer.model.train()
    batch = trainer._generate_and_score_completions([{"prompt": key} for key in keys])
    between = batch["completion_mask"].bool() & ~batch["tool_mask"].bool()
    assert float(batch["old_per_token_logps"][between].min()) < -89, "exp(89) is no fp32 number"
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.compute_loss(trainer.model, batch)
    assert torch.isfinite(loss)
    assert float(loss.detach()) != 0.0
    train_grpo(policy, roller, chosen, tmp_path / "run", seed=1, report=quiet)
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1, 2]
