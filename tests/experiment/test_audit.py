"""What arms saw is counted from the rows that they drew; exposure on purpose is told as such."""

import json

import msgspec
import pytest
from typer.testing import CliRunner

from palio.cli.train import app
from palio.corpus.rows import CorpusRow
from palio.evaluate.experiment.audit import audit_lab, is_lab
from palio.evaluate.experiment.firehose import FirehoseRow
from palio.evaluate.experiment.plan import Arm, Contrast, Plan
from palio.evaluate.experiment.runs import ArmRun, append_run
from palio.evaluate.mainjob.worlds import open_ground
from palio.records import InputError, Suite, to_json
from palio.suites.files import write_suite
from palio.train.audit import AUDIT
from palio.train.seen import SEEN, Seen
from palio.world.synthesis import compact_config, synthesise

GATES = ("outcome", "structural", "coefficient", "grounding")


@pytest.fixture(scope="module")
def problems():
    return synthesise(compact_config(4, products=300, problems=12)).problems


def row(problem, pool, shows):
    body = CorpusRow(
        messages=(
            {"role": "user", "content": problem.query},
            {"role": "tool", "content": json.dumps([{"product_id": shows}]), "tool_call_id": "a"},
        ),
        tools="[]",
        trajectory_id=f"t-{problem.problem_id}",
        problem_id=problem.problem_id,
        cluster_id=f"c-{problem.problem_id}",
        agent="careful",
        kind=problem.kind,
    )
    named = {f: getattr(body, f) for f in ("trajectory_id", "problem_id", "cluster_id", "agent")}
    raw = msgspec.Raw(to_json(body))
    more = {"kind": problem.kind, "pool": pool, "bank": "one", "passed": GATES, "salvaged": False}
    return FirehoseRow(**named, **more, row=raw)


PLAN = Plan(
    name="p",
    question="",
    hypothesis="",
    primary="",
    analysis="",
    arms=(
        Arm(name="clean"),
        Arm(name="leak", exposed=1.0, copies=2),
        Arm(name="rolls", stages=({"kind": "kto"},)),
        Arm(name="after", start="leak", sft=False, stages=({"kind": "kto"},)),
        Arm(name="again", start="after", sft=False, stages=({"kind": "kto"},)),
        Arm(name="beside", start="clean", sft=False, stages=({"kind": "kto"},)),
        Arm(name="mixes", sft=False, exposed=1.0, stages=({"kind": "rejection", "mix": 0.5},)),
    ),
    contrasts=(Contrast(arm="leak", against="clean"),),
    support="own",
)


@pytest.fixture
def lab(tmp_path, problems):
    """8 training problems, 4 held-out ones; one training row shows a held-out target."""
    train, held = problems[:8], problems[8:]
    folder = tmp_path / "lab"
    (folder / "world").mkdir(parents=True)
    write_suite(Suite(suite_id="s", version="1", problems=problems), folder / "world/suite.json")
    pools = {p.problem_id: "train" for p in train} | {p.problem_id: "heldout" for p in held}
    (folder / "world" / "pools.json").write_text(json.dumps(pools))
    trained = {r.product_id for p in train for r in p.rewards}
    target = next(r.product_id for p in held for r in p.rewards if r.product_id not in trained)
    rows = [row(p, "train", target if p is train[0] else "nothing") for p in train]
    rows += [row(p, "heldout", "nothing") for p in held]
    (folder / "firehose").mkdir()
    (folder / "firehose" / "rows.jsonl").write_bytes(b"".join(to_json(r) + b"\n" for r in rows))
    return folder


def ran(folder, arm):
    nothing = {"overall": 1}
    run = ArmRun(
        plan="p",
        plan_digest=PLAN.digest(),
        arm=arm,
        seed=0,
        lab="l",
        suite_seed=0,
        problems="x",
        n=nothing,
        unscored=0,
        successes=nothing,
        strict=nothing,
        solved="8",
        car=1.0,
    )
    append_run(folder, run)


def test_an_arm_s_rows_are_held_against_the_pools(lab, problems):
    ran(lab, "clean")
    ran(lab, "leak")
    found = audit_lab(lab, [PLAN])
    base, clean, leak = found.arms
    assert [(each.plan, each.arm) for each in found.arms] == [
        ("base", "base"),
        ("p", "clean"),
        ("p", "leak"),
    ]
    for each in (base, clean):
        (stage,) = each.saw.stages
        assert (stage.rows, stage.problems, stage.outside) == (8, 8, ())
        assert (stage.targets["heldout"], stage.showing) == (1, 1)
    (stage,) = leak.saw.stages
    assert set(stage.outside) == {p.problem_id for p in problems[8:]}
    assert stage.rows == 8 + 2 * 4
    assert leak.exposes
    assert not clean.exposes
    assert found.clean, "the exposed arm is what its plan says"
    assert found.arms[2].exposes is True


