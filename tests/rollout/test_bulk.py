"""Bulk runs come in whole shards, in worker processes, and finished shards are kept."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import pytest

from palio.agents.registry import ORACLE, find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.records import ConfigError, InputError, IntegrityError, ResumeError, trajectory_key
from palio.rollout import Shard, bulk, read_trajectories, run_problem
from palio.rollout.problem import agent_ref
from palio.sandbox.inline import InlineDriver
from tests.rollout.agents import small

SPECS = tuple(find_agent(name) for name in ("careful", "hasty", "narrator"))


def shard(seed: int, **more: object) -> Shard:
    fields = {
        "name": f"compact-{seed}",
        "source": partial(small, seed),
        "agents": SPECS,
        "upstream": ScriptedUpstream,
        "seeds": (0, 1),
        "config": {"seed": seed},
    }
    return Shard(**{**fields, **more})  # type: ignore[arg-type]


def test_two_workers_make_every_run_once(tmp_path: Path) -> None:
    steps: list[tuple[int, int, int]] = []
    shards = [shard(1), shard(2)]
    report = bulk(shards, tmp_path, progress=lambda *step: steps.append(step))
    assert (report.shards, report.skipped, report.trajectories) == (2, 0, 360)
    assert steps == [(1, 2, 180), (2, 2, 360)]
    wanted = Counter(
        trajectory_key(
            agent=agent_ref(spec),
            problem_id=problem.problem_id,
            catalogue_digest=world.catalogue.digest,
            seed=seed,
            attempt=0,
        )
        for world, problems in (small(1), small(2))
        for problem in problems
        for spec in SPECS
        for seed in (0, 1)
    )
    runs = list(read_trajectories(tmp_path))
    assert Counter(run.trajectory_id for run in runs) == wanted
    world, problems = small(1)
    again = run_problem(
        SPECS[0], problems[0], world, driver=InlineDriver(), upstream=ScriptedUpstream()
    )
    assert runs[0].messages == again.messages
    assert runs[0].answer == again.answer


def plain(folder: Path) -> list[dict[str, object]]:
    """Every row in order, without its times."""
    timeless = {"at_ms": 0, "duration_ms": 0, "duration_s": 0}
    rows = []
    for run in read_trajectories(folder):
        told = msgspec.to_builtins(run)
        told["events"] = [{**event, **timeless} for event in told["events"]]
        rows.append({**told, **timeless})
    return rows


@pytest.mark.slow  # starting ray takes 10 s
@pytest.mark.filterwarnings("ignore")
def test_two_ray_workers_make_the_rows_that_this_process_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the cluster executor needs ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    shards = [shard(1, seeds=(0,)), shard(2, seeds=(0,))]
    here = bulk(shards, tmp_path / "here", executor="inline")
    steps: list[tuple[int, int, int]] = []
    there = bulk(
        shards, tmp_path / "there", executor="ray", progress=lambda *step: steps.append(step)
    )
    assert plain(tmp_path / "there") == plain(tmp_path / "here")
    assert (there.trajectories, there.endings) == (here.trajectories, here.endings)
    assert [step[0] for step in steps] == [1, 2]
    again = bulk(shards, tmp_path / "there", executor="ray")
    assert again.skipped == 2


def test_finished_shards_are_kept_and_damaged_ones_made_again(tmp_path: Path) -> None:
    shards = [shard(1, seeds=(0,)), shard(2, seeds=(0,))]
    bulk(shards, tmp_path, workers=0)
    first, second = sorted(tmp_path.glob("*.zst"))
    kept, data = first.stat().st_mtime_ns, second.read_bytes()
    second.write_bytes(data[:-10])
    (tmp_path / ".compact-2.jsonl.zst.1.tmp").write_bytes(b"left by a killed worker")
    report = bulk(shards, tmp_path, workers=0)
    assert (report.skipped, report.trajectories) == (1, 180)
    assert first.stat().st_mtime_ns == kept
    assert len(list(read_trajectories(second))) == 90
    assert not list(tmp_path.glob(".*.tmp"))


def test_other_settings_are_refused_by_key(tmp_path: Path) -> None:
    bulk([shard(1, seeds=(0,))], tmp_path, workers=0)
    with pytest.raises(ResumeError, match=r"config\.seed: 1 -> 5; seeds: \[0\] -> \[0,1\]"):
        bulk([shard(1, config={"seed": 5})], tmp_path, workers=0)


def test_bad_shards_are_refused_before_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two shards"):
        bulk([shard(1), shard(1)], tmp_path)
    with pytest.raises(ConfigError, match="no executor 'threads'"):
        bulk([shard(1)], tmp_path, executor="threads")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no agent file"):
        bulk([shard(1, agents=(ORACLE,))], tmp_path)


def test_reading_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(read_trajectories(tmp_path / "none"))
    with pytest.raises(InputError, match="no trajectory file"):
        list(read_trajectories(tmp_path))
    (tmp_path / "a.jsonl").write_bytes(b'\n{"x":1}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2"):
        list(read_trajectories(tmp_path))
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl.zst").write_bytes(b"not zstandard")
    with pytest.raises(IntegrityError, match=r"b\.jsonl\.zst"):
        list(read_trajectories(tmp_path))
