"""A plan says before any run what is asked, how it is measured, and how it will be analysed.

Plans are TOML files beside this module; the digest of a plan stands in every result, so that a
result can never be read under another hypothesis than the one that it was made for.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from palio.records import ConfigError, Record, digest

Gate = Literal["outcome", "structural", "coefficient", "grounding"]
"""Families of corpus gates that an arm may ask for, in the order of the ladder."""

_FOLDER = re.compile(r"\w[\w.-]*")
GATES: tuple[Gate, ...] = ("outcome", "structural", "coefficient", "grounding")
Measure = Literal["asr", "pass@1", "exposed"]
"""asr: greedy success; pass@1: mean success of sampled rollouts; exposed: see `Arm.exposed`."""


class Arm(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """One treatment: which rows of the firehose a student is trained on, and what comes after.

    Attributes:
        agents: whose rows; empty = every agent of the firehose.
        gates: what a row must have passed.
        share: of the training problems, in (0, 1], chosen by digest so that shares are nested.
            Below 1 beside salvaged rows: of the agentic ones; salvaged ones are of the others.
        salvaged: share of the problems whose row is a salvaged one where there is one, in [0, 1].
        exposed: share of the held-out clusters whose rows are put into training, in [0, 1].
        copies: rows of each exposed problem, repeated where there are fewer different ones.
        banks_out: paraphrase banks whose problems are left out of training.
        tokens: share of the loss tokens of the lab, in (0, 1]; below 1 for arms at natural size.
        start: arm of this plan whose final checkpoint this one goes on from; "" = the base.
        stages: tables of further stages of the recipe, after (or without) fine-tuning.
        sft: whether fine-tuning on rows comes first.
    """

    name: str
    note: str = ""
    agents: tuple[str, ...] = ()
    gates: tuple[Gate, ...] = ()
    share: float = 1.0
    salvaged: float = 0.0
    exposed: float = 0.0
    copies: int = 1
    banks_out: tuple[str, ...] = ()
    tokens: float = 1.0
    start: str = ""
    stages: tuple[dict[str, Any], ...] = ()
    sft: bool = True


class Contrast(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """One comparison that was decided upon beforehand: `arm` minus `against`."""

    arm: str
    against: str


class Plan(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """One experiment.

    Attributes:
        question: what is asked, in a few words.
        hypothesis: what is expected.
        primary: the one quantity that decides.
        measure: how `primary` is computed.
        analysis: how the runs become an answer.
        support: "shared": arms are trained on the same problems, those with a row in every arm;
            "own": each arm takes what it has.
        seeds: runs of each arm in a complete pass.
        smallest: effect in rate points / 100 below which nobody would care.
        samples: rollouts a problem at the lab's temperature, on `sampled` problems; 0: greedy only.
        sampled: problems with samples.
        contrasts: all comparisons that are tested; together they are one Holm family.
    """

    name: str
    question: str
    hypothesis: str
    primary: str
    analysis: str
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...]
    measure: Measure = "asr"
    support: Literal["shared", "own"] = "shared"
    seeds: int = 5
    smallest: float = 0.03
    samples: int = 0
    sampled: int = 0

    def digest(self) -> str:
        """Digest over every field."""
        return digest(self)

    def arm(self, name: str) -> Arm:
        """The arm called `name`.

        Raises:
            ConfigError: there is none.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        known = ", ".join(arm.name for arm in self.arms)
        raise ConfigError(f"plan {self.name} has no arm {name!r}", remedy=f"choose from {known}")


def plan_names() -> tuple[str, ...]:
    """The plans that ship with palio, in the order in which `palio experiment` runs them."""
    found = [entry.name for entry in _plans().iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted(name.removesuffix(".toml") for name in found))


def load_plan(name: str) -> Plan:
    """A bundled plan by name, or a TOML file by path.

    Raises:
        ConfigError: no such plan, or one that contradicts itself.
    """
    bundled = _plans().joinpath(f"{name}.toml")
    try:
        text = bundled.read_text("utf-8") if bundled.is_file() else Path(name).read_text("utf-8")
        raw = tomllib.loads(text)
        return checked(msgspec.convert(_with_tables(raw), Plan))
    except (OSError, UnicodeDecodeError) as error:
        remedy = f"name a TOML file, or: {', '.join(plan_names())}"
        raise ConfigError("no such plan", where=name, remedy=remedy) from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"not a plan: {error}", where=name) from error
    except ConfigError as error:  # which arm it is, but not in which file
        place = f"{error.where}: " if error.where else ""
        remedy = error.remedy or "correct it in the file"
        raise ConfigError(f"{place}{error.what}", where=name, remedy=remedy) from error


