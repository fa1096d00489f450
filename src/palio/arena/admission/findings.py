"""What a static check says of a submission: a rule, how grave, in words, and where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from palio.records import Record

Severity = Literal["error", "warning"]
Concern = Literal["form", "security", "integrity"]

RULES: dict[str, tuple[Concern, str]] = {
    "size": ("form", "The file is small enough."),
    "encoding": ("form", "The file is UTF-8 text without NUL."),
    "syntax": ("form", "The file parses."),
    "complexity": ("form", "The file can be looked through in bounded time."),
    "contract": ("form", "The file defines agent_main(problem_data)."),
    "licence": ("form", "The file names its licence, where the arena asks for that."),
    "import": ("security", "Only modules that agents have a use for."),
    "dynamic-code": ("security", "No text is run as code."),
    "reflection": ("security", "No way from objects to frames, code, modules or builtins."),
    "file-write": ("security", "Nothing is written to disk."),
    "network": ("security", "No network but the proxy."),
    "obfuscation": ("security", "Names and texts are written as what they are."),
    "embedded-answers": ("integrity", "No answers in the file."),
    "encoded-data": ("integrity", "No data in a form that hides what it is."),
    "hash-lookup": ("integrity", "No table that is asked by a hash."),
    "one-strategy": ("integrity", "Behaviour depends on the problem alone."),
    "prompt-injection": ("integrity", "No text that speaks to the judge."),
    "duplicate": ("integrity", "Not the file of another submission."),
    "near-duplicate": ("integrity", "Not another submission with other names."),
}
"""Rule -> what it is about, and the promise that it guards."""


class Finding(Record, frozen=True, omit_defaults=False):
    """One broken rule; the form in which the arena answers CODE_ANALYSIS_ERROR.

    Attributes:
        rule: one of `RULES`.
        severity: an "error" rejects the submission, a "warning" is shown to people.
        line: from 1; 0 where the whole file is meant.
    """

    rule: str
    severity: Severity
    message: str
    line: int = 0


def rejected(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.severity == "error" for finding in findings)


def concern_of(findings: Iterable[Finding]) -> Concern | None:
    """What a rejection is about, the gravest first: it decides the cooldown. None: no rejection."""
    found = {RULES[finding.rule][0] for finding in findings if finding.severity == "error"}
    order: tuple[Concern, ...] = ("integrity", "security", "form")
    return next((concern for concern in order if concern in found), None)
