"""`palio eval` in a real process world: run, floors, compare, as tables and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer, RequestError
from palio.cli.main import app
from palio.records import ConfigError, InputError, Suite, bytes_digest, to_json
from palio.suites.files import read_suite, write_suite
from palio.world.catalogue import write_catalogue
from palio.world.synthesis import compact_config, synthesise


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("eval")
    made = synthesise(compact_config(5, products=400, problems=12))
    write_catalogue(made.catalogue, folder / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=made.problems), folder / "suite.json")
    return ("--suite", str(folder / "suite.json"), "--catalogue", str(folder / "catalogue"))


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["eval", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_run_then_compare(files: tuple[str, ...], tmp_path: Path) -> None:
    for model in ("scripted-careful", "scripted-hasty"):
        out = str(tmp_path / model)
        text = call("run", *files, "--out", out, "--model", model, "--k", "2", "--json")
        plain = json.loads(text)
        stage = plain["stages"][0]
        assert stage["name"] == model
        assert stage["kind"] == "scripted"
        assert stage["intent"]["overall"]["n"] == 12
        assert stage["pass_at"]["2"]["samples"] == 24
        assert {floor["name"] for floor in plain["floors"]} == {"first-hit", "random-hit", "reader"}
        assert plain["comparisons"][0]["b"] == "first-hit"
    folders = [str(tmp_path / model / "greedy") for model in ("scripted-careful", "scripted-hasty")]
    rows = json.loads(call("compare", *folders, *files[:2], "--json"))
    assert rows[0]["intent"] == "overall"
    assert rows[0]["difference"]["difference"] > 0
    assert "paired" in call("compare", *folders, *files[:2])


class Flaky:
    """A scripted model whose server refuses every third request."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        query = next(m["content"] for m in body["messages"] if m["role"] == "user")
        if hash_of(query) % 3 == 0:
            raise RequestError(401, "the key has run out")
        return ScriptedUpstream().complete({**body, "model": "scripted-careful"})


def hash_of(text: str) -> int:
    return int(bytes_digest(text.encode())[7:15], 16)


def test_car_unscored_and_difficulty_are_told(files: tuple[str, ...], tmp_path: Path) -> None:
    problems = read_suite(Path(files[1])).problems
    gone = [p for p in problems if hash_of(p.query) % 3 == 0]
    assert 0 < len(gone) < 12
    with ModelServer(Flaky()) as server:
        given = ("run", *files, "--out", str(tmp_path), "--base-url", server.url, "--model", "m")
        stage = json.loads(call(*given, "--json"))["stages"][0]
        text = call(*given)
        told = CliRunner().invoke(app, ["eval", *given]).stderr
    assert f"m: counted as failures, ASR is {100 * stage['asr_worst']:.1f} %" in told
    assert stage["unscored"] == len(gone)
    assert stage["intent"]["overall"]["n"] == 12 - len(gone)
    assert stage["car"] == stage["intents"]["overall"]["car"]["value"] == 1
    levels = {p.difficulty for p in problems}
    assert set(stage["difficulties"]) == levels
    for level, told in stage["difficulties"].items():
        own = [p for p in problems if p.difficulty == level]
        assert told["problems"] == len(own)
        assert told["unscored"] == sum(p in gone for p in own)
        assert told["asr"]["n"] == told["car"]["n"] == told["problems"] - told["unscored"]
    assert "CAR" in text
    assert "m by intent and difficulty" in text
    first, second = text.split("m by intent and difficulty")
    (row,) = [line.split() for line in first.splitlines() if line.split()[:1] == ["m"]]
    assert row[-1] == str(len(gone))
    assert levels <= {line.split()[0] for line in second.splitlines() if line.strip()}


def test_floors_as_a_table(files: tuple[str, ...]) -> None:
    text = call("floors", *files)
    assert "first-hit" in text
    assert "n 12" in text