def load_plans(names: Sequence[str]) -> list[Plan]:
    """Several plans by name or path, each by a name of its own; all bundled ones where none is.

    Raises:
        ConfigError: as `load_plan`, or two have one name: their runs would be in the same folders.
    """
    found: dict[str, tuple[str, Plan]] = {}
    for place in names or plan_names():
        plan = load_plan(place)
        if plan.name in found:
            raise ConfigError(
                f"two plans are called {plan.name!r}",
                where=f"{found[plan.name][0]}, {place}",
                remedy="give one of them another name, or name only one with --plan",
            )
        found[plan.name] = (place, plan)
    return [plan for _, plan in found.values()]


def _with_tables(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plan, of which a file writes two as tables: [[arm]] and [[contrast]].

    Raises:
        ConfigError: a table is called like its field, and would be lost.
    """
    tables = {"arms": "arm", "contrasts": "contrast"}
    for field, table in tables.items():
        if field in raw:
            raise ConfigError(f"`{field}` is no key of a plan", remedy=f"call it [[{table}]]")
    plain = {key: value for key, value in raw.items() if key not in tables.values()}
    return plain | {field: raw.get(table, []) for field, table in tables.items()}


def _plans() -> Any:
    return resources.files(__package__).joinpath("plans")


def checked(plan: Plan) -> Plan:
    """The plan itself, once it is known to make sense.

    Raises:
        ConfigError: names the arm or contrast that cannot be.
    """
    names = [arm.name for arm in plan.arms]
    if len(set(names)) < len(names) or not names:
        raise ConfigError(f"plan {plan.name}: arms need names, each its own")
    for arm in plan.arms:
        _check_arm(plan, arm, names[: names.index(arm.name)])
    if not plan.contrasts:
        raise ConfigError(
            f"plan {plan.name} compares nothing: it has no contrast",
            remedy="add [[contrast]] with `arm` and `against`",
        )
    for contrast in plan.contrasts:
        plan.arm(contrast.arm), plan.arm(contrast.against)
        if contrast.arm == contrast.against and plan.measure != "exposed":
            raise ConfigError(f"plan {plan.name}: {contrast.arm} is compared with itself")
    if plan.measure == "pass@1" and not (plan.samples and plan.sampled):
        raise ConfigError(f"plan {plan.name}: pass@1 needs samples and sampled")
    if len(set(plan.contrasts)) < len(plan.contrasts):
        raise ConfigError(f"plan {plan.name}: the same contrast stands there twice")
    if plan.measure == "exposed":
        _check_exposure(plan)
    if plan.samples < 0 or plan.sampled < 0:
        raise ConfigError(f"plan {plan.name}: samples and sampled from 0")
    if plan.seeds < 1 or not 0 < plan.smallest < 1:
        raise ConfigError(f"plan {plan.name}: seeds from 1, smallest in (0, 1)")
    return plan


def _check_exposure(plan: Plan) -> None:
    """The difference is within a run, so each arm needs problems on both sides of it."""
    for contrast in plan.contrasts:
        if contrast.arm != contrast.against:
            raise ConfigError(
                f"plan {plan.name}: {contrast.arm} is compared with {contrast.against}, and "
                "exposed is a difference within each run",
                remedy="name the same arm on both sides of the contrast",
            )
    for arm in plan.arms:
        if not 0 < arm.exposed < 1:
            raise ConfigError(
                "a plan whose measure is exposed needs `exposed` in (0, 1) in every arm",
                where=f"plan {plan.name}, arm {arm.name}",
            )


def _check_arm(plan: Plan, arm: Arm, earlier: list[str]) -> None:
    where = f"plan {plan.name}, arm {arm.name}"
    if not all(_FOLDER.fullmatch(name) for name in (plan.name, arm.name)):
        raise ConfigError(
            "names of plans and arms are folders: letters, digits, dots, - and _", where=where
        )
    if not (0 < arm.share <= 1 and 0 < arm.tokens <= 1):
        raise ConfigError("share and tokens must be in (0, 1]", where=where)
    if not (0 <= arm.salvaged <= 1 and 0 <= arm.exposed <= 1 and arm.copies >= 1):
        raise ConfigError("salvaged and exposed in [0, 1], copies from 1", where=where)
    if arm.start and arm.start not in earlier:
        raise ConfigError(f"starts from {arm.start!r}, which must come before it", where=where)
    if arm.start and not (arm.sft or arm.stages):
        raise ConfigError(f"is {arm.start!r} again: it trains nothing", where=where)
