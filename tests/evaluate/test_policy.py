"""A real policy in a real small world, through broker, harness and scorer; floors beside it."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.agents.spec import policy_agent
from palio.evaluate.examples import pick_examples
from palio.evaluate.floors import (
    FIRST_HIT,
    RANDOM_HIT,
    READER,
    compare_with_floor,
    evaluate_floor,
    gap_to_floor,
    wanted_items,
)
from palio.evaluate.loading import evaluated, load_result
from palio.evaluate.policy import (
    EvalSettings,
    Policy,
    evaluate_policy,
    sampled,
)
from palio.evaluate.report import render_report
from palio.evaluate.report_data import ReportData
from palio.evaluate.rollouts import read_rollouts
from palio.judging.encoders import StubEncoder, default_encoder
from palio.judging.evidence import EvidenceJudge
from palio.judging.outcome import OutcomeScorer
from palio.judging.richness import richness_verdict
from palio.records import ConfigError, InputError, Problem, ResumeError, UpstreamError
from palio.records.trajectory import FaultCode
from palio.suites.clusters import leak_clusters
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World

ENCODER = default_encoder()


@pytest.fixture(scope="module")
def shop() -> tuple[tuple[Problem, ...], dict[str, World]]:
    made = synthesise(compact_config(3, products=600, problems=36))
    world = World.build(made.catalogue, COMPACT)
    return made.problems, {made.catalogue.catalogue_id: world}


def policy(model: str = "scripted-careful", upstream: object = None) -> Policy:
    return Policy(
        name=model, spec=policy_agent(model, model), upstream=upstream or ScriptedUpstream()
    )  # type: ignore[arg-type]


def test_a_careful_policy_beats_first_hit_on_the_same_problems(shop, tmp_path: Path) -> None:
    problems, worlds = shop
    clusters = leak_clusters(problems).cluster_of
    settings = EvalSettings(threads=4)
    made = evaluate_policy(
        policy(), problems, worlds, ENCODER, out=tmp_path, settings=settings, clusters=clusters
    )
    floor = evaluate_floor(FIRST_HIT, problems, worlds, ENCODER, clusters=clusters)
    rows = compare_with_floor(made, floor, problems, clusters=clusters)
    assert made.overall.asr["oro"].n == 36
    assert made.overall.asr["oro"].successes >= 34
    assert made.overall.asr["strict"].successes >= 34
    assert made.overall.valid_turns.value == 1.0
    assert made.overall.invented_ids == 0
    assert rows[0].n == 36
    assert rows[0].difference.low > 0
    assert rows[0].test.p_value < 1e-4
    again = load_result(tmp_path, problems, clusters)
    assert again.intents == made.intents


def test_the_problems_of_an_evaluation_are_found_in_its_suite(shop, tmp_path: Path) -> None:
    problems, worlds = shop
    some = tuple(sorted(problems, key=lambda each: each.problem_id))[5:9]
    evaluate_policy(policy(), some, worlds, ENCODER, out=tmp_path, settings=EvalSettings(threads=2))
    assert evaluated(tmp_path, problems) == some
    assert load_result(tmp_path, evaluated(tmp_path, problems)).overall.asr["oro"].n == 4
    with pytest.raises(InputError, match="the suite holds 3"):
        evaluated(tmp_path, [each for each in problems if each != some[0]])


def test_threads_and_resume_do_not_change_a_result(shop, tmp_path: Path) -> None:
    problems, worlds = shop
    runs = []
    for threads in (1, 6):
        out = tmp_path / str(threads)
        half = EvalSettings(threads=threads)
        evaluate_policy(
            policy("scripted-sloppy"), problems, worlds, ENCODER, out=out, settings=half
        )
        lines = (out / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
        (out / "rollouts.jsonl").write_bytes(b"".join(lines[:15]))
        runs.append(
            evaluate_policy(
                policy("scripted-sloppy"), problems, worlds, ENCODER, out=out, settings=half
            )
        )
    assert runs[0].intents == runs[1].intents


def test_samples_carry_their_own_seed_and_the_temperature(shop, tmp_path: Path) -> None:
    problems, worlds = shop
    made = evaluate_policy(
        policy("scripted-sloppy"),
        problems[:6],
        worlds,
        ENCODER,
        out=tmp_path,
        settings=sampled(4, temperature=0.7, seed=5, threads=3),
    )
    rows = list(read_rollouts(tmp_path))
    asked = [row.trajectory.inferences[0].params for row in rows]
    assert len({one["seed"] for one in asked}) == 24
    assert {one["temperature"] for one in asked} == {0.7}
    assert all(one["seed"] == row.trajectory.seed for one, row in zip(asked, rows, strict=True))
    assert made.mode == "sampled"
    assert made.overall.pass_at["oro"]["4"].samples == 24


class DeadUpstream:
    """Never reachable."""

    def complete(self, body: dict) -> dict:
        raise UpstreamError("connection refused", code=FaultCode.upstream_unreachable)


def test_a_dead_server_is_unscored_not_failed(shop, tmp_path: Path) -> None:
    problems, worlds = shop
    made = evaluate_policy(policy("m", DeadUpstream()), problems[:6], worlds, ENCODER, out=tmp_path)
    overall = made.overall
    assert (overall.unscored_rollouts, overall.asr["oro"].n, overall.asr["oro"].rate) == (
        6,
        0,
        None,
    )
    assert overall.asr_worst is not None
    assert (overall.asr_worst.rate, overall.asr_worst.n) == (0.0, 6)
    back = evaluate_policy(revived_policy("m"), problems[:6], worlds, ENCODER, out=tmp_path)
    assert back.overall.unscored_rollouts == 0


def revived_policy(name: str) -> Policy:
    """The same policy with its server back."""

    class Back:
        def complete(self, body: dict) -> dict:
            return ScriptedUpstream().complete({**body, "model": "scripted-terse"})

    return policy(name, Back())


def test_floors_equal_brute_force(shop) -> None:
    problems, worlds = shop
    first = evaluate_floor(FIRST_HIT, problems, worlds, ENCODER)
    chance = evaluate_floor(RANDOM_HIT, problems, worlds, ENCODER)
    assert chance.sampled_problems == 0
    for problem, one, many in zip(problems, first.scores, chance.scores, strict=True):
        world = worlds[problem.catalogue]
        scorer = OutcomeScorer(world.catalogue.products, ENCODER)
        page = world.index.page(problem.query)
        draws = list(itertools.permutations(page, min(len(page), wanted_items(problem))))
        wins = [scorer.score_answer(problem, ",".join(draw), "oro")[1] for draw in draws]
        assert many.success["oro"] == pytest.approx(sum(wins) / len(wins))
        assert one.success["oro"] == wins[0]
    overall = first.rates["overall"]["oro"]
    assert (overall.n, overall.method) == (36, "wilson")
    assert chance.rates["overall"]["oro"].method.startswith("cluster bootstrap")
    with pytest.raises(InputError, match="expectation"):
        chance.outcomes("oro")


def test_the_reader_is_the_careful_policy_itself(shop, tmp_path: Path) -> None:
    problems, worlds = shop
    reader = evaluate_floor(READER, problems, worlds, ENCODER)
    made = evaluate_policy(policy(), problems, worlds, ENCODER, out=tmp_path)
    assert reader.outcomes("oro") == {
        row.problem_id: row.success["oro"] for row in made.scores if row.status == "scored"
    }
    assert reader.rates["overall"]["oro"].value > 0.9


def test_many_draws_replace_enumeration_on_a_long_page(shop) -> None:
    problems, worlds = shop
    big = {
        name: World.build(
            world.catalogue,
            msgspec.structs.replace(
                COMPACT, spec=msgspec.structs.replace(COMPACT.spec, page_size=40)
            ),
        )
        for name, world in worlds.items()
    }
    several = [problem for problem in problems if wanted_items(problem) > 1][:4]
    made = evaluate_floor(RANDOM_HIT, several, big, StubEncoder(1.0), seed=1)
    again = evaluate_floor(RANDOM_HIT, several, big, StubEncoder(1.0), seed=1)
    assert made.sampled_problems == 4
    assert made == again


def test_gap_to_an_expected_floor_is_a_mean_difference(shop, tmp_path: Path) -> None:
    problems, worlds = shop
    made = evaluate_policy(policy(), problems, worlds, ENCODER, out=tmp_path)
    chance = evaluate_floor(RANDOM_HIT, problems, worlds, ENCODER)
    gap = gap_to_floor(made, chance, problems)["overall"]
    expected = sum(score.success["oro"] for score in chance.scores) / 36
    rate = made.overall.asr["oro"].rate
    assert rate is not None
    assert gap.value == pytest.approx(rate - expected)
    assert gap.low > 0


def test_bad_settings_and_missing_worlds_are_refused(shop, tmp_path: Path) -> None:
    problems, worlds = shop
    with pytest.raises(ConfigError, match="copies"):
        EvalSettings(samples=8)
    with pytest.raises(InputError, match="no world"):
        evaluate_policy(policy(), problems, {}, ENCODER, out=tmp_path)
    with pytest.raises(InputError, match="repeat"):
        evaluate_policy(policy(), [problems[0]] * 2, worlds, ENCODER, out=tmp_path)
    evaluate_policy(policy(), problems[:2], worlds, ENCODER, out=tmp_path)
    with pytest.raises(ResumeError, match="problems differ"):
        evaluate_policy(policy(), problems[:3], worlds, ENCODER, out=tmp_path)


def test_examples_are_picked_by_rule(shop, tmp_path: Path) -> None:
    problems, worlds = shop
    evaluate_policy(policy("scripted-sloppy"), problems, worlds, ENCODER, out=tmp_path)
    rows = list(read_rollouts(tmp_path))
    by_id = {problem.problem_id: problem for problem in problems}
    picked = pick_examples(rows, by_id, EvidenceJudge().verdict, richness_verdict)
    assert picked == pick_examples(rows[::-1], by_id, EvidenceJudge().verdict, richness_verdict)
    success, failure = picked
    assert all(verdict.success for verdict in success.outcomes)
    assert not failure.outcomes[0].success
    misses = [row.score.rule for row in rows if not row.score.success["oro"]]
    assert failure.outcomes[0].scores["rule"] == max(misses)
    assert len(render_report(ReportData(title="t", lead="l", examples=picked))) > 5_000
