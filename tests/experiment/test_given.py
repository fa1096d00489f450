"""A page is never written of no runs because the lab or the plan that was named is another one."""

import msgspec
import pytest
from typer.testing import CliRunner

from palio.cli.experiment import app
from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.plan import load_plan
from palio.evaluate.experiment.runs import append_run
from palio.records import ConfigError, InputError, to_json
from tests.experiment.test_analysis import first, run

LAB = LabConfig(evaluated=300, products=500)
LEAK = load_plan("leak")


@pytest.fixture
def folder(tmp_path):
    """Two runs of a lab that is not the default one, and its TOML beside its folder."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab.toml").write_text("evaluated = 300\nproducts = 500\n")
    for seed in range(2):
        append(tmp_path / "lab", seed)
    return tmp_path / "lab"


def append(folder, seed, **more):
    made = msgspec.structs.replace(
        run("exposed", seed, first(9)),
        plan="leak",
        plan_digest=LEAK.digest(),
        lab=LAB.digest(),
        groups={"exposed": (8, 10), "unexposed": (1, 10)},
        **more,
    )
    append_run(folder, made)


def report(folder, *words, plan="leak"):
    line = ["report", "--runs", folder, "--plan", plan, *words]
    done = CliRunner().invoke(app, [*map(str, line)], catch_exceptions=False)
    return done.stdout, done.stderr


def test_a_page_of_runs_of_another_lab_is_refused_and_the_one_that_stands_is_left(folder):
    (folder / "evidence.md").write_text("the good page")
    with pytest.raises(InputError, match="2 runs here, and none is of the lab") as found:
        report(folder)
    assert {"--lab", "--suite-seed"} <= set(found.value.remedy.replace(",", "").split())
    assert (folder / "evidence.md").read_text() == "the good page"
    assert "2 seeds so far" in report(folder, "--lab", folder.parent / "lab.toml")[0]


def test_a_lab_s_folder_knows_its_own_configuration(folder):
    (folder / "config.json").write_bytes(to_json(LAB))
    assert "2 seeds so far" in report(folder)[0]
    assert "2 seeds so far" in report(folder, "--lab", folder.parent / "lab.toml")[0]
    for other in (["--suite-seed", "7"], ["--lab", folder.parent / "other.toml"]):
        (folder.parent / "other.toml").write_text("evaluated = 299\n")
        with pytest.raises(ConfigError, match="the lab in this folder is another one"):
            report(folder, *other)


def test_runs_that_are_left_out_are_counted(folder):
    (folder / "config.json").write_bytes(to_json(LAB))
    assert "left out" not in report(folder)[1]
    other = msgspec.structs.replace(run("a", 0, first(9)), plan="chain", lab=LAB.digest())
    append_run(folder, other)
    assert "left out" not in report(folder)[1], "another plan was asked for"
    append_run(folder, msgspec.structs.replace(other, plan="leak"))
    append_run(folder, msgspec.structs.replace(other, lab="another"))
    told = report(folder)[1]
    assert "1 run of another lab left out" in told
    assert "1 run of leak left out: that plan, as it was then, is not told" in told


def test_runs_of_no_plan_that_is_told_are_refused(folder):
    (folder / "config.json").write_bytes(to_json(LAB))
    with pytest.raises(InputError, match="2 runs here, of leak") as found:
        report(folder, plan="chain")
    assert "--plan" in found.value.remedy
    assert not (folder / "evidence.md").exists()


def test_an_intro_that_is_no_text_is_told_with_its_file(folder):
    (folder / "config.json").write_bytes(to_json(LAB))
    intro = folder.parent / "intro.md"
    intro.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="is not UTF-8 text") as found:
        report(folder, "--intro", intro)
    assert (found.value.where, found.value.remedy) == (str(intro), "save it as UTF-8")


def test_a_plan_s_second_section_is_refused_with_its_line(folder):
    (folder / "config.json").write_bytes(to_json(LAB))
    intro = folder.parent / "intro.md"
    text = "Why.\n\n## leak\n\nEarlier.\n\n## How\n\nThus.\n\n## leak\n\nLater.\n"
    intro.write_text(text)
    with pytest.raises(InputError, match="'leak'; the first begins in line 3") as found:
        report(folder, "--intro", intro)
    assert found.value.where == f"{intro}:11"
    assert not (folder / "evidence.md").exists()
    intro.write_text(text.replace("leak", "How"))
    report(folder, "--intro", intro)
    page = (folder / "evidence.md").read_text("utf-8")
    assert all(each in page for each in ("Earlier.", "Thus.", "Later.")), "of no plan: nothing lost"
