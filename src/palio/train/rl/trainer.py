"""Dr. GRPO on TRL's trainer, with rollouts in the world and an advantage for every token.

TRL generates by `rollout_func`, and its loss accepts (B, T) advantages from subclasses. This class
supplies both and measures what the loss does not show: how far the policy is from its start, how
far the sampler is from the trainer, and whether the policy still calls tools. Nothing is computed
that the loss does not need: padding, results of tools, and tokens without an advantage, unless a
field of TRL's that averages over all of them was set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from datasets import Dataset  # type: ignore[import-untyped]
from torch import Tensor, nn
from transformers import PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from palio.train.disk import WholeStates
from palio.train.rl.advantages import (
    CreditKind,
    outcome_advantages,
    token_advantages,
    turn_advantages,
)
from palio.train.rl.audit import audit_means, group_shares, success_rate
from palio.train.rl.credit import Told, check_teacher, credit_measures
from palio.train.rl.hooks import audits_of, rolled
from palio.train.rl.order import EpochSampler
from palio.train.rl.policy import Policy
from palio.train.rl.rollouts import Roller, Rollout
from palio.train.rl.sampler import sampling_mode
from palio.train.rl.watch import CallWatch


class Scheme(NamedTuple):
    """How rewards become advantages, and what is watched.

    Attributes:
        group: rollouts of one key.
        turn_weight: of A_turn; 0: outcome only.
        outcome_weight: lambda, of A_outcome.
        credit: what a turn answers for.
        seed: of the rollouts.
        probe: rollouts of a step on which KL and the sampler's gap are measured; 0: never.
        probe_every: steps from one such measurement to the next.
        watch: the run stops when two steps in a row make less than this share of the first one's
            calls; 0: never.
    """

    group: int
    turn_weight: float
    outcome_weight: float
    credit: CreditKind
    seed: int
    probe: int
    watch: float
    probe_every: int = 1


class StepGrpoTrainer(WholeStates, GRPOTrainer):
    """`GRPOTrainer` over a roller; see the module.

    Args:
        policy: the model that is trained, and how it is sampled.
        roller: makes rollouts of the keys that stand in the dataset's `prompt` column.
        scheme: rewards to advantages.
        start: frozen copy of the policy at the start; None: its adapter switched off.
        args: TRL's; `dr_grpo_arguments` makes them.
        keys: what to roll out.
        more: further arguments of `GRPOTrainer`, e.g. callbacks.
    """

    def __init__(
        self,
        policy: Policy,
        roller: Roller,
        scheme: Scheme,
        *,
        start: nn.Module | None,
        args: GRPOConfig,
        keys: Sequence[str],
        **more: Any,
    ) -> None:
        self.policy, self.roller, self.scheme = policy, roller, scheme
        self.rolled: list[Rollout] = []
        self._wanted: Tensor | None = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
            super().__init__(
                model=policy.model,
                reward_funcs=[self.outcome],
                args=args,
                train_dataset=Dataset.from_dict({"prompt": list(keys)}),
                processing_class=policy.tokenizer,
                rollout_func=_roll,
                **more,
            )
        self.remove_callback(PrinterCallback)
        self.add_callback(CallWatch(scheme.watch))
        self._start = start
        if self._start is not None:
            self._start.to(self.accelerator.device)
            add_fused_lm_head(self._start, temperature=self.temperature)

    @property
    def watch(self) -> CallWatch:
        """The one that the run has: transformers may make it anew from a state."""
        return next(c for c in self.callback_handler.callbacks if isinstance(c, CallWatch))

    def _get_train_sampler(self, dataset: Any = None) -> EpochSampler:
        """TRL's, in the same order after a kill."""
        return EpochSampler.of(super()._get_train_sampler(dataset))

    def outcome(self, prompts: Sequence[str], **_: Any) -> list[float | None]:
        """TRL's reward function: the outcome of the rollouts just made."""
        assert len(prompts) == len(self.rolled)
        return [rollout.outcome for rollout in self.rolled]

    def roll(self, keys: Sequence[str]) -> dict[str, Any]:
        """Rollouts with the current weights, in the form that TRL wants."""
        self.rolled = rolled(self, self.policy, self.roller, keys, self.scheme.seed)
        return {
            "prompt_ids": [rollout.prompt for rollout in self.rolled],
            "completion_ids": [rollout.completion for rollout in self.rolled],
            "logprobs": [rollout.logprobs for rollout in self.rolled],
            "env_mask": [[int(one) for one in rollout.mask] for rollout in self.rolled],
        }

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch, with (B, T) advantages."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        everyone: list[Told] = gather_object([Told.of(each) for each in self.rolled])
        check_teacher(everyone, self.state.global_step + 1)
        first = self.accelerator.process_index * len(self.rolled)
        output["advantages"] = self._advantages(everyone, first, output["completion_ids"])
        self._measure(everyone)
        self._probe(output)
        return output

    def _advantages(self, everyone: Sequence[Told], first: int, completions: Tensor) -> Tensor:
        scheme, group = self.scheme, self.scheme.group
        outcomes = outcome_advantages([each.outcome for each in everyone], group)
        turns = turn_advantages([each.credits for each in everyone], group, scheme.credit)
        rows = [
            token_advantages(
                completions.shape[1],
                rollout.spans,
                turns[first + at],
                outcomes[first + at],
                turn_weight=scheme.turn_weight,
                outcome_weight=scheme.outcome_weight,
            )
            for at, rollout in enumerate(self.rolled)
        ]
        return torch.tensor(rows, dtype=torch.float32, device=completions.device)

    def _measure(self, everyone: Sequence[Told]) -> None:
        """Group statistics and audit counts, over the rollouts of all processes."""
        known = [None if each.outcome is None else each.success for each in everyone]
        found = {**group_shares(known, self.scheme.group), **success_rate(known)}
        found |= credit_measures(everyone)
        audits = audits_of(self.rolled)
        if audits:
            found |= audit_means(audits)
            self.watch.note(found["calls/per_rollout"], self.state.global_step + 1)
        for name, value in found.items():
            self._metrics["train"][name].append(value)

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """TRL's loss over the tokens that count in it; the others add 0."""
        inputs = lean(inputs, every=counts_all(self.args))
        with self._scoring((inputs["completion_mask"] * inputs["tool_mask"]).bool()):
            loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        return loss

    @contextmanager
    def _scoring(self, wanted: Tensor) -> Iterator[None]:
        """Only these places of the completions are scored; the others get 0."""
        self._wanted = wanted
        try:
            yield
        finally:
            self._wanted = None

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        keep: int,
        *a: Any,
        **k: Any,
    ) -> Any:
        """TRL's, which scores every token of a completion, unless told which are wanted."""
        if self._wanted is None:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, keep, *a, **k
            )
        labels = torch.full_like(input_ids, -100)
        labels[:, -keep:] = input_ids[:, -keep:].masked_fill(~self._wanted, -100)
        with self.accelerator.autocast():
            scored = model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                labels=labels,
                fused_lm_head=True,
            )
        entropies = None if scored.entropy is None else scored.entropy[:, -keep:]
        return scored.log_probs[:, -keep:], entropies, None

    @torch.no_grad()
    def _probe(self, output: dict[str, Tensor]) -> None:
        """KL to the start and the sampler's gap, in nats a sampled token, dropout off.

        Where the chosen rollouts have no sampled token there is nothing to measure; the models are
        asked all the same, for other processes may wait for this one's part.
        """
        count = min(self.scheme.probe, len(self.rolled))
        if not count or self.state.global_step % self.scheme.probe_every:
            return
        # evenly over the batch: the first rows are all of one problem
        rows = torch.arange(count) * len(self.rolled) // count
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)[rows]
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)[rows]
        width = output["completion_ids"].shape[1]
        sampled = (output["completion_mask"] * output["tool_mask"])[rows].bool()
        scored = sampled if sampled.any() else output["completion_mask"][rows].bool()
        with sampling_mode(self.model), self._scoring(scored):
            now = self._logprobs(self.model, ids, mask, width)
            then = self._start_logprobs(ids, mask, width)
        if not sampled.any():
            return
        gap = (now - output["sampling_per_token_logps"][rows])[sampled].abs()
        change = (then - now)[sampled]
        found = {
            "sampling/logp_gap": gap.mean(),
            "sampling/logp_gap_max": gap.max(),
            "kl_to_start": (change.exp() - change - 1).mean(),
        }
        for name, value in found.items():
            self._metrics["train"][name].append(float(value))

    def _start_logprobs(self, ids: Tensor, mask: Tensor, width: int) -> Tensor:
        if self._start is not None:
            return self._logprobs(self._start, ids, mask, width)
        with self.accelerator.unwrap_model(self.model).disable_adapter():
            return self._logprobs(self.model, ids, mask, width)

    def _logprobs(self, model: nn.Module, ids: Tensor, mask: Tensor, width: int) -> Tensor:
        found: Tensor = self._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
        return found


