"""Secrets and personal data go, ids and prices stay, and a value has one placeholder in its row."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.corpus.build import build
from palio.corpus.config import CorpusConfig
from palio.corpus.scrub import PLACEHOLDER, Scrubber, placeholders
from palio.records import MissingDependencyError, Provenance, from_json, to_json
from palio.rollout.verdicts import Judged
from tests.corpus.making import good_turns, made_problems, made_row
from tests.suites.making import made_problem

pytest.importorskip("detect_secrets")
pytest.importorskip("phonenumbers")
pytest.importorskip("stdnum")

BOTH = Scrubber(("secrets", "personal"))
HEX = "0123456789abcdef" * 4
SECRETS = {
    "AWS_ACCESS_KEY": "AKIA" + "Q7XW2M4N8P6R5T3Z",
    "GITHUB_TOKEN": "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "GITLAB_TOKEN": "glpat-" + "x1Y2z3A4b5C6d7E8f9G0",
    "JSON_WEB_TOKEN": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123_-",
    "OPENAI_TOKEN": "sk-" + "abcdefghij0123456789T3BlbkFJabcdefghij0123456789",
    "SLACK_TOKEN": "xoxb-" + "123456789012-abcdefabcdef",
    "STRIPE_ACCESS_KEY": "sk_live_" + "abcdefghijklmnop12345678",
    "SENDGRID_API_KEY": "SG." + "a" * 22 + "." + "b" * 43,
    "TWILIO_API_KEY": "SK" + "a1" * 16,
    "MODEL_API_KEY": "sk-or-v1-" + HEX,
}
PERSONAL = {
    "EMAIL": "juan.dela-cruz+shop@mail.example.com.ph",
    "PHONE": "+63 917 123 4567",
    "IBAN": "DE89 3704 0044 0532 0130 00",
    "PAYMENT_CARD": "4111 1111 1111 1111",
    "IP_ADDRESS": "8.8.4.4",
}


@pytest.mark.parametrize(("kind", "value"), [*SECRETS.items(), *PERSONAL.items()])
@pytest.mark.parametrize("frame", ["{}", "use {} now", '{{"q":"{}"}}', "a\n{}\nb", "({})", "'{}',"])
def test_each_kind_is_found_whole_in_any_frame(kind: str, value: str, frame: str) -> None:
    text = frame.format(value)
    found = BOTH.find(text)
    assert [(f.kind, text[f.start : f.end]) for f in found] == [(kind, value)]


def test_a_token_goes_to_its_end_and_a_key_block_as_a_whole() -> None:
    longer = SECRETS["OPENAI_TOKEN"] + "moreOfTheSameToken_x"
    (finding,) = BOTH.find(f"key {longer}.")
    assert finding.value == longer
    inside = f"MIIEow\n{SECRETS['AWS_ACCESS_KEY']}\n"
    block = f"-----BEGIN RSA PRIVATE KEY-----\n{inside}-----END RSA PRIVATE KEY-----"
    (finding,) = BOTH.find(f"see {block} and")
    assert (finding.kind, finding.value) == ("PRIVATE_KEY", block)
    (cut,) = BOTH.find("-----BEGIN PRIVATE KEY-----\nMIIEow")
    assert cut.kind == "PRIVATE_KEY"
    (login,) = BOTH.find("https://user:hunter2secret@host.example/x")
    assert login.value == "hunter2secret"
    (bearer,) = BOTH.find("Authorization: Bearer abcdefghijklmnopqrstuvwxyz")
    assert bearer.value == "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    "text",
    [
        '{"product_id":"4111111111111111","shop_id":"5500005555555559","price":917123.45}',
        "2845236489, 3350592664 and 9171234567",
        "price 375-2000, 0-1000, 1234567.89, 0.99, 1e5",
        "12V 100Ah 4x4 1.2.3 v5.0.1.2 192.168.0.1 127.0.0.1 300.1.1.1",
        "call 0 917",
        "@home sale 50%@100",
        "SKU AB12CD34EF56GH78IJ90 model SM-G998B/DS token sort",
        "4111 1111 1111 1112",
        "DE89 3704 0044 0532 0130 01",
        "key: value password requirements",
    ],
)
def test_ids_prices_and_models_are_not_eaten(text: str) -> None:
    result = '{"product_id":"4111111111111111","shop_id":"5500005555555559"}'
    problem = made_problem("p", ("7001",))
    turns = [*good_turns("7001", text)]
    turns[1] = (text, (("view_product_information", {"product_ids": "1"}, result),), "")
    row = made_row("t", problem, turns)
    assert BOTH.judged(row) is row


def test_a_list_of_short_ids_is_no_card() -> None:
    """A compact world has 4-digit ids, and every tenth row of four of them passes Luhn."""
    problem = made_problem("p", ("7001",))
    turns = [("4111 1111 1111 1111 are all blue.", *good_turns("1111")[0][1:])]
    row = made_row("t", problem, [*turns, *good_turns("1111")[1:]])
    assert BOTH.judged(row) is row
    unseen = made_row("t", problem, [*turns, *good_turns("7001")[1:]], tools=())
    results = made_row("t", problem, [("4111 1111 1111 1111", *good_turns("7001")[0][1:])])
    assert "[PAYMENT_CARD_1]" in to_json(BOTH.judged(results)).decode()
    assert BOTH.judged(unseen) is unseen
    for run in ("4111 11111111 1111", "1 4111 1111 1111 1111", "4111 1111 1111 1111 1"):
        assert BOTH.find(run) == ()
    found = BOTH.find("378282246310005 or 3782-822463-10005")
    assert [finding.value for finding in found] == ["378282246310005"] * 2


def test_local_numbers_are_found_only_in_their_country() -> None:
    text = "text 09171234567 or (02) 8123 4567, injector 0445110186"
    assert [f.value for f in BOTH.find(text)] == ["+639171234567", "+63281234567"]
    assert Scrubber(("personal",), region="").find(text) == ()


def test_spellings_of_one_value_share_a_placeholder_through_the_whole_row() -> None:
    problem = made_problem("p", ("7001",), query="Mail Ana@X.example about mugs")
    note = "ana@x.example asked; bob@y.example too; call +639171234567"
    turns = list(good_turns("7001", note))
    turns[1] = (
        "ask 0917 123 4567",
        (("view_product_information", {"product_ids": "7001", "for": "ANA@x.example"}, "[]"),),
        "",
    )
    row = made_row("t", problem, turns)
    clean = BOTH.judged(row)
    text = to_json(clean).decode()
    assert not any(word in text.lower() for word in ("x.example", "y.example", "917"))
    assert placeholders(text) == {"email": 2, "phone": 1}
    assert clean.trajectory.query == "Mail [EMAIL_1] about mugs"
    assert "[EMAIL_1] asked; [EMAIL_2] too; call [PHONE_1]" in text
    assert '{\\"product_ids\\":\\"7001\\",\\"for\\":\\"[EMAIL_1]\\"}' in text
    assert BOTH.judged(row) == clean
    unjudged = Judged(trajectory=row.trajectory)
    assert BOTH.judged(unjudged).trajectory == clean.trajectory
    assert BOTH.judged(clean) is clean
    assert BOTH.problem(problem).query == clean.trajectory.query


def test_every_free_text_is_scrubbed_and_no_id_is_touched() -> None:
    secret = SECRETS["GITHUB_TOKEN"]
    row = made_row(secret, made_problem("p", ("7001",)), good_turns("7001", secret), agent=secret)
    reasoning = msgspec.structs.replace(row.verdicts.reasoning, explanation=f"cites {secret}")
    row = msgspec.structs.replace(
        row,
        verdicts=msgspec.structs.replace(row.verdicts, reasoning=reasoning),
        trajectory=msgspec.structs.replace(
            row.trajectory, answer=[secret], differences=(f"said {secret}",)
        ),
    )
    clean = BOTH.judged(row)
    plain = msgspec.to_builtins(clean)
    assert plain["trajectory"].pop("trajectory_id") == secret
    assert plain["trajectory"]["agent"].pop("name") == secret
    for verdict in (*plain["verdicts"]["outcomes"], *list(plain["verdicts"].values())[1:3]):
        verdict.pop("trajectory_id", None)
    assert secret not in json.dumps(plain)
    assert clean.trajectory.answer == ["[GITHUB_TOKEN_1]"]


def test_a_build_scrubs_and_counts(tmp_path: Path) -> None:
    problems = (*made_problems(3), made_problem("mail", ("7001",), query="Write to a@b.example"))
    rows = [
        made_row("t0", problems[0], good_turns("1000", "c@d.example c@d.example e@f.example")),
        made_row("t1", problems[1], success=False),
        made_row("t2", problems[3], good_turns("7001", SECRETS["GITHUB_TOKEN"])),
    ]
    config = CorpusConfig(scrub=("secrets", "personal"))
    funnel = build(rows, problems, config, tmp_path)
    assert funnel.kept == 2
    manifest = from_json((tmp_path / "manifest.json").read_bytes(), Provenance)
    scrubbed = {k: n for k, n in manifest.counts.items() if k.startswith("scrubbed:")}
    assert scrubbed == {"scrubbed:email": 3, "scrubbed:github_token": 1}
    for path in tmp_path.glob("*.json*"):
        assert b".example" not in path.read_bytes(), path


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phonenumbers", None)
    with pytest.raises(MissingDependencyError, match=r"palio\[scrub\]"):
        Scrubber(("personal",))
    monkeypatch.setitem(sys.modules, "detect_secrets.plugins.aws", None)
    with pytest.raises(MissingDependencyError, match=r"palio\[scrub\]"):
        Scrubber(("secrets",))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(key)
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


@pytest.mark.shared
def test_no_false_positive_on_real_tasks_products_and_rollouts(shared_data: Path) -> None:
    names = [*shared_data.glob("tasks_*.jsonl"), *shared_data.glob("real_rollouts_*.jsonl")]
    names += [shared_data / "products_real.jsonl", *shared_data.glob("oro_suite_v*.json")]
    wrong, seen = [], 0
    for path in names:
        data = path.read_text(encoding="utf-8")
        lines = [data] if path.suffix == ".json" else data.strip().split("\n")
        for line in lines:
            for text in strings(json.loads(line)):
                seen += 1
                wrong += [(path.name, f.kind, f.value) for f in BOTH.find(text)]
            whole = (
                [(path.name, f.kind, f.value) for f in BOTH.find(line)] if len(lines) > 1 else []
            )
            wrong += whole
    assert seen > 20_000
    assert wrong == []


def test_placeholders_read_as_they_are_written() -> None:
    assert PLACEHOLDER.findall("[EMAIL_1] [AWS_ACCESS_KEY_12] [email_1] [X]") == [
        ("EMAIL", "1"),
        ("AWS_ACCESS_KEY", "12"),
    ]
