"""Several judges make one verdict by one rule, each with its own identity in it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("openai", reason="a judge that asks a model needs the extra `judge`")

from palio.judging import EvidenceJudge
from palio.judging.llm import Endpoint, JudgeConfig, LlmJudge, Member, consensus, read_config
from palio.judging.llm.document import packaged_prompt, prompt_of
from palio.judging.llm.injection import packaged_bases
from palio.judging.store import one_judge
from palio.records import (
    QUALITY_BINS,
    ConfigError,
    Ending,
    Fault,
    IntegrityError,
    ReasoningVerdict,
    from_json,
    to_json,
)
from tests.judging.llm.modelserver import GATES, GOOD, ModelServer, always

BASE = {run.trajectory_id: run for run in packaged_bases()}["one_candidate"]
BINS = st.lists(st.sampled_from(QUALITY_BINS), max_size=9)


@given(BINS, st.integers(1, 5))
def test_the_consensus_is_the_lower_median_or_nothing(bins: list[float], quorum: int) -> None:
    found = consensus(bins, quorum)
    if len(bins) < quorum:
        assert found.quality is None
        return
    assert found.quality in bins
    below = sum(one < found.quality for one in bins)
    above = sum(one > found.quality for one in bins)
    assert below <= len(bins) / 2
    assert above <= len(bins) / 2
    assert consensus(bins[::-1], quorum) == found
    assert consensus([0.5, 0.9], 1).quality == 0.5


def said(passed: int) -> str:
    """An answer that passes so many of the gates that the run bears out."""
    gates = [{**GATES[at], "passed": True} for at in range(passed)]
    gates.append({"gate": passed + 1, "passed": False, "step": None, "quote": "", "data": []})
    return json.dumps({"gates": gates, "value": QUALITY_BINS[passed], "explanation": f"{passed}"})


def panel_of(*urls: str, quorum: int = 0, evidence: bool = False) -> JudgeConfig:
    members = [
        Member(model="m", name=f"judge-{n}", endpoints=(Endpoint(url=url),), served_as=("*",),
               attempts=1)
        for n, url in enumerate(urls)
    ]  # fmt: skip
    if evidence:
        members.append(Member(model="evidence"))
    return JudgeConfig(members=tuple(members), name="trio", quorum=quorum)


def test_a_panel_of_models_and_the_evidence_judge() -> None:
    with (
        ModelServer(always(said(1))) as low,
        ModelServer(always(said(3))) as high,
        LlmJudge(panel_of(low.url, high.url, evidence=True)) as judge,
    ):
        verdict = judge.verdict(BASE)
    assert [one.quality for one in verdict.opinions] == [0.3, 0.7, 0.7]
    assert verdict.quality == 0.7
    assert verdict.explanation == "3"
    assert verdict.flags == ("disagreement",)
    assert [one.judge.name for one in verdict.opinions] == ["judge-0", "judge-1", "evidence-v2"]
    assert all(one.judge.config_digest for one in verdict.opinions)
    assert all(one.prompt and one.decoding for one in verdict.opinions[:2])
    assert verdict.judge.name == "trio"
    assert from_json(to_json(verdict), ReasoningVerdict) == verdict


def test_without_a_quorum_it_is_unjudged_and_says_who_failed() -> None:
    with (
        ModelServer(always(said(3))) as whole,
        ModelServer(always("?")) as broken,
        LlmJudge(panel_of(whole.url, broken.url, broken.url)) as judge,
    ):
        verdict = judge.verdict(BASE)
    assert (verdict.status, verdict.quality, verdict.reason) == ("unjudged", None, "no_quorum")
    assert "judge-1: unreadable_reply" in verdict.explanation
    with (
        ModelServer(always(said(3))) as whole,
        LlmJudge(panel_of(whole.url, broken.url, broken.url, quorum=1)) as judge,
    ):
        assert judge.verdict(BASE).quality == 0.7


def test_what_holds_nothing_to_judge_is_shown_to_nobody() -> None:
    failed = msgspec.structs.replace(
        BASE, ending=Ending.infra, fault=Fault(code=3001, what="no server")
    )
    salvaged = msgspec.structs.replace(BASE, source="salvage:abc")
    with ModelServer(always(json.dumps(GOOD))) as server:
        with LlmJudge(panel_of(server.url)) as judge:
            assert judge.verdict(failed).reason == "infrastructure"
            assert judge.verdict(salvaged).reason == "salvaged"
        assert not server.bodies


def test_identity_is_model_prompt_and_decoding_and_neither_server_nor_price() -> None:
    prompt = packaged_prompt()
    one = Member(model="m", endpoints=(Endpoint(url="http://a/v1"),))
    same = msgspec.structs.replace(one, endpoints=(Endpoint(url="http://b/v1"),), attempts=9)
    assert one.judge_id(prompt) == same.judge_id(prompt)
    for change in ({"model": "n"}, {"temperature": 0.5}, {"thinking_tokens": 9}, {"seed": 1}):
        assert msgspec.structs.replace(one, **change).judge_id(prompt) != one.judge_id(prompt)
    assert one.judge_id(prompt_of(prompt.system + " ")) != one.judge_id(prompt)


def test_verdicts_of_two_judges_never_stand_in_one_ranking() -> None:
    evidence = EvidenceJudge().verdict(BASE)
    assert one_judge([evidence, evidence]) == evidence.judge
    assert one_judge([]) is None
    with LlmJudge(panel_of("http://127.0.0.1:9/v1")) as judge:
        other = judge.verdict(BASE)
    with pytest.raises(IntegrityError, match="mixed"):
        one_judge([evidence, other])


def test_a_judge_travels_to_another_process_without_its_connections() -> None:
    with ModelServer(always(json.dumps(GOOD))) as server:
        with LlmJudge(panel_of(server.url)) as judge:
            judge.verdict(BASE)
            copy = pickle.loads(pickle.dumps(judge))
        with copy:
            assert copy.judge_id == judge.judge_id
            assert copy.verdict(BASE).quality == 0.7


TOML = """
name = "two"
quorum = 1
[[members]]
model = "qwen3-8b"
thinking_tokens = 4000
endpoints = [{ url = "http://127.0.0.1:8000/v1", key = "JUDGE_KEY", requests_per_minute = 60 }]
[[members]]
model = "evidence"
[prices."qwen3-8b"]
input = 0.1
output = 0.4
"""


def test_a_configuration_file_is_read_whole_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "judge.toml"
    path.write_text(TOML)
    config, prompt = read_config(path)
    assert config.members[0].patience > 500
    assert config.prices["qwen3-8b"].output == 0.4
    assert prompt == packaged_prompt()
    with pytest.raises(ConfigError, match="JUDGE_KEY"):
        LlmJudge(config)
    LlmJudge(config, keys={"JUDGE_KEY": "k", "OTHER": "x"}).close()
    (tmp_path / "mine.md").write_text("Judge.")
    path.write_text('prompt = "mine.md"\n' + TOML.lstrip())
    assert read_config(path)[1].system == "Judge."
    for old, new, said_of in (
        ("quorum = 1", "quorum = 3", "quorum"),
        ('key = "JUDGE_KEY"', 'key = "sk-123"', "environment variable"),
        ("http://127.0.0.1:8000/v1", "localhost", "no URL"),
        ("thinking_tokens", "think_tokens", "think_tokens"),
        ('name = "two"', 'name = "two', "not a judge"),
        ("[[members]]", "[[member]]", "member"),
    ):
        path.write_text(TOML.replace(old, new))
        with pytest.raises(ConfigError, match=said_of):
            read_config(path)
