"""TRL's own trainers prepare exported rows: every call, no null, the right tokens learned from."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from palio.corpus.config import POOLS
from palio.corpus.writers.export import ExportConfig, export
from palio.records import Trajectory, to_json
from tests.corpus.making import PROBLEMS, made_row, made_trajectory

pytestmark = [
    pytest.mark.slow,  # importing trl alone takes 10 s
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
RUNS = [made_trajectory(f"t{n}", PROBLEMS[n]) for n in range(4)]
MARKS = ("<|im_start|>", "<|im_end|>", "<pad>")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A byte-level tokenizer with palio's chat template: what it decodes is what was rendered."""
    tokenizers = pytest.importorskip("tokenizers", reason="extra train")
    transformers = pytest.importorskip("transformers", reason="extra train")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: number for number, char in enumerate([*alphabet, *MARKS])}
    bare = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = tokenizers.decoders.ByteLevel()
    plain = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare, eos_token="<|im_end|>", pad_token="<pad>"
    )
    plain.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    template = resources.files("palio.train") / "chat_template.jinja"
    plain.chat_template = template.read_text(encoding="utf-8")
    return plain


@pytest.fixture(scope="module")
def model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random Qwen3 of 20,000 parameters, on disk, where KTO looks for its reference."""
    transformers = pytest.importorskip("transformers", reason="extra train")
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    folder = tmp_path_factory.mktemp("model")
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture
def trl(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    pytest.importorskip("datasets", reason="extra train").disable_progress_bars()
    return pytest.importorskip("trl", reason="extra train")


def exported(folder: Path, to: Any, runs: list[Trajectory]) -> Path:
    source = folder / "runs.jsonl"
    source.write_bytes(b"".join(to_json(run) + b"\n" for run in runs))
    export(source, ExportConfig(to=to), folder / "out")
    return folder / "out"


def loaded(folder: Path) -> Any:
    import datasets

    found = datasets.load_dataset(str(folder), cache_dir=str(folder / "cache"))
    assert set(found) <= set(POOLS)
    return found["train"]


def options(folder: Path) -> dict[str, Any]:
    """What a trainer needs to know on a CPU (its defaults are those of a GPU)."""
    return {
        "output_dir": str(folder / "t"),
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }


def says_all(text: str, run: Trajectory, first: int = 0) -> None:
    """The rendered text holds every call with its arguments, in order, and no null."""
    assert "null" not in text
    assert "None" not in text
    at = 0
    for message in run.messages[first:]:
        for call in message.tool_calls:
            at = text.index(call.function.name, at)
            for value in json.loads(call.function.arguments).values():
                at = text.index(value, at)


@pytest.mark.parametrize("to", ["hf", "hf-flat"])
def test_sft_prepares_and_learns_from_every_row(
    tmp_path: Path, to: Any, tokenizer: Any, model: Any, trl: Any
) -> None:
    rows = loaded(exported(tmp_path, to, RUNS))
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(
            **options(tmp_path), max_length=None, assistant_only_loss=True, eos_token="<|im_end|>"
        ),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    assert len(trainer.train_dataset) == len(RUNS)
    for row, run in zip(trainer.train_dataset, RUNS, strict=True):
        says_all(tokenizer.decode(row["input_ids"]), run)
        learned = tokenizer.decode([label for label in row["labels"] if label != -100])
        says_all(learned, run)
        assert "blue mug" in learned
        assert run.query not in learned
        assert '"shop_id"' not in learned
    assert trainer.train().training_loss > 0


def test_kto_takes_prompt_completion_and_label(
    tmp_path: Path, tokenizer: Any, model: Any, trl: Any
) -> None:
    from palio.corpus.build import build
    from palio.corpus.config import CorpusConfig

    rows = [made_row(f"{p.problem_id}-{n}", p, success=n == 0) for p in PROBLEMS for n in range(2)]
    config = CorpusConfig(coefficient=0.3, fractions={"train": 1.0})
    build(rows, PROBLEMS, config, tmp_path / "corpus")
    export(tmp_path / "corpus", ExportConfig(to="kto"), tmp_path / "out")
    found = loaded(tmp_path / "out")
    assert sorted(found["label"]) == [False] * 5 + [True] * 5
    by_name = {row.trajectory.trajectory_id: row.trajectory for row in rows}
    names = list(found["trajectory_id"])
    trainer = trl.KTOTrainer(
        model=model,
        args=trl.KTOConfig(**options(tmp_path), max_length=None, beta=0.02),
        train_dataset=found,
        processing_class=tokenizer,
    )
    assert len(trainer.train_dataset) == 10
    for row, name in zip(trainer.train_dataset, names, strict=True):
        text = tokenizer.decode(row["prompt_ids"]) + tokenizer.decode(row["completion_ids"])
        says_all(text, by_name[name])
    trainer.train()


def test_grpo_prompts_end_where_the_model_goes_on(
    tmp_path: Path, tokenizer: Any, model: Any, trl: Any
) -> None:
    rows = loaded(exported(tmp_path, "grpo", RUNS))
    asked = sum(1 for run in RUNS for message in run.messages if message.tool_calls)
    assert len(rows) == asked
    prompts: list[str] = []

    def reward(completions: Any, teacher_calls: Any, step: Any, **_: Any) -> list[float]:
        assert all(json.loads(calls)[0]["name"] for calls in teacher_calls)
        assert all(isinstance(number, int) for number in step)
        return [float(len(str(completion)) % 3) for completion in completions]

    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=trl.GRPOConfig(
            **options(tmp_path),
            num_generations=2,
            max_completion_length=4,
            loss_type="dr_grpo",
            scale_rewards="none",
            beta=0.0,
        ),
        train_dataset=rows.remove_columns("tools"),
        processing_class=tokenizer,
    )
    for row in trainer.train_dataset:
        text = tokenizer.apply_chat_template(
            row["prompt"], tools=None, add_generation_prompt=True, tokenize=False
        )
        prompts.append(text)
        assert "null" not in text
        assert "None" not in text
        assert text.endswith("<|im_start|>assistant\n")
    assert len(set(prompts)) == asked
    trainer.train()


def test_arguments_as_objects_would_be_filled_with_nulls(trl: Any) -> None:
    """The trap that text avoids: `from_list` gives each call the arguments of all others."""
    import datasets

    calls = [{"name": "a", "arguments": {"q": "x"}}, {"name": "b", "arguments": {"id": "1"}}]
    spoiled = datasets.Dataset.from_list([{"calls": [call]} for call in calls])
    assert "None" in str(spoiled[0]["calls"][0]["arguments"])
    text = [{**call, "arguments": json.dumps(call["arguments"])} for call in calls]
    whole = datasets.Dataset.from_list([{"calls": [call]} for call in text])
    assert [row["calls"][0] for row in whole] == text
