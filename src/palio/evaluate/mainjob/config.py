"""The main job is one configuration; with its seed it is one result."""

from __future__ import annotations

import math
import tomllib
from importlib import resources
from pathlib import Path

import msgspec

from palio.agents.registry import find_agent
from palio.records import ConfigError, InputError, PalioError, Record
from palio.train.ranges import check_seed
from palio.world.synthesis.wording import banks_for, chosen_banks

PRODUCTS_A_PROBLEM = 6
"""Of the reworded problems' catalogue: targets, decoys and some background."""
MOST_REWORDED = 7_000 // PRODUCTS_A_PROBLEM
"""What fits into a compact catalogue, whose ids have four digits."""
RACERS = ("careful", "terse", "sloppy", "hasty", "narrator", "classifier", "shortcut", "crash")
"""Eight bundled agents that differ in kind; `shortcut` knows half of the race's answers."""


class MainJobConfig(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """What the main job makes, races, keeps, trains and measures; all in the compact world.

    Attributes:
        seed: decides worlds, split, training and sampling.
        catalogues: worlds with their own brands; training needs many, so that copying an unseen
            brand is learned rather than the brands.
        products: of each catalogue.
        problems: of each catalogue, evenly over product, shop and voucher.
        race_problems: of the race's own catalogue.
        banks: paraphrase banks of all these problems; empty = the world's usual ones.
        reworded: problems of one more catalogue in the words of the banks for measuring, which
            nothing trains on; 0: none.
        racers: bundled agents of the race.
        teachers: agents of the bulk rollout on every training problem.
        others: agents of the bulk rollout on every `others_every`-th training problem: what the
            filter has to tell apart.
        race_seconds: wall clock of one run in the race.
        race_parallel: runs at a time in the race.
        workers: processes of the bulk rollout and of judging.
        fractions: pool -> share of the problems.
        recipe: name of the bundled training recipe, or a path.
        training_minutes: 0: as the recipe says.
        evaluated: held-out problems, rounded up to as many of every kind.
        sampled: of these, problems with k samples.
        samples: k.
        temperature: of the samples.
    """

    seed: int = 7
    catalogues: int = 24
    products: int = 1_500
    problems: int = 300
    race_problems: int = 60
    banks: tuple[str, ...] = ()
    reworded: int = 300
    racers: tuple[str, ...] = RACERS
    teachers: tuple[str, ...] = ("careful", "terse")
    others: tuple[str, ...] = ("sloppy", "hasty", "narrator", "classifier")
    others_every: int = 3
    race_seconds: float = 30.0
    race_parallel: int = 4
    workers: int = 2
    train_share: float = 0.84
    development_share: float = 0.06
    recipe: str = "demo"
    training_minutes: float = 0.0
    evaluated: int = 450
    sampled: int = 60
    samples: int = 8
    temperature: float = 1.0

    def checked(self) -> MainJobConfig:
        """The configuration itself, once it is known to make sense.

        Raises:
            ConfigError: names the setting that cannot be.
        """
        if self.catalogues < 1 or self.problems < 3 or self.race_problems < 3:
            raise ConfigError("catalogues must be at least 1; problems, race_problems at least 3")
        if not 0 < self.train_share + self.development_share < 1:
            raise ConfigError("train_share + development_share must leave a held-out share")
        if self.samples < 1 or self.workers < 1 or self.race_parallel < 1 or self.others_every < 1:
            raise ConfigError("samples, workers, race_parallel, others_every must be at least 1")
        if not 0 <= self.reworded <= MOST_REWORDED:  # now, not when training is done
            raise ConfigError(f"reworded must be in 0 to {MOST_REWORDED:,}")
        measuring = set(self.banks) & set(banks_for("compact", "measuring"))
        if measuring:
            raise ConfigError(
                f"banks: {min(measuring)} is for measuring",
                remedy="nothing may train on it; leave it out",
            )
        chosen_banks("compact", self.banks)
        if self.evaluated < 1 or self.sampled < 1:
            raise ConfigError("evaluated and sampled must be at least 1")
        if self.train_share <= 0 or self.development_share <= 0:
            raise ConfigError("train_share and development_share must be above 0")
        if not (0 < self.temperature < math.inf and 0 < self.race_seconds < math.inf):
            raise ConfigError("temperature and race_seconds must be above 0 and finite")
        if not 0 <= self.training_minutes < math.inf:
            raise ConfigError("training_minutes must be 0 or more and finite")
        check_seed(self.seed, "seed")
        self._check_agents()
        return self

    def _check_agents(self) -> None:
        """Now rather than after minutes of work."""
        for setting in ("racers", "teachers", "others"):
            names = getattr(self, setting)
            if len(set(names)) < len(names) or not (names or setting == "others"):
                raise ConfigError(f"{setting} must name agents, each once")
            for name in names:
                try:
                    find_agent(name)
                except InputError as error:
                    raise ConfigError(f"{setting}: {error.what}", remedy=error.remedy) from error

    @property
    def fractions(self) -> dict[str, float]:
        """Pool -> share."""
        heldout = round(1.0 - self.train_share - self.development_share, 10)
        return {
            "train": self.train_share,
            "development": self.development_share,
            "heldout": heldout,
        }


JOBS = "jobs"
"""Folder of the configurations that ship, in this package."""


def bundled_jobs() -> tuple[str, ...]:
    """Names of the configurations that ship."""
    names = (file.name for file in resources.files(__package__).joinpath(JOBS).iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


def read_config(path: Path | None = None, seed: int | None = None) -> MainJobConfig:
    """The demo's configuration, changed by a TOML file and by a seed where they are given.

    Args:
        path: a file, or the name of a configuration that ships.
        seed: instead of the file's.

    Raises:
        ConfigError: the file is no TOML, or has an unknown key or a wrong type.
    """
    plain = {}
    if path is not None:
        try:
            bundled = resources.files(__package__).joinpath(JOBS, f"{path}.toml")
            source = bundled if bundled.is_file() else path
            plain = tomllib.loads(source.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(
                f"cannot be read as TOML: {error}",
                where=str(path),
                remedy=f"name a TOML file, or one that ships: {', '.join(bundled_jobs())}",
            ) from error
    if seed is not None:
        plain["seed"] = seed
    try:
        return msgspec.convert(plain, MainJobConfig).checked()
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"not a configuration of the main job: {error}",
            where=str(path or ""),
            remedy=f"the keys are {', '.join(MainJobConfig.__struct_fields__)}",
        ) from error
    except PalioError as error:  # which setting it is, but not in which file
        remedy = error.remedy or "correct it in the configuration"
        raise type(error)(error.what, where=str(path or ""), remedy=remedy) from error
