"""The whole main job in small: every stage runs, is resumable, and leaves what it promises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from palio.cli.demo import demo
from palio.evaluate.mainjob import job, learn
from palio.evaluate.mainjob.arena import bulk_shards, read_standings
from palio.evaluate.mainjob.config import MainJobConfig, bundled_jobs, read_config
from palio.evaluate.mainjob.job import MainJobResult, run_main_job
from palio.evaluate.mainjob.learn import recipe_of
from palio.evaluate.mainjob.worlds import evenly, make_worlds, open_ground
from palio.evaluate.pin import checkpoint_pin, pin_of
from palio.evaluate.rollouts import read_identity
from palio.records import ConfigError, IntegrityError, ResumeError
from palio.rollout import read_trajectories
from palio.suites import check_disjoint, read_suite
from palio.train.checkpoint import CHECKPOINT
from palio.train.run import StageDone, Trained
from palio.world.artefacts import file_digest
from palio.world.synthesis.wording import banks_for
from tests.mainjob.silent import SilentReporter

SMALL = MainJobConfig(
    seed=3,
    catalogues=1,
    products=700,
    problems=90,
    race_problems=3,
    reworded=9,
    racers=("careful", "narrator", "shortcut", "crash"),
    others_every=6,
    train_share=0.7,
    development_share=0.1,
    training_minutes=0.15,
    evaluated=6,
    sampled=3,
    samples=2,
)
STAGES = ("world", "race", "bulk", "corpus", "train", "floors", "base", "trained", "reworded")


class Watch(SilentReporter):
    """Remembers which stages ran and which were found finished."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.found: list[str] = []

    def end(self, stage: str, seconds: float, *, skipped: bool) -> None:
        (self.found if skipped else self.ran).append(stage)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MainJobResult]:
    out = tmp_path_factory.mktemp("main-job")
    watch = Watch()
    result = run_main_job(SMALL, out, watch)
    assert tuple(watch.ran) == STAGES
    return out, result


def test_the_summary_is_readable_by_programs(made: tuple[Path, MainJobResult]) -> None:
    summary = json.loads(made[1].summary_path.read_text(encoding="utf-8"))
    assert [stage["name"] for stage in summary["stages"]] == ["base", "after SFT"]
    for stage in summary["stages"]:
        overall = stage["intent"]["overall"]
        assert overall["n"] == 6
        assert 0 <= overall["ci_low"] <= overall["asr"] <= overall["ci_high"] <= 1
        assert {"product", "shop", "voucher"} <= set(stage["intent"])
        assert stage["pass_at_1"] is not None
    assert [floor["name"] for floor in summary["floors"]] == ["first-hit", "random-hit", "reader"]
    asked = 9 - told_left_out(made[0])
    assert summary["reworded"]["intent"]["overall"]["n"] == asked
    assert [floor["intent"]["overall"]["n"] for floor in summary["reworded_floors"]] == 3 * [asked]
    assert summary["seconds"] > 1
    assert summary["peak_rss_mb"] > 100
    assert summary["seeds"] == {"job": 3}
    assert {"palio", "python", "torch"} <= set(summary["versions"])


def test_results_belong_to_the_weights_that_they_were_made_with(
    made: tuple[Path, MainJobResult],
) -> None:
    pins = {
        folder: pin_of(read_identity(made[0] / folder / mode))
        for folder, mode in (("base", "greedy"), ("trained", "sampled"), ("reworded", "greedy"))
    }
    base, trained = (
        checkpoint_pin(made[0] / "train" / stage / CHECKPOINT) for stage in ("base", "sft")
    )
    assert base.weights != trained.weights
    assert pins == {"base": base, "trained": trained, "reworded": trained}


def told_left_out(out: Path) -> int:
    """Reworded problems that share a cluster with the job's others."""
    mark = json.loads((out / "stages" / "reworded.json").read_text(encoding="utf-8"))
    count: int = mark["result"]["left out"]
    return count


def test_reworded_problems_stand_in_words_that_nothing_trained_on(
    made: tuple[Path, MainJobResult],
) -> None:
    asked = read_suite(made[0] / "reworded" / "suite.json").problems
    trained = open_ground(made[0] / "world").problems
    assert {problem.bank for problem in asked} <= set(banks_for("compact", "measuring"))
    assert {problem.bank for problem in trained} <= set(banks_for("compact", "usual"))
    check_disjoint({"asked": asked, "trained": trained})
    assert "In words that no training problem has" in made[1].report_path.read_text("utf-8")
    greedy = made[1].data.reworded
    assert greedy is not None
    assert greedy.greedy is not None
    assert greedy.greedy.overall.problems == len(asked)


