"""KTO: both labels in every batch, nothing but the assistant trained on, weights in their range."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import PrinterCallback

from palio.records import ConfigError, InputError, IntegrityError
from palio.train.preference.kto import KtoSettings, kto_arguments, shrink, train_kto
from palio.train.preference.labels import (
    LABELLED,
    Labelled,
    class_weights,
    left_out,
    mixed_order,
    read_labels,
    sample_labels,
    summary,
    usable,
)
from palio.train.preference.trainer import MaskedCollator, MaskedKtoTrainer, kto_dataset
from palio.train.rl.hooks import last_state
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.rollouts import Play, WorldRoller
from palio.train.settings import TrlSettings
from palio.train.stage import read_metrics
from palio.train.text import END, assistant_text
from tests.train_rl.conftest import Scene

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_weights_balance_the_classes(right: int, wrong: int) -> None:
    desirable, undesirable = class_weights(right, wrong)
    ratio = desirable * right / (undesirable * wrong)
    assert 1 - 1e-9 <= ratio <= 4 / 3 + 1e-9
    assert min(desirable, undesirable) == 1.0


@given(st.lists(st.booleans(), min_size=2, max_size=200), st.integers(2, 9), st.integers(0, 5))
def test_every_batch_has_both_labels(labels: list[bool], batch: int, seed: int) -> None:
    try:
        order = mixed_order(labels, batch, seed)
    except InputError:
        assert len(set(labels)) == 1 or len(labels) < batch
        return
    assert len(set(order)) == len(order), "no row twice"
    assert len(order) % batch == 0
    for start in range(0, len(order), batch):
        assert {labels[at] for at in order[start : start + batch]} == {True, False}
    full = min(len(labels) // batch, sum(labels), len(labels) - sum(labels))
    assert len(order) == full * batch, "as many batches as can be mixed"
    assert order == mixed_order(labels, batch, seed)


def test_the_share_is_about_the_same_in_every_batch() -> None:
    labels = [at % 4 == 0 for at in range(80)]
    order = mixed_order(labels, 8, 1)
    shares = [sum(labels[at] for at in order[n : n + 8]) for n in range(0, 80, 8)]
    assert set(shares) == {2}


def test_one_label_alone_is_an_error() -> None:
    with pytest.raises(InputError, match="all rollouts are wrong"):
        mixed_order([False] * 9, 3, 0)
    with pytest.raises(InputError, match="do not fill one batch"):
        mixed_order([False, True], 3, 0)


# ---- rows


@pytest.fixture(scope="module")
def rows(scene: Scene) -> list[Labelled]:
    """The careful shopper's conversations, every third one called wrong."""
    made = []
    for number, talk in enumerate(scene.talks[:16]):
        ids, trained = scene.tokenizer.encode_chat(talk.messages)
        cut = trained.index(True)
        made.append(
            Labelled(
                key=talk.problem_id,
                number=0,
                prompt=tuple(ids[:cut]),
                completion=tuple(ids[cut:]),
                mask=tuple(map(int, trained[cut:])),
                label=number % 3 != 0,
            )
        )
    return made


def settings(**more: Any) -> KtoSettings:
    trl = TrlSettings(
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        warmup_ratio=0.0,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        save_steps=2,
    )
    return KtoSettings(**{"trl": trl, **more})


def quiet(share: float, note: str) -> None:
    assert 0 <= share <= 1