def counts_all(args: GRPOConfig) -> bool:
    """Whether a sampled token counts in the loss though its advantage is 0.

    Dr. GRPO's own loss is a sum divided by a constant. But the entropy bonus is a mean over all
    sampled tokens, the most uncertain tokens are a share of them, and the ratio and the distance to
    the sampler of a whole rollout are means over its tokens.
    """
    return bool(
        args.entropy_coef
        or args.top_entropy_quantile < 1.0
        or args.importance_sampling_level != "token"
        or args.off_policy_mask_threshold is not None
    )


def lean(inputs: dict[str, Any], *, every: bool) -> dict[str, Any]:
    """A batch without columns of padding alone, and without tokens that do not count in the loss.

    Their old log-probabilities go as well: such a token is scored 0, and exp(0 - old) would be
    infinite below -88, and times an advantage of 0 no number.

    Of a batch without any tokens that count the shortest row keeps those that were sampled, so that
    there is something to call `backward` on.

    Args:
        inputs: TRL's; prompts padded on the left, completions on the right, (B, T) advantages.
        every: all sampled tokens count, and not only those that have an advantage (`counts_all`).
    """
    left = int(inputs["prompt_mask"].sum(1).max())
    right = int(inputs["completion_mask"].sum(1).max())
    full = inputs["completion_ids"].shape
    out = dict(inputs)
    for name, value in inputs.items():
        if name in ("prompt_ids", "prompt_mask"):
            out[name] = value[:, value.shape[1] - left :]
        elif isinstance(value, Tensor) and value.shape == full:
            out[name] = value[:, :right]
    sampled = out["tool_mask"] * out["completion_mask"]  # TRL's mask of tools is 1 in padding
    counted = sampled if every else sampled * (out["advantages"] != 0)
    if not counted.any():
        sizes = sampled.sum(1)
        shortest = int(sizes.masked_fill(sizes == 0, right + 1).argmin())
        counted[shortest] = sampled[shortest]
    if "old_per_token_logps" in out:
        out["old_per_token_logps"] = out["old_per_token_logps"].masked_fill(counted == 0, 0.0)
    return {**out, "tool_mask": counted}


def _roll(prompts: Sequence[str], trainer: StepGrpoTrainer) -> dict[str, Any]:
    """TRL's `rollout_func`: given before the trainer exists, hence no method."""
    return trainer.roll(prompts)
