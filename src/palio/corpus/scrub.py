"""Secrets and personal data in a row become placeholders, the same one for the same value.

Secrets are found by detect-secrets, telephone numbers by phonenumbers (Google's libphonenumber),
bank accounts and cards by the check digits of python-stdnum. Detectors that guess from entropy or
from words such as "key" are left out: product ids, SKUs and prices look like that. Names and postal
addresses are not searched for, since no small offline library finds them reliably.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from palio.records import MissingDependencyError, Problem, Trajectory
from palio.rollout.verdicts import Judged

PLACEHOLDER = re.compile(r"\[([A-Z][A-Z_]*)_(\d+)\]")
"""What a scrubbed value reads as, e.g. [EMAIL_2]: its kind, and its number within the row."""

_EMAIL = re.compile(r"\b[\w.+%-]{1,64}@(?:[a-z0-9-]{1,63}\.){1,4}[a-z]{2,24}\b", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]|\.\d)")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")
_CARD = re.compile(
    r"(?<![\w.-])(?<!\d )(?:\d{4}([ -]?)(?:\d{4}\1\d{4}\1\d{4}|\d{6}\1\d{5}))(?![\w-]|[ .]\d)"
)
_CARD_ISSUER = re.compile(r"4|5[1-5]|2[2-7]|3[47]|6(?:011|5|2)")
_PHONE_START = re.compile(r"\+\d|(?<![\w.,-])\(?0\d")
_ID = re.compile(r'(?:product_id|product_ids|shop_id|sku_id)\\*"\s*:\s*\\*"?([\d,\s]+)')
_TOKEN_END = re.compile(r"[A-Za-z0-9_\-]*")
_KEY_BLOCK = re.compile(
    r"-----BEGIN[A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END[^-]*-----|\Z)", re.S
)
_MODEL_KEYS = {
    "MODEL_API_KEY": (
        r"\bsk-(?:or-v1|ant|proj|svcacct)-[A-Za-z0-9_\-]{20,}",
        r"\bcpk_[A-Za-z0-9._\-]{30,}",
        r"\bhf_[A-Za-z0-9]{30,}",
        r"\bAIza[0-9A-Za-z_\-]{35}",
        r"\bgsk_[A-Za-z0-9]{40,}",
    ),
    "BEARER_TOKEN": (r"(?i:\bbearer\s+)([A-Za-z0-9._~+/\-]{20,}=*)",),
}
"""Keys of model servers, which agents hold and detect-secrets 1.5 does not know."""

DETECTORS = (
    *("aws.AWSKeyDetector", "azure_storage_key.AzureStorageKeyDetector"),
    *("basic_auth.BasicAuthDetector", "discord.DiscordBotTokenDetector"),
    *("github_token.GitHubTokenDetector", "gitlab_token.GitLabTokenDetector"),
    *("jwt.JwtTokenDetector", "mailchimp.MailchimpDetector", "npm.NpmDetector"),
    *("openai.OpenAIDetector", "pypi_token.PypiTokenDetector", "sendgrid.SendGridDetector"),
    *("slack.SlackDetector", "square_oauth.SquareOAuthDetector", "stripe.StripeDetector"),
    *("telegram_token.TelegramBotTokenDetector", "twilio.TwilioKeyDetector"),
)
"""The detectors of detect-secrets whose pattern is a format; 1.0 ms for 13 KB of text in all."""

PERSONAL = frozenset({"EMAIL", "PHONE", "IBAN", "PAYMENT_CARD", "IP_ADDRESS"})
"""The kinds of the group "personal"; every other kind is a secret."""

CACHED = 20_000
"""Texts whose findings are remembered: runs of one problem read the same tool results."""


class Finding(NamedTuple):
    """A span of a text to be replaced; `value` is equal for spellings of one value."""

    start: int
    end: int
    kind: str
    value: str


Finder = Callable[[str], Iterator[Finding]]


class Scrubber:
    """Replaces what its finders find in every free text of a row.

    Args:
        groups: "secrets", "personal", or both.
        region: country whose telephone numbers are known without their prefix, "" for none.

    Raises:
        MissingDependencyError: a library of the group is not installed.
    """

    def __init__(self, groups: Sequence[str], region: str = "PH") -> None:
        finders: list[Finder] = []
        if "secrets" in groups:
            finders += [_key_blocks, *_secret_finders()]
        if "personal" in groups:
            finders += _personal_finders(region)
        self._finders = tuple(finders)
        self.find = lru_cache(maxsize=CACHED)(self._find)

    def _find(self, text: str) -> tuple[Finding, ...]:
        """Findings in order of place; of overlapping ones a secret, then the first and longest."""
        found = sorted(
            {finding for finder in self._finders for finding in finder(text)},
            key=lambda f: (f.kind in PERSONAL, f.start, -f.end, f.kind),
        )
        kept: list[Finding] = []
        for finding in found:
            if all(finding.start >= held.end or finding.end <= held.start for held in kept):
                kept.append(finding)
        return tuple(sorted(kept))

    def judged(self, row: Judged) -> Judged:
        """The row without what was found; the very same object when nothing was."""
        plain = msgspec.to_builtins(row)
        texts = list(_texts(plain))
        if not any(self.find(text) for text in texts):
            return row
        naming = Naming(_catalogue_ids(row.trajectory))
        for text in texts:  # in reading order, so that numbers follow the conversation
            naming.learn(text, self.find(text))
        if not naming.names:
            return row
        return msgspec.convert(_rewritten(plain, self, naming), Judged)

    def problem(self, problem: Problem) -> Problem:
        """The problem with the same placeholders in its request as the rows have in theirs."""
        found = self.find(problem.query)
        if not found:
            return problem
        naming = Naming(frozenset())
        naming.learn(problem.query, found)
        return msgspec.structs.replace(problem, query=naming.replaced(problem.query, found))


class Naming:
    """Placeholders of one row: the n-th different value of a kind is [KIND_n].

    Attributes:
        names: (kind, value) -> placeholder.
    """

    def __init__(self, spared: frozenset[str]) -> None:
        self._spared = spared
        self.names: dict[tuple[str, str], str] = {}
        self._count: Counter[str] = Counter()

    def learn(self, text: str, found: Sequence[Finding]) -> None:
        """Number the values of a text that have no number yet."""
        for finding in found:
            if self._name(text, finding) is None and not self._is_spared(text, finding):
                self._count[finding.kind] += 1
                name = f"[{finding.kind}_{self._count[finding.kind]}]"
                self.names[finding.kind, finding.value] = name

    def replaced(self, text: str, found: Sequence[Finding]) -> str:
        """The text with placeholders for what was found."""
        parts, end = [], 0
        for finding in found:
            name = self._name(text, finding)
            if name is not None:
                parts += [text[end : finding.start], name]
                end = finding.end
        return "".join([*parts, text[end:]])

    def _name(self, text: str, finding: Finding) -> str | None:
        return None if self._is_spared(text, finding) else self.names.get(finding[2:])

    def _is_spared(self, text: str, finding: Finding) -> bool:
        """Whether it is an id of the catalogue, or a list of numbers that has one in it."""
        if not self._spared or not finding.value[-1].isdigit():
            return False
        whole = text[finding.start : finding.end]
        return whole in self._spared or not self._spared.isdisjoint(re.findall(r"\d+", whole))


def placeholders(text: str) -> Counter[str]:
    """How many different values each kind of placeholder in a text stands for."""
    names = {(match[1].lower(), match[2]) for match in PLACEHOLDER.finditer(text)}
    return Counter(kind for kind, _ in names)


_FREE = frozenset(
    {
        *("query", "content", "reasoning_content", "arguments", "answer", "params"),
        *("result", "error", "warnings", "differences", "what", "remedy"),
        *("notes", "quote", "question", "explanation", "description"),
    }
)
"""Fields that hold text of agents, models and tools, with all below them; the others hold ids."""


def _texts(row: dict[str, Any]) -> Iterator[str]:
    """Every free text: the request first, then the conversation, then everything else."""
    trajectory = row["trajectory"]
    yield trajectory["query"]
    yield from _strings(trajectory["messages"])
    yield from _strings(trajectory)
    yield from _strings(row.get("verdicts"))  # left out where nothing was judged


def _strings(value: Any, *, free: bool = False) -> Iterator[str]:
    if isinstance(value, str):
        if free:
            yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(inner, free=free or key in _FREE)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner, free=free)


def _rewritten(value: Any, scrubber: Scrubber, naming: Naming, *, free: bool = False) -> Any:
    if isinstance(value, str):
        return naming.replaced(value, scrubber.find(value)) if free else value
    if isinstance(value, dict):
        return {
            key: _rewritten(inner, scrubber, naming, free=free or key in _FREE)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_rewritten(inner, scrubber, naming, free=free) for inner in value]
    return value


def _catalogue_ids(trajectory: Trajectory) -> frozenset[str]:
    """Ids that the catalogue itself told: never personal, whatever digits they have."""
    results = [message.content or "" for message in trajectory.messages if message.role == "tool"]
    results += [event.result for event in trajectory.dispatches]
    found = (match[1] for text in results for match in _ID.finditer(text))
    return frozenset(name for run in found for name in re.split(r"[,\s]+", run) if name)


def _key_blocks(text: str) -> Iterator[Finding]:
    for match in _KEY_BLOCK.finditer(text):
        yield Finding(*match.span(), "PRIVATE_KEY", match[0])


def _secret_finders() -> list[Finder]:
    try:
        import importlib

        plugins = [
            getattr(importlib.import_module(f"detect_secrets.plugins.{name}"), detector)()
            for name, detector in (path.split(".") for path in DETECTORS)
        ]
    except ImportError as error:
        raise _missing("secrets", error) from error
    finders = []
    for plugin in plugins:
        kind = re.sub(r"[^A-Z]+", "_", plugin.secret_type.upper()).strip("_")
        patterns = tuple(re.compile(p.pattern, p.flags) for p in plugin.denylist)
        finders.append(_by_patterns(kind, patterns, grouped=kind == "BASIC_AUTH_CREDENTIALS"))
    for kind, sources in _MODEL_KEYS.items():
        patterns = tuple(re.compile(source) for source in sources)
        finders.append(_by_patterns(kind, patterns, grouped=kind == "BEARER_TOKEN"))
    return finders


def _by_patterns(kind: str, patterns: tuple[re.Pattern[str], ...], *, grouped: bool) -> Finder:
    """Whole matches, drawn out to the end of the token; or the first group alone."""

    def find(text: str) -> Iterator[Finding]:
        for pattern in patterns:
            for match in pattern.finditer(text):
                start, end = match.span(1 if grouped else 0)
                if not grouped and (rest := _TOKEN_END.match(text, end)):
                    end = rest.end()
                yield Finding(start, end, kind, text[start:end])

    return find


def _personal_finders(region: str) -> list[Finder]:
    try:
        import phonenumbers
        from stdnum import iban, luhn
    except ImportError as error:
        raise _missing("personal", error) from error

    def phones(text: str) -> Iterator[Finding]:
        if not _PHONE_START.search(text):  # the matcher takes 5 ms for 13 KB
            return
        for match in phonenumbers.PhoneNumberMatcher(text, region or None):
            raw, number = match.raw_string, match.number
            start = match.start + (raw.startswith("(") and ")" not in raw)
            kind = phonenumbers.number_type(number)
            if _is_written_as_phone(raw, kind == phonenumbers.PhoneNumberType.MOBILE):
                form = phonenumbers.PhoneNumberFormat.E164
                yield Finding(start, match.end, "PHONE", phonenumbers.format_number(number, form))

    def emails(text: str) -> Iterator[Finding]:
        if "@" in text:
            for match in _EMAIL.finditer(text):
                yield Finding(*match.span(), "EMAIL", match[0].lower())

    def accounts(text: str) -> Iterator[Finding]:
        for match in _IBAN.finditer(text):
            if iban.is_valid(match[0]):
                yield Finding(*match.span(), "IBAN", iban.compact(match[0]))

    def cards(text: str) -> Iterator[Finding]:
        for match in _CARD.finditer(text):
            digits = re.sub(r"\D", "", match[0])
            if len(digits) in (15, 16) and _CARD_ISSUER.match(digits) and luhn.is_valid(digits):
                yield Finding(*match.span(), "PAYMENT_CARD", digits)

    return [phones, emails, accounts, cards, _addresses]


def _is_written_as_phone(raw: str, mobile: bool) -> bool:
    """Whether a valid number is written as one, and not as an id, a price or a part number.

    Without a country prefix it must start with the trunk 0, and without any space or bracket be a
    mobile number: "0445110186" in the public tasks is a fuel injector and a valid land line.
    """
    bare = raw.lstrip("(")
    if bare.startswith("+"):
        return True
    return bare.startswith("0") and "." not in raw and (mobile or not bare.isdigit())


def _addresses(text: str) -> Iterator[Finding]:
    for match in _IPV4.finditer(text):
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            continue
        if address.is_global:
            yield Finding(*match.span(), "IP_ADDRESS", match[0])


def _missing(group: str, error: ImportError) -> MissingDependencyError:
    return MissingDependencyError(
        f"scrubbing {group} needs {error.name}, which is not installed",
        remedy="pip install 'palio[scrub]', or leave it out of `scrub` in the configuration",
    )