def test_worlds_are_worded_by_the_banks_that_a_job_names(tmp_path: Path) -> None:
    banks = ("compact-ask", "compact-story")
    config = msgspec.structs.replace(SMALL, banks=banks, products=300, problems=30)
    make_worlds(config, tmp_path, lambda done: None)
    assert {problem.bank for problem in open_ground(tmp_path).problems} == set(banks)


@pytest.mark.parametrize(
    ("banks", "said"),
    [(("compact-letter",), "is for measuring"), (("compact-ode",), "no paraphrase bank")],
)
def test_banks_that_no_job_may_train_on_are_refused(banks: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        msgspec.structs.replace(SMALL, banks=banks).checked()


@pytest.mark.parametrize("count", [-1, 1_167])
def test_more_reworded_problems_than_a_catalogue_holds_are_refused_at_once(count: int) -> None:
    with pytest.raises(ConfigError, match="reworded must be in 0 to 1,166"):
        msgspec.structs.replace(SMALL, reworded=count).checked()


def test_the_report_is_one_page_without_outside_resources(
    made: tuple[Path, MainJobResult],
) -> None:
    text = made[1].report_path.read_text(encoding="utf-8")
    assert text.count("<svg") >= 4
    assert "scripted-" in text
    assert "<script" not in text
    assert "src=" not in text


def test_a_second_run_does_nothing_again(made: tuple[Path, MainJobResult]) -> None:
    watch = Watch()
    run_main_job(SMALL, made[0], watch)
    assert tuple(watch.found) == STAGES
    assert not watch.ran


def test_another_seed_is_refused_in_the_same_folder(made: tuple[Path, MainJobResult]) -> None:
    with pytest.raises(ResumeError, match="seed"):
        run_main_job(MainJobConfig(seed=4), made[0], SilentReporter())


def test_a_recipe_that_was_edited_is_not_the_one_that_trained(
    made: tuple[Path, MainJobResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(SMALL)
    assert made[1].summary.digests["recipe"] == recipe.digest()
    assert recipe.model is not None
    wider = msgspec.structs.replace(recipe.model, hidden_size=recipe.model.hidden_size * 2)
    other = msgspec.structs.replace(recipe, model=wider)
    monkeypatch.setattr(job, "recipe_of", lambda config: other)
    with pytest.raises(IntegrityError, match="train"):
        run_main_job(SMALL, made[0], SilentReporter())


def test_results_are_held_to_the_weights_that_were_trained(
    made: tuple[Path, MainJobResult], tmp_path: Path
) -> None:
    shutil.copytree(made[0], tmp_path / "job")
    mark = tmp_path / "job" / "stages" / "train.json"
    told = json.loads(mark.read_bytes())
    assert len(told["result"]["checkpoints"]) == 2
    told["result"]["checkpoints"][0] = "sha256:trained anew"
    mark.write_text(json.dumps(told))
    with pytest.raises(IntegrityError, match="base"):
        run_main_job(SMALL, tmp_path / "job", SilentReporter())


def test_the_corpus_that_was_built_is_told_by_its_digest(
    made: tuple[Path, MainJobResult],
) -> None:
    """Equal counts make no equal corpus: what is trained on it is held to its manifest."""
    mark = json.loads((made[0] / "stages" / "corpus.json").read_text())
    assert mark["result"]["manifest"] == file_digest(made[0] / "corpus" / "manifest.json")


def test_a_seed_that_some_generator_refuses_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed = -1"):
        run_main_job(MainJobConfig(seed=-1), tmp_path / "job", SilentReporter())
    assert not (tmp_path / "job").exists()


def test_a_chain_without_sft_has_no_rows_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    stages = tuple(
        StageDone(kind, kind, tmp_path, tmp_path, counts={"tokens": 500_000})
        for kind in ("base", "teacher")
    )
    monkeypatch.setattr(learn.training, "train", lambda *given, **named: Trained(stages))
    told = learn.train(SMALL, None, tmp_path, tmp_path, lambda done, note: None)  # type: ignore[arg-type]
    assert told["note"] == "1.0 M tokens in all"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="without bubblewrap nothing is ranked")
def test_the_race_ranks_and_the_crash_is_scored_not_lost(
    made: tuple[Path, MainJobResult],
) -> None:
    rows = {row.agent: row for row in read_standings(made[0] / "race").ranked}
    assert rows["careful"].rank == 1
    assert rows["crash"].n == 3
    assert rows["crash"].final == 0
    assert rows["crash"].unscored == 0


def test_no_training_trajectory_is_of_a_heldout_problem(
    made: tuple[Path, MainJobResult],
) -> None:
    ground = open_ground(made[0] / "world")
    heldout = {problem.problem_id for problem in ground.pool("heldout")}
    seen = {run.problem_id for run in read_trajectories(made[0] / "bulk")}
    assert heldout
    assert seen
    assert not heldout & seen
    pools = {
        name: [p for p in ground.problems if ground.pools[p.problem_id] == name]
        for name in SMALL.fractions
    }
    assert sum(check_disjoint(pools).problems.values()) == len(ground.problems)


def test_shards_cover_the_training_problems_once_for_each_teacher(
    made: tuple[Path, MainJobResult],
) -> None:
    ground = open_ground(made[0] / "world")
    teachers = [shard for shard in bulk_shards(SMALL, ground) if shard.name.endswith("teachers")]
    planned = [each for shard in teachers for each in shard.config["problems"]]
    assert sorted(planned) == sorted(problem.problem_id for problem in ground.pool("train"))


def test_exam_problems_are_chosen_by_digest_not_by_order(
    made: tuple[Path, MainJobResult],
) -> None:
    problems = open_ground(made[0] / "world").problems
    assert evenly(problems, 9, "a") == evenly(reversed(problems), 9, "a")
    assert evenly(problems, 9, "a") != evenly(problems, 9, "b")
    assert len({problem.kind for problem in evenly(problems, 9, "a")}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("catalogs = 3", "catalogues"),
        ("catalogues = 0", "at least 1"),
        ("train_share = 1.0", "held-out share"),
        ("evaluated = 0", "evaluated"),
        ("sampled = -1", "sampled"),
        ("temperature = nan", "temperature"),
        ("temperature = 0.0", "temperature"),
        ("race_seconds = -1.0", "race_seconds"),
        ("training_minutes = inf", "training_minutes"),
        ("development_share = -0.1", "development_share"),
        ("racers = []", "racers must name"),
        ("racers = ['careful', 'careful']", "each once"),
        ("teachers = ['nobody']", "teachers: no bundled agent is called 'nobody'"),
        ("seed = 'x'", "int"),
        ("seed = -1", "seed = -1"),
        ("seed = 4294967296", "seed = 4294967296"),
        ("seed = ", "TOML"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "demo.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as found:
        read_config(path)
    assert (found.value.where, bool(found.value.remedy)) == (str(path), True)


def test_an_unknown_recipe_is_refused_before_any_work(tmp_path: Path) -> None:
    config = MainJobConfig(recipe="nosuch")
    with pytest.raises(ConfigError, match="no such recipe"):
        run_main_job(config, tmp_path / "job", SilentReporter())
    assert not (tmp_path / "job").exists()


CHAIN = """
name = "short-chain"
[model]
hidden_size = 48
intermediate_size = 96
layers = 2
heads = 2
kv_heads = 1
head_dim = 24
vocabulary = 400
[data]
reserve = 0.3
[[stage]]
kind = "base"
tokens = 4_000
kinds = { copy = 1.0 }
[[stage]]
kind = "sft"
tokens = 8_000
[[stage]]
kind = "teacher"
tokens = 4_000
sampling = { problems = 6, samples = 1, temperature = 0.0, top_p = 1.0, model = "scripted-careful" }
"""


def test_a_longer_recipe_is_measured_after_each_of_its_stages(
    made: tuple[Path, MainJobResult], tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text(CHAIN, encoding="utf-8")
    short = {
        "recipe": str(tmp_path / "recipe.toml"),
        "training_minutes": 0.0,
        "sampled": 1,
        "reworded": 0,
    }
    config = msgspec.structs.replace(SMALL, **short)
    watch = Watch()
    result = run_main_job(config, tmp_path / "job", watch)
    assert watch.ran[5:] == ["floors", "base", "after-sft", "trained"]
    stages = {stage.name: stage for stage in result.summary.stages}
    assert list(stages) == ["base", "after SFT", "after teacher"]
    assert all(stage.intent["overall"].n == 6 for stage in stages.values())
    weights = {
        (tmp_path / "job" / "train" / name / "checkpoint" / "model.safetensors").read_bytes()
        for name in ("base", "sft", "teacher")
    }
    assert len(weights) == 3
    assert "after teacher" in result.report_path.read_text(encoding="utf-8")


def test_a_recipe_that_does_not_begin_with_a_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trains a base and then further stages, not sft"):
        run_main_job(MainJobConfig(recipe="qwen3-4b"), tmp_path / "job", SilentReporter())


def test_the_configurations_that_ship_are_known_by_name() -> None:
    assert "chain" in bundled_jobs()
    for name in bundled_jobs():
        read_config(Path(name))
    assert read_config(Path("chain"), seed=5).seed == 5
    assert read_config(Path("chain")).recipe == "tiny"


def test_the_command_has_a_docstring_for_help() -> None:
    assert "main job" in (demo.__doc__ or "")