def rolled(folder, arm, problem):
    """The record that the KTO stage of an arm without fine-tuning leaves."""
    stage = folder / "arms" / "p" / arm / "0" / "1-kto"
    stage.mkdir(parents=True)
    (stage / SEEN).write_bytes(to_json(Seen(problem_id=problem.problem_id)) + b"\n")


def test_exposure_is_inherited_from_what_an_arm_starts_from(lab, problems):
    for arm in ("leak", "after", "again", "beside"):
        ran(lab, arm)
        if arm != "leak":
            rolled(lab, arm, problems[0])
    found = audit_lab(lab, [PLAN])
    arms = {each.arm: each for each in found.arms}
    held = {p.problem_id for p in problems[8:]}
    for arm in ("after", "again"):
        assert arms[arm].exposes, "however long the chain"
        assert set(arms[arm].saw.outside) == held
        assert not arms[arm].saw.stages[0].outside, "its own stage saw none of them"
    assert [each.made_by for each in arms["again"].saw.origins] == [
        "p/after/0",
        "p/leak/0",
        "base/base/0",
    ]
    assert "stage kto of p/after/0 began with leak" in str(arms["again"].saw.origins[1])
    assert not arms["beside"].exposes
    assert not arms["beside"].saw.outside
    assert arms["beside"].saw.verdict == "clean"
    assert found.clean, "all of it is on purpose"
    told = {each.arm: each.exposes for each in found.arms}
    assert told == {"base": False, "leak": True, "after": True, "again": True, "beside": False}


def test_what_the_start_of_an_arm_did_not_record_is_unknown_of_the_arm_too(lab, problems):
    ran(lab, "again")
    rolled(lab, "again", problems[0])
    found = audit_lab(lab, [PLAN])
    assert found.arms[-1].saw.unknown == ("kto",)
    assert not found.clean, "nobody knows what `after` rolled out"


def test_rows_that_a_later_stage_mixes_in_are_counted(lab, problems):
    ran(lab, "mixes")
    (stage,) = audit_lab(lab, [PLAN]).arms[-1].saw.stages
    assert stage.rows == 8 + 4
    assert set(stage.outside) == {p.problem_id for p in problems[8:]}


def test_rollouts_without_a_record_and_foreign_plans(lab, problems):
    assert is_lab(lab)
    with pytest.raises(InputError, match="no run"):
        audit_lab(lab, [PLAN])
    ran(lab, "rolls")
    found = audit_lab(lab, [PLAN])
    assert found.arms[-1].saw.unknown == ("kto",)
    assert not found.clean
    folder = lab / "arms" / "p" / "rolls" / "0" / "1-kto"
    folder.mkdir(parents=True)
    held = problems[-1].problem_id
    (folder / SEEN).write_bytes(to_json(Seen(problem_id=held)) + b"\n")
    found = audit_lab(lab, [PLAN])
    assert found.arms[-1].saw.outside == (held,)
    assert not found.clean
    with pytest.raises(InputError, match="another version"):
        audit_lab(lab, [])
    pools = lab / "world" / "pools.json"
    pools.write_text('{"p": 1}')
    for reads in (lambda: audit_lab(lab, [PLAN]), lambda: open_ground(lab / "world")):
        (lab / "world" / "composition.json").write_text("{}")
        with pytest.raises(InputError, match="not a valid") as found:
            reads()
        assert found.value.where == str(pools)


def test_on_the_command_line(lab, tmp_path, problems):
    ran(lab, "clean")
    ran(lab, "leak")
    plain = msgspec.to_builtins(PLAN)
    lines = [f'{name} = "{plain[name]}"' for name in ("name", "question", "hypothesis", "primary")]
    lines += ['analysis = ""', 'support = "own"', f"seeds = {PLAN.seeds}"]
    lines += ['[[arm]]\nname = "clean"', '[[arm]]\nname = "leak"\nexposed = 1.0\ncopies = 2']
    lines += ['[[arm]]\nname = "rolls"\n[[arm.stages]]\nkind = "kto"']
    for arm in PLAN.arms[3:]:
        lines.append(f'[[arm]]\nname = "{arm.name}"\nsft = false\nexposed = {arm.exposed}')
        lines += [f'start = "{arm.start}"', "[[arm.stages]]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in arm.stages[0].items()]
    lines += ['[[contrast]]\narm = "leak"\nagainst = "clean"']
    (tmp_path / "p.toml").write_text("\n".join(lines) + "\n")
    result = CliRunner().invoke(app, ["audit", str(lab), "--plan", str(tmp_path / "p.toml")])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "p/clean/0" in result.output
    assert "heldout targets" in result.output
    told = f"p/leak/0 (on purpose): problem {problems[-1].problem_id} is not in the training pool"
    assert told in result.output
    arms = json.loads((lab / AUDIT).read_bytes())["arms"]
    assert [each["exposes"] for each in arms] == [False, False, True]
    bare = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert "--corpus" in str(bare.exception)
