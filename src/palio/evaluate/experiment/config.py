"""The laboratory: worlds, firehose, budgets and examination that all arms of all plans share."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import msgspec

from palio.agents.registry import find_agent
from palio.records import ConfigError, PalioError, Record, digest
from palio.suites.pools import SEALED
from palio.train.reading import load_recipe
from palio.train.recipe import Recipe

LAB_RECIPE = "lab"


class LabConfig(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Everything that decides a result but plan, arm and seed.

    Attributes:
        suite_seed: worlds, problems, pools and firehose follow from it; an auditor picks it.
        catalogues: worlds with their own brands.
        products: of each catalogue.
        problems: of each catalogue, evenly over product, shop and voucher.
        race_problems: of one more catalogue, on which the trained agent can race.
        train_share, development_share, heldout_share: of the split units; the rest is sealed.
        heldout_banks: paraphrase banks that no arm is trained on, nor any vocabulary made from:
            split units with a problem in one of them are measured on or sealed. Unset is none, and
            then the digest is that of a lab without the setting.
        agents: the population of the firehose on training problems.
        witnesses: agents on held-out problems, whose rows only the exposure arm may see.
        recipe: "lab", a bundled recipe's name or a path; its sft stage is given its tokens.
        loss_tokens: trained tokens of fine-tuning, equal for every arm.
        evaluated: problems of the examination, rounded up to as many of every kind.
        pool: where they come from; choices are made on "development", claims on "heldout".
        temperature: of sampled rollouts.
        device: where students are trained and examined, as torch names it; another device sums in
            another order, so it is another lab.
        workers: processes and threads; decides no result.
    """

    suite_seed: int = 1
    catalogues: int = 24
    products: int = 2_000
    problems: int = 400
    race_problems: int = 30
    train_share: float = 0.6
    development_share: float = 0.05
    heldout_share: float = 0.25
    heldout_banks: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    agents: tuple[str, ...] = ("careful", "terse", "sloppy", "hasty", "narrator", "classifier")
    witnesses: tuple[str, ...] = ("careful", "terse")
    recipe: str = LAB_RECIPE
    loss_tokens: int = 600_000
    evaluated: int = 2_000
    pool: str = "heldout"
    temperature: float = 1.0
    device: str = "cpu"
    workers: int = 2

    def __post_init__(self) -> None:
        named = tuple(sorted(set(self.heldout_banks or ())))
        msgspec.structs.force_setattr(self, "heldout_banks", named or msgspec.UNSET)

    @property
    def heldout_wordings(self) -> tuple[str, ...]:
        """`heldout_banks` as names, () where it is unset."""
        return self.heldout_banks or ()

    @property
    def seed(self) -> int:
        """What worlds are made from."""
        return self.suite_seed

    @property
    def banks(self) -> tuple[str, ...]:
        """The compact world's usual wordings; a plan leaves some out of training."""
        return ()

    @property
    def fractions(self) -> dict[str, float]:
        """Pool -> share."""
        named = self.train_share + self.development_share + self.heldout_share
        return {
            "train": self.train_share,
            "development": self.development_share,
            "heldout": self.heldout_share,
            SEALED: round(1.0 - named, 10),
        }

    def digest(self) -> str:
        """Digest of all that decides results; the number of workers does not."""
        return self._digest("workers")

    def design(self) -> str:
        """Digest of all but the device: labs that share it ask the same of other arithmetic."""
        return self._digest("workers", "device")

    def _digest(self, *without: str) -> str:
        plain = {k: v for k, v in msgspec.to_builtins(self).items() if k not in without}
        return digest([plain, self.recipe_of(0).digest()])

    def recipe_of(self, seed: int) -> Recipe:
        """The recipe with a run's seed.

        Raises:
            ConfigError: no such recipe, or it does not begin with a base and an sft stage.
        """
        name = self.recipe
        if name == LAB_RECIPE:
            with resources.as_file(resources.files(__package__).joinpath("lab.toml")) as path:
                recipe = load_recipe(str(path))
        else:
            recipe = load_recipe(name)
        if [stage.kind for stage in recipe.stages[:2]] != ["base", "sft"]:
            raise ConfigError("a lab's recipe begins with the stages base and sft", where=name)
        if recipe.data.reserve:
            raise ConfigError(
                "a lab draws the rows of each arm itself",
                where=name,
                remedy="leave `reserve` out of its recipe",
            )
        return msgspec.structs.replace(recipe, seed=recipe.seed + seed)


def read_lab(path: Path | None, suite_seed: int | None = None) -> LabConfig:
    """The defaults, with what a TOML file and the command line say otherwise.

    Raises:
        ConfigError: no TOML, an unknown key, a wrong type, or values that make no sense.
    """
    plain: dict[str, object] = {}
    if path is not None:
        try:
            plain = tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot be read: {error}", where=str(path)) from error
    if suite_seed is not None:
        plain["suite_seed"] = suite_seed
    try:
        return checked(msgspec.convert(plain, LabConfig))
    except msgspec.ValidationError as error:
        where = str(path or "")
        raise ConfigError(f"not a configuration of the lab: {error}", where=where) from error
    except PalioError as error:  # which setting it is, but not in which file
        remedy = error.remedy or "correct it in the configuration"
        raise type(error)(error.what, where=str(path or ""), remedy=remedy) from error


def checked(config: LabConfig) -> LabConfig:
    """The configuration itself, once it is known to make sense.

    Raises:
        ConfigError: names the setting that cannot be.
        InputError: there is no such agent.
    """
    if not all(0 < share < 1 for share in config.fractions.values()):
        raise ConfigError("train, development and held-out shares must leave a sealed one")
    if min(config.catalogues, config.products, config.problems, config.race_problems) < 1:
        raise ConfigError("catalogues, products, problems and race_problems from 1")
    if config.pool not in ("development", "heldout"):
        raise ConfigError(
            f"pool = {config.pool!r}",
            remedy="development or heldout; `palio experiment sealed` opens the sealed pool",
        )
    if config.loss_tokens < 1 or config.evaluated < 3 or config.workers < 1:
        raise ConfigError("loss_tokens and workers from 1, evaluated from 3")
    if not config.agents or not 0 < config.temperature <= 2:
        raise ConfigError("agents must not be empty, temperature in (0, 2]")
    for name in (*config.agents, *config.witnesses):
        find_agent(name)
    return config