def trainer_of(policy: OwnPolicy, rows: list[Labelled], out: Path, **more: Any) -> MaskedKtoTrainer:
    order = mixed_order([bool(row.label) for row in rows], 4, 0)
    chosen = [rows[at] for at in order]
    trainer = MaskedKtoTrainer(
        model=policy.model,
        ref_model=policy.copy(),
        args=kto_arguments(settings(**more), out, 0, (1.0, 1.5)),
        data_collator=MaskedCollator(pad_token_id=policy.codec.pad),
        train_dataset=kto_dataset(chosen, 4),
        processing_class=policy.tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def test_batches_that_reach_the_model_are_mixed_and_masked(
    scene: Scene, policy: OwnPolicy, rows: list[Labelled], tmp_path: Path
) -> None:
    by_ids = {row.prompt + row.completion: row for row in rows}
    talks = {talk.problem_id: talk for talk in scene.talks}
    loader = trainer_of(policy, rows, tmp_path).get_train_dataloader()
    seen = 0
    for batch in loader:
        assert set(batch["label"].tolist()) == {True, False}
        for kind in ("", "KL_"):
            for ids, real, mask in zip(
                batch[f"{kind}input_ids"],
                batch[f"{kind}attention_mask"],
                batch[f"{kind}completion_mask"],
                strict=True,
            ):
                kept = ids[mask.bool()].tolist()
                if not kind:
                    row = by_ids[tuple(ids[real.bool()].tolist())]
                    said = talks[row.key].messages
                    wanted = [assistant_text(m) + END for m in said if m.role == "assistant"]
                    assert scene.tokenizer.decode(kept) == "".join(wanted)
                assert "tool_response" not in scene.tokenizer.decode(kept)
                assert not (mask.bool() & ~real.bool()).any()
        seen += len(batch["label"])
    assert seen == 16


def test_the_kl_estimate_pairs_prompts_with_others_of_their_batch(rows: list[Labelled]) -> None:
    made = kto_dataset(rows[:8], 4)
    for start in (0, 4):
        part = made[start : start + 4]
        assert part["KL_completion_ids"] == [
            part["completion_ids"][-1],
            *part["completion_ids"][:-1],
        ]
        assert part["KL_completion_mask"] == [
            part["completion_mask"][-1],
            *part["completion_mask"][:-1],
        ]


def own_loss(model: Any, start: Any, batch: dict[str, Any], beta: float) -> torch.Tensor:
    """KTO from the paper (eq. 7), over the masked tokens only."""

    def total(one: Any, kind: str) -> torch.Tensor:
        ids, mask = batch[f"{kind}input_ids"], batch[f"{kind}completion_mask"]
        logits = one(input_ids=ids, attention_mask=batch[f"{kind}attention_mask"]).logits[:, :-1]
        picked = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[:, :, 0]
        return (picked * mask[:, 1:]).sum(-1)

    with torch.no_grad():
        then = total(start, "")
        distance = (total(model, "KL_") - total(start, "KL_")).mean().clamp(min=0)
    ratio = total(model, "") - then
    right = 1.0 * (1 - torch.sigmoid(beta * (ratio - distance)))
    wrong = 1.5 * (1 - torch.sigmoid(beta * (distance - ratio)))
    return torch.where(batch["label"], right, wrong).mean()


@pytest.mark.parametrize("kernels", [False, True])
def test_the_loss_is_the_papers(
    policy: OwnPolicy, rows: list[Labelled], tmp_path: Path, kernels: bool
) -> None:
    trainer = trainer_of(policy, rows, tmp_path, beta=0.1)
    start = policy.copy()
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    batch = next(iter(trainer.get_train_dataloader()))
    ours = own_loss(policy.model, start, batch, 0.1)
    models = [policy.model, trainer.ref_model]
    fast = policy.kernels(models, temperature=1.0, low=False, threads=2)
    parts = list(policy.model.parameters())
    with fast if kernels else nullcontext():
        theirs = trainer.compute_loss(trainer.model, batch)
        found = torch.autograd.grad(theirs, parts)
    for one, other in zip(found, torch.autograd.grad(ours, parts), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert float(theirs.detach()) == pytest.approx(float(ours.detach()), abs=1e-6)
    assert float(theirs.detach()) != pytest.approx(0.625, abs=1e-4), "not the loss at the start"


def test_a_reference_that_was_asked_before_says_the_same(
    policy: OwnPolicy, rows: list[Labelled], tmp_path: Path
) -> None:
    trainer = trainer_of(policy, rows, tmp_path)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    wanted = [
        float(trainer.compute_loss(trainer.model, b).detach())
        for b in trainer.get_train_dataloader()
    ]
    trainer.ask_reference()
    trainer.ref_model = None
    batches = list(trainer.get_train_dataloader())
    assert all({"ref_logps", "ref_KL_logps"} <= batch.keys() for batch in batches)
    found = [float(trainer.compute_loss(trainer.model, batch).detach()) for batch in batches]
    assert found == pytest.approx(wanted, abs=1e-6)


# ---- a run


def test_a_run_moves_right_up_and_wrong_down(
    policy: OwnPolicy, rows: list[Labelled], tmp_path: Path
) -> None:
    trl = msgspec.structs.replace(settings().trl, num_train_epochs=5)
    chosen = settings(beta=0.1, trl=trl)
    trainer = train_kto(policy, rows, chosen, tmp_path, seed=1, report=quiet)
    found = read_metrics(tmp_path)
    assert [row["step"] for row in found] == list(range(1, 21))
    assert found[0]["rewards/margins"] == pytest.approx(0, abs=1e-5)
    assert min(row["rewards/margins"] for row in found[-4:]) > 0.05
    assert trainer.args.beta == 0.1
    ratio = trainer.desirable_weight * 10 / (trainer.undesirable_weight * 6)
    assert 1 <= ratio <= 4 / 3


def test_a_killed_run_goes_on(checkpoint: Path, rows: list[Labelled], tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def killed(share: float, note: str) -> None:
        if share >= 0.75:
            raise Killed

    ends = []
    for name in ("a", "b"):
        policy, out = OwnPolicy(checkpoint), tmp_path / name
        if name == "b":
            with pytest.raises(Killed):
                train_kto(policy, rows, settings(), out, seed=3, report=killed)
            policy = OwnPolicy(checkpoint)
        train_kto(policy, rows, settings(), out, seed=3, report=quiet)
        ends.append(policy.model.state_dict())
        assert [row["step"] for row in read_metrics(out)] == [1, 2, 3, 4]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_run_killed_after_its_last_state_makes_no_further_update(
    checkpoint: Path, rows: list[Labelled], tmp_path: Path
) -> None:
    """In the midst of an epoch transformers would: the policy is not saved yet, its state is."""
    trl = msgspec.structs.replace(settings().trl, max_steps=2)
    ends = []
    for _ in range(2):
        policy = OwnPolicy(checkpoint)
        train_kto(policy, rows, settings(trl=trl), tmp_path, seed=3, report=quiet)
        ends.append(policy.model.state_dict())
        assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


@pytest.mark.parametrize(
    ("every", "told"), [(1, "loss is not a number at step 3"), (9, "not numbers at step 4")]
)
def test_a_loss_that_is_no_number_stops_and_keeps_the_state(
    checkpoint: Path, rows: list[Labelled], tmp_path: Path, every: int, told: str
) -> None:
    """Also where the loss is looked at less often than states are saved."""
    policy, out = OwnPolicy(checkpoint), tmp_path / "run"
    trl = msgspec.structs.replace(settings().trl, logging_steps=every)
    batches: list[int] = []

    def poisoned(*_: Any) -> None:
        batches.append(1)
        if len(batches) == 4:
            with torch.no_grad():
                policy.model.model.norm.weight[0] = float("nan")

    real = MaskedCollator.torch_call
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            MaskedCollator, "torch_call", lambda self, rows: poisoned() or real(self, rows)
        )
        with pytest.raises(IntegrityError, match=told):
            train_kto(policy, rows, settings(trl=trl), out, seed=3, report=quiet)
    state = last_state(out)
    assert state is not None
    assert state.endswith("checkpoint-2"), "what is broken is not saved"
    kept = load_file(Path(state) / "model.safetensors")
    assert all(bool(torch.isfinite(value).all()) for value in kept.values())
    ends = []
    for folder in (out, tmp_path / "straight") if every == 1 else ():
        fresh = OwnPolicy(checkpoint)
        train_kto(fresh, rows, settings(trl=trl), folder, seed=3, report=quiet)
        ends.append(fresh.model.state_dict())
    if ends:
        assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_sampling_goes_on_where_it_was_killed(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    ground = scene.ground
    roller = WorldRoller(ground.problems[:3], ground, scene.codec, Play(max_tokens=8, threads=4))
    with policy.sampler(None) as sampler:
        whole = sample_labels(roller, sampler, tmp_path, samples=2, seed=1)
        path = tmp_path / LABELLED
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:4]) + lines[4][:20])
        assert len(read_labels(path)) == 4
        assert sample_labels(roller, sampler, tmp_path, samples=2, seed=1) == whole
    assert len(path.read_bytes().splitlines()) == 6
    counts = summary(whole)
    assert counts["rollouts"] == 6 == counts["wrong"], "a random model solves nothing"
    assert len({row.completion for row in whole}) > 3, "samples of a problem differ"


def test_what_is_unscored_or_too_long_is_left_out(rows: list[Labelled]) -> None:
    unscored = msgspec.structs.replace(rows[0], label=None)
    silent = msgspec.structs.replace(rows[1], mask=(0,) * len(rows[1].mask))
    size = len(rows[2].prompt) + len(rows[2].completion)
    assert usable([unscored, silent, rows[2]], size) == [rows[2]]
    assert usable([rows[2]], size - 1) == []
    assert left_out([unscored, silent, rows[2]], 10_000) == {"too_long": 0, "silent": 1}
    assert left_out([unscored, rows[2]], size - 1) == {"too_long": 1, "silent": 0}


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 rows"):
        KtoSettings(trl=TrlSettings(per_device_train_batch_size=1))
    with pytest.raises(ConfigError, match="beta"):
        KtoSettings(beta=0.0)
    assert KtoSettings().beta == 0.02
    assert shrink(KtoSettings()).trl.max_steps == 2