def test_no_interval_is_cut_off(files: tuple[str, ...], tmp_path: Path) -> None:
    text = call(
        *("run", *files, "--model", "scripted-hasty", "--k", "2", "--out", str(tmp_path)),
    )  # fmt: skip
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_no_policy_is_a_clear_error(files: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name one policy"):
        call("run", *files, "--out", str(tmp_path))


def test_only_the_held_out_problems_of_a_corpus(files: tuple[str, ...], tmp_path: Path) -> None:
    problems = read_suite(Path(files[1])).problems
    pools = {p.problem_id: "heldout" if n % 3 == 0 else "train" for n, p in enumerate(problems)}
    (tmp_path / "pools.json").write_text(json.dumps(pools))
    corpus = ("--corpus", str(tmp_path))
    assert "n 4" in call("floors", *files, *corpus)
    assert "n 8" in call("floors", *files, *corpus, "--pool", "train")
    text = call("run", *files, *corpus, "--out", str(tmp_path / "out"), "--model", "scripted-hasty")
    assert "n 4" in text
    with pytest.raises(InputError, match="in pool 'development'"):
        call("floors", *files, *corpus, "--pool", "development")


def test_a_suite_of_the_same_ids_and_other_problems_is_not_held_out(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    """Suites of one seed and other sizes share ids, and no text."""
    problems = read_suite(Path(files[1])).problems
    (tmp_path / "pools.json").write_text(json.dumps({p.problem_id: "heldout" for p in problems}))
    (tmp_path / "problems.jsonl").write_bytes(b"".join(to_json(p) + b"\n" for p in problems))
    assert "n 12" in call("floors", *files, "--corpus", str(tmp_path))
    made = synthesise(compact_config(5, products=500, problems=12))
    assert {p.problem_id for p in made.problems} == {p.problem_id for p in problems}
    write_catalogue(made.catalogue, tmp_path / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=made.problems), tmp_path / "suite.json")
    other = ("--suite", str(tmp_path / "suite.json"), "--corpus", str(tmp_path))
    with pytest.raises(InputError, match="is another problem than that of the corpus"):
        call("floors", *other, "--catalogue", str(tmp_path / "catalogue"))


def test_the_manifest_lists_the_rollouts_that_its_results_are_of(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    given = ("run", *files, "--out", str(tmp_path), "--model", "scripted-hasty", "--json")
    for k in ("3", "2"):
        plain = json.loads(call(*given, "--k", k))
    assert plain["stages"][0]["seconds"] is None
    outputs = json.loads((tmp_path / "manifest.json").read_text())["outputs"]
    rows = sorted(name for name in outputs if name.endswith("rollouts.jsonl"))
    assert rows == ["greedy/rollouts.jsonl", "sampled-2/rollouts.jsonl"]
    assert (tmp_path / "sampled-3" / "rollouts.jsonl").is_file()


def test_a_comparison_tells_which_settings_differ(files: tuple[str, ...], tmp_path: Path) -> None:
    for name, more in (
        ("a", ("--seconds", "60")),
        ("b", ()),
        ("c", ("--max-tokens", "99")),
        ("d", ("--seed", "7")),
    ):
        out = str(tmp_path / name)
        call("run", *files, "--out", out, "--model", "scripted-hasty", *more)

    def told(other: str) -> str:
        words = ["eval", "compare", str(tmp_path / "b"), str(tmp_path / other), *files[:2]]
        return CliRunner().invoke(app, words, catch_exceptions=False).stderr

    assert "the two were evaluated with other limits" in told("a")
    assert "the two were evaluated with other max_tokens" in told("c")
    assert "evaluated with other" not in told("b")
    assert "evaluated with other" not in told("d"), "nothing greedy is drawn"


@pytest.mark.parametrize("command", ["run", "floors", "compare"])
def test_a_pool_without_its_corpus_is_refused(
    files: tuple[str, ...], tmp_path: Path, command: str
) -> None:
    """It was ignored: all problems were evaluated, and nobody was told."""
    words = {
        "run": (*files, "--out", str(tmp_path / "out"), "--model", "scripted-hasty"),
        "floors": files,
        "compare": (str(tmp_path), str(tmp_path), *files[:2]),
    }[command]
    with pytest.raises((ConfigError, InputError), match="--pool development without --corpus"):
        call(command, *words, "--pool", "development")
    assert not (tmp_path / "out").exists()


def test_an_evaluation_that_stopped_half_way_is_compared_with_a_warning(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    for model in ("scripted-careful", "scripted-hasty"):
        call("run", *files, "--out", str(tmp_path / model), "--model", model)
    rows = tmp_path / "scripted-hasty" / "greedy" / "rollouts.jsonl"
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:7]))
    folders = [str(tmp_path / model) for model in ("scripted-careful", "scripted-hasty")]
    done = CliRunner().invoke(app, ["eval", "compare", *folders, *files[:2]])
    assert done.exit_code == 0, done.output
    assert "scripted-hasty: of 12 rollouts 0 are unscored and 5 not made" in done.stderr
    assert "scripted-careful: of" not in done.stderr


def test_the_manifest_says_how_samples_were_drawn(files: tuple[str, ...], tmp_path: Path) -> None:
    given = (*files, "--out", str(tmp_path), "--model", "scripted-hasty")
    call("run", *given, "--k", "2", "--temperature", "0.7")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["config"]["sampled"] == {"samples": 2, "temperature": 0.7}
    call("run", *given)
    assert "sampled" not in json.loads((tmp_path / "manifest.json").read_text())["config"]


def test_options_have_the_names_that_they_have_elsewhere(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    with ModelServer(ScriptedUpstream()) as server:
        for place, url, flight in (
            ("new", "--model-url", "--concurrency"),
            ("old", "--base-url", "--threads"),
        ):
            words = ("--out", str(tmp_path / place), url, server.url, flight, "2")
            call("run", *files, *words, "--model", "scripted-careful", "--limit", "2")
    rows = [(tmp_path / each / "greedy" / "evaluation.json") for each in ("new", "old")]
    assert rows[0].read_bytes() == rows[1].read_bytes()
