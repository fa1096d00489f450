"""What a card says and no file can tell: title, licences, contact; unknown unless it is said."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from palio.corpus.origin import file_name
from palio.records import ConfigError, Record

UNKNOWN = "unknown"


class About(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """The author's part of a card.

    Attributes:
        title: "" takes the folder's name.
        summary: one or two sentences; "" says what palio knows.
        licence: of every source that `licences` does not name; an identifier of the Hugging Face
            Hub ("cc-by-4.0", "apache-2.0"), "unknown" by default.
        licences: source of the lineage ("rollout", "chat:day-3.jsonl", "salvage") or its file name
            -> licence.
        languages: ISO 639-1 codes.
        tags: beside those that every card has.
        homepage, contact, citation: "" leaves them out; take-down requests go to the contact.
        limits: sentences about what the corpus is not good for, after those that palio writes.
    """

    title: str = ""
    summary: str = ""
    licence: str = UNKNOWN
    licences: dict[str, str] = {}
    languages: tuple[str, ...] = ("en",)
    tags: tuple[str, ...] = ()
    homepage: str = ""
    contact: str = ""
    citation: str = ""
    limits: tuple[str, ...] = ()

    def licence_of(self, source: str) -> str:
        """The licence of a source."""
        named = self.licences.get(source) or self.licences.get(file_name(source) or source)
        return named or self.licence


def read_about(path: Path) -> About:
    """Read it from TOML.

    Raises:
        ConfigError: no TOML, an unknown key or a wrong type.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), About)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"not the author's part of a card: {error}",
            where=str(path),
            remedy="the keys are those of palio.corpus.card.About",
        ) from error
