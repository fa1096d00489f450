"""The loss falls; a run does not depend on threads, goes on after SIGKILL, and fails aloud."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from palio.cli.main import app
from palio.corpus.rows import CorpusRow
from palio.records import ConfigError, InputError, IntegrityError, Message, ResumeError, to_json
from palio.train.batches import Example, batches, collate
from palio.train.checkpoint import load_checkpoint
from palio.train.documents import Author, Material, verdict_text
from palio.train.inputs import chosen
from palio.train.loop import LOSS_TOKENS, Mixture, Stage, StageConfig, rate_at
from palio.train.model import Qwen3
from palio.train.optimiser import Optimiser, OptimiserConfig, orthogonal
from palio.train.reading import load_recipe
from palio.train.recipe import DataConfig, Recipe, shortened
from palio.train.run import Options, Trained, read_curve
from palio.train.run import train as train_certified
from palio.train.settings import SftSettings
from palio.train.team import Team
from palio.train.tokenizer import ChatTokenizer

examples = st.lists(st.integers(2, 300), min_size=1, max_size=200).map(
    lambda sizes: [Example(tuple(range(size)), (0,)) for size in sizes]
)


@given(examples, st.integers(50, 2000), st.integers(0, 5))
def test_an_epoch_holds_every_example_once(
    given_examples: list[Example], budget: int, seed: int
) -> None:
    stream = batches(given_examples, budget, random.Random(seed))
    seen: list[int] = []
    while len(seen) < len(given_examples):
        batch = next(stream)
        seen.extend(batch)
        longest = max(len(given_examples[at].ids) for at in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
    assert sorted(seen) == list(range(len(given_examples)))


def test_nothing_has_no_batches() -> None:
    with pytest.raises(ValueError, match="no examples"):
        next(batches([], 100, random.Random(0)))


def test_labels_are_the_tokens_that_follow(
    talks: list[Sequence[Message]], tokenizer: ChatTokenizer
) -> None:
    encoded = [tokenizer.encode_chat(talk) for talk in talks[:3]]
    made = [Example.of(one, 2000) for one in encoded]
    batch = collate([one for one in made if one], tokenizer.pad)
    flat, width = batch.inputs.flatten(), batch.inputs.shape[1]
    wanted = [t for ids, on in encoded for t, trained in zip(ids, on, strict=True) if trained]
    assert batch.labels.tolist() == wanted
    inside = batch.keep[batch.keep % width < width - 1]
    follows = dict(zip(batch.keep.tolist(), batch.labels.tolist(), strict=True))
    assert all(int(flat[at + 1]) in (follows[int(at)], tokenizer.pad) for at in inside)
    assert Example.of(encoded[0], 10) is None


def test_orthogonal_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 48, 96)).float())
    assert values.min() > 0.7
    assert values.max() < 1.3


def test_rates_rise_hold_and_fall() -> None:
    config = StageConfig(tokens=1, warmup=0.1, decay=0.5, floor=0.1)
    rates = [rate_at(share, config) for share in (0.0, 0.05, 0.2, 0.5, 0.75, 1.0)]
    assert rates[0] == 0.1
    assert rates[1] == pytest.approx(0.51)
    assert rates[2:] == [1.0, 1.0, 0.5, 0.1]


def test_documents_answer_their_own_questions(talks: list[Sequence[Message]]) -> None:
    author = Author(Material(talks), 4)
    for _ in range(30):
        text = "".join(part.text for part in author.verdicts())
        assert text.count("need ") >= 3
        pairs = [part for part in author.equality() if part.text.strip()]
        for asked, told in zip(pairs[::2], pairs[1::2], strict=True):
            wanted, seen = asked.text.split()
            assert (told.text == " yes") == (wanted == seen)
            assert told.trained
            assert not asked.trained
        *_, page = (line for line in "".join(p.text for p in author.fitting()).splitlines()[:1])
        assert {"product_id", "title"} <= json.loads(page)[0].keys()
    seen = {"color": "red", "size": "xl"}
    assert verdict_text({"color": "red", "size": "s"}, seen) == " red red yes s xl no."
    assert verdict_text({"color": "blue", "size": "s"}, seen) == " blue red no."


def test_documents_are_no_conversations(talks: list[Sequence[Message]]) -> None:
    author = Author(Material(talks), 4)
    weights = {"copy": 1.0, "lookup": 1.0, "fit": 1.0, "verdict": 1.0, "least": 1.0, "far": 1.0}
    written = author.write(weights, 40)
    assert written == Author(Material(talks), 4).write(weights, 40)
    for document in written:
        text = "".join(part.text for part in document)
        assert "tool_call" not in text
        assert "recommend" not in text


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "none has a weight"),
        ({"copy": 0.0}, "none has a weight"),
        ({"poem": 1.0}, "'poem' cannot be"),
        ({"copy": -1.0}, "'copy' cannot be"),
    ],
)
def test_weights_that_draw_no_document_are_refused(
    talks: list[Sequence[Message]], weights: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Author(Material(talks), 4).write(weights, 5)


def stage(
    model: Qwen3, found: list[Example], *, threads: int, tokens: int, **rates: float
) -> tuple[list[float], list[torch.Tensor]]:
    config = StageConfig(tokens=tokens, batch=600, optimiser=OptimiserConfig(**rates))
    losses: list[float] = []
    with Team(threads) as team:
        Stage(
            "t",
            model,
            Optimiser(model, config.optimiser),
            Mixture([("t", found, 1.0)], config.batch, 0),
            config,
            team=team,
            pad=0,
            report=lambda point: losses.append(point.loss),
            save=lambda progress: None,
            every=0.0,
        ).run()
    return losses, [value.detach().clone() for value in model.parameters()]


@pytest.fixture(scope="session")
def found(talks: list[Sequence[Message]], tokenizer: ChatTokenizer) -> list[Example]:
    made = [Example.of(one, 600) for one in tokenizer.encode_chats(talks)]
    return [one for one in made if one]


def fresh(small: Qwen3) -> Qwen3:
    model = Qwen3(small.config)
    model.initialise(1)
    return model


def test_the_loss_falls_and_threads_change_nothing(small: Qwen3, found: list[Example]) -> None:
    one, weights = stage(fresh(small), found, threads=1, tokens=20_000)
    two, same = stage(fresh(small), found, threads=2, tokens=20_000)
    assert one == two
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    assert sum(one[-3:]) / 3 < one[0] - 1.0  # nats a token


def test_a_loss_that_is_no_number_stops_the_run(small: Qwen3, found: list[Example]) -> None:
    model = fresh(small)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    before = [value.detach().clone() for value in model.parameters()]
    with pytest.raises(IntegrityError, match="not a number"):
        stage(model, found, threads=1, tokens=5_000)
    after = list(model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before[:-1], after[:-1], strict=True))


# ---- whole runs


@pytest.fixture(scope="session")
def corpus(talks: list[Sequence[Message]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rows = [
        CorpusRow(
            messages=tuple(m.to_openai() for m in talk),
            tools="[]",
            trajectory_id=str(at),
            problem_id=str(at),
            cluster_id=str(at),
            agent="careful",
            kind="product",
        )
        for at, talk in enumerate(talks)
    ]
    (folder / "train.jsonl").write_bytes(b"".join(to_json(row) + b"\n" for row in rows))
    return folder


RECIPE = """
name = "test"
[model]
vocabulary = 900
sample = 50
hidden_size = 64
intermediate_size = 96
layers = 2
head_dim = 16
[[stage]]
kind = "base"
tokens = 4000
batch = 600
kinds = { copy = 1.0, lookup = 1.0, equal = 1.0 }
[[stage]]
kind = "sft"
tokens = 9000
batch = 600
documents = 0.2
"""


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "test.toml"
    path.write_text(RECIPE)
    return path


BARE = Options(uncertified=True)


def train(recipe: Recipe, corpus: Path, out: Path) -> Trained:
    return train_certified(recipe, corpus, out, options=BARE)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder).model.state_dict()


def test_of_one_problem_the_row_with_the_most_thinking_is_kept() -> None:
    def row(problem: str, thinking: str) -> CorpusRow:
        message = Message(role="assistant", content="x", reasoning_content=thinking)
        plain = (message.to_openai(),)
        return CorpusRow(
            messages=plain,
            tools="[]",
            trajectory_id=thinking,
            problem_id=problem,
            cluster_id=problem,
            agent="a",
            kind="product",
        )

    rows = [row("p", "a"), row("q", "bb"), row("p", "cccc"), row("p", "ddd")]
    kept = {most: [r.trajectory_id for r in chosen(rows, most)] for most in (0, 1, 2)}
    assert kept == {0: ["a", "bb", "cccc", "ddd"], 1: ["bb", "cccc"], 2: ["bb", "cccc", "ddd"]}


def test_a_run_killed_on_the_way_ends_as_if_it_was_not(
    corpus: Path, recipe: Path, tmp_path: Path
) -> None:
    wanted = load_recipe(str(recipe))
    whole = train(wanted, corpus, tmp_path / "whole")
    code = (
        "import sys; from pathlib import Path\n"
        "from palio.train.reading import load_recipe; from palio.train.run import Options, train\n"
        "train(load_recipe(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]),"
        " options=Options(save_every=0.0, uncertified=True))\n"
    )
    killed = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", code, str(recipe), str(corpus), str(killed)])
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        state = killed / "sft" / "state.pt"
        if state.exists() and torch.load(state)["progress"]["step"] >= 2:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "sft" / "checkpoint").exists()
    again = train(wanted, corpus, killed)
    assert [stage.skipped for stage in again.stages] == [True, False]
    assert again.stages[1].counts == whole.stages[1].counts
    counts = whole.stages[1].counts
    assert 0 < counts[LOSS_TOKENS] < counts["tokens"]
    expected, got = weights(whole.final), weights(again.final)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    steps = [(p.stage, p.step) for p in read_curve(killed)]
    assert steps == sorted(set(steps))
    assert not (killed / "sft" / "state.pt").exists()


def test_fresh_weights_do_not_depend_on_threads(corpus: Path, recipe: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = tmp_path / str(threads)
            made.append(
                weights(train(load_recipe(str(recipe)), corpus, out).named("base").checkpoint)
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


def test_a_finished_run_is_not_run_again_and_another_one_is_refused(
    corpus: Path, recipe: Path, tmp_path: Path
) -> None:
    wanted = load_recipe(str(recipe))
    first = train(wanted, corpus, tmp_path / "run")
    stamp = (first.final / "model.safetensors").stat().st_mtime_ns
    again = train(wanted, corpus, tmp_path / "run")
    assert all(stage.skipped for stage in again.stages)
    assert again.final == first.final
    assert (first.final / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(ResumeError, match=r"seed: 0 -> 1"):
        train(msgspec.structs.replace(wanted, seed=1), corpus, tmp_path / "run")
    outcome = CliRunner().invoke(app, ["train", "curve", str(tmp_path / "run"), "--json"])
    assert {p["stage"] for p in json.loads(outcome.stdout)} == {"base", "sft"}


def test_bad_input_is_named(corpus: Path, recipe: Path, tmp_path: Path) -> None:
    wanted = load_recipe(str(recipe))
    with pytest.raises(InputError, match="no such corpus file"):
        train(wanted, tmp_path / "nothing", tmp_path / "a")
    (tmp_path / "train.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="no rows"):
        train(wanted, tmp_path, tmp_path / "b")
    short = msgspec.structs.replace(wanted, data=DataConfig(longest=20))
    with pytest.raises(InputError, match="as short as 20"):
        train(short, corpus, tmp_path / "c")
    assert not (tmp_path / "c" / "base" / "metrics.jsonl").exists(), "before anything is trained"
    with pytest.raises(ConfigError, match="no such recipe"):
        load_recipe("nowhere")
    (tmp_path / "odd.toml").write_text(RECIPE.replace("batch", "bach"))
    with pytest.raises(ConfigError, match="bach"):
        load_recipe(str(tmp_path / "odd.toml"))


def test_the_bundled_recipe_reads_and_shares_out_its_minutes() -> None:
    cut = shortened(load_recipe("demo"), 4.0)
    minutes = [
        stage.settings.minutes for stage in cut.stages if isinstance(stage.settings, SftSettings)
    ]
    assert len(minutes) == len(cut.stages) == 2
    assert sum(minutes) == pytest.approx(4.0)


def test_a_time_limit_shortens_the_schedule_and_is_told(
    corpus: Path, recipe: Path, tmp_path: Path
) -> None:
    wanted = load_recipe(str(recipe))
    base, sft = wanted.stages
    settings = msgspec.structs.replace(sft.settings, tokens=10**9, minutes=0.02, documents=0.0)
    stages = (base, msgspec.structs.replace(sft, settings=settings))
    long = msgspec.structs.replace(wanted, stages=stages)
    made = train(long, corpus, tmp_path / "run")
    assert made.shortened
    assert read_curve(tmp_path / "run")[-1].rate < 0.5
