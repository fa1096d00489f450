"""All that is known of a corpus before a rule is applied: problems, their pools, their keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from palio.corpus.verify import texts
from palio.corpus.verify.alike import Requests, counted, weigh
from palio.corpus.verify.shapes import Finding, Row, Rules, Stated, Task

EXACT = ("problem", "product", "spec", "text", "family")
SHOWN = 3


@dataclass
class Evidence:
    """The corpus as it stands in the files.

    Attributes:
        tasks: problems by id, in id order; a row whose text is not its problem's brings one more.
        pools: problem id -> every pool that it stands in, by assignment or by a row.
        places: problem id -> places of its rows.
        weights: word weights.
        findings: grows while rules are applied.
        checked: rule -> how much was looked at.
    """

    stated: Stated
    tasks: dict[str, Task]
    pools: dict[str, set[str]]
    rows: list[Row]
    weights: dict[str, int]
    findings: list[Finding] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    keys: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.request_words = frozenset(self.stated.request_words)
        for row in self.rows:
            shown = f"{row.place} ({row.trajectory_id})"
            self.places.setdefault(row.problem_id, []).append(shown)
        self.keys = {rule: {} for rule in EXACT}
        for name, task in self.tasks.items():
            for rule, held in texts.keys(task).items():
                for key in held:
                    self.keys[rule].setdefault(key, []).append(name)
        self.families: dict[str, set[str]] = {}
        for family, holders in self.keys["family"].items():
            for name in holders:
                self.families.setdefault(name, set()).add(family)
        self.away = {each.problem for each in self.stated.quarantine}
        self.cannot = {frozenset(pair) for pair in self.rules.links.cannot}

    @property
    def rules(self) -> Rules:
        """How the clusters were to be drawn."""
        return self.stated.guard

    def requests(self, names: Iterable[str] | None = None) -> Requests:
        """Requests of these problems, of all by default; foreign words weigh as unheard of."""
        chosen = self.tasks if names is None else names
        held = {name: texts.content(self.tasks[name].query, self.request_words) for name in chosen}
        weights = dict(self.weights)
        for words in held.values():
            for word in words - weights.keys():
                weights[word] = weigh(word, self.stated.documents, 0)
        return Requests(held, weights)

    def leak(self, rule: str, what: str, one: str, other: str) -> None:
        """Add a finding about two problems, with places of their rows."""
        rows = [place for name in (one, other) for place in self.places.get(name, ())[:SHOWN]]
        self.findings.append(Finding(rule=rule, what=what, pair=(one, other), rows=tuple(rows)))

    def complain(self, rule: str, what: str, *rows: str) -> None:
        """Add a finding that is no leak between two problems."""
        self.findings.append(Finding(rule=rule, what=what, rows=rows))

    def apart(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Every problem that stands in another pool than the first one, paired with that one.

        A problem that itself stands in two pools is a pair with itself.
        """
        first, home = "", set[str]()
        pairs = []
        for name in names:
            pools = self.pools.get(name, set())
            if len(pools) > 1:
                pairs.append((name, name))
            elif not home:
                first, home = name, pools
            elif pools - home:
                pairs.append((first, name))
        return pairs

    def where(self, *names: str) -> str:
        """Problems with their pools, in words."""
        return " and ".join(
            f"{name!r} in {' and '.join(sorted(self.pools.get(name, ())))}"
            for name in dict.fromkeys(names)
        )

    def told_apart(self, one: str, other: str) -> bool:
        """Whether an operator, or known and different title families, tell two problems apart."""
        here, there = self.families.get(one, set()), self.families.get(other, set())
        made = self.rules.trust_families and bool(here) and bool(there) and not here & there
        return made or frozenset((one, other)) in self.cannot

    def all_told_apart(self) -> bool:
        """Whether every problem has a known family, so that texts say nothing of any two."""
        return self.rules.trust_families and len(self.families) == len(self.tasks)


def weights_of(tasks: Mapping[str, Task], stated: Stated) -> dict[str, int]:
    """Word weights counted from the published problems."""
    request_words = frozenset(stated.request_words)
    return counted({name: texts.content(task.query, request_words) for name, task in tasks.items()})
