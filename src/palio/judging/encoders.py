"""Title similarity is one small interface; its id stands in every verdict, and it never guesses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from palio.judging.lexical import LexicalEncoder
from palio.records.base import bytes_digest
from palio.records.faults import ConfigError, InputError, MissingDependencyError, PalioError
from palio.records.verdict import Profile

QWEN_THRESHOLDS: dict[Profile, float] = {"upstream": 0.5, "oro": 0.7, "strict": 0.7}
"""Cosine of Qwen3-Embedding-0.6B at which a title is a hit; 24 % and 0.6 % of unrelated pairs of
130 real titles pass."""
QWEN_WEB_THRESHOLD = 0.8
ENCODERS = ("lexical", "minilm", "precomputed")
"""Names that `encoder_named` takes."""


class TitleUnavailableError(PalioError):
    """No vector for a title: the verdict is unscored, the title term is never dropped."""


@runtime_checkable
class TitleEncoder(Protocol):
    """Similarity of two product titles."""

    @property
    def encoder_id(self) -> str:
        """Name and version of everything that decides a similarity."""
        ...

    @property
    def thresholds(self) -> Mapping[Profile, float]:
        """Similarity from which a title counts as a hit, by profile."""
        ...

    @property
    def web_threshold(self) -> float:
        """The same for the web intent."""
        ...

    def similarity(self, a: str, b: str) -> float:
        """Cosine in [-1, 1], symmetric.

        Raises:
            TitleUnavailableError: the encoder has no vector for one of the titles.
        """
        ...


class StubEncoder:
    """Gives every pair the same similarity; for golden vectors and benchmarks, never for a race.

    The thresholds are those of the original scorers, 0.5 and 0.7.
    """

    thresholds: Mapping[Profile, float] = QWEN_THRESHOLDS
    web_threshold = QWEN_WEB_THRESHOLD

    def __init__(self, value: float = 1.0) -> None:
        self.value = value
        self.encoder_id = f"stub-{value:g}"

    def similarity(self, a: str, b: str) -> float:  # noqa: ARG002 - the stub looks at neither
        """`value`, whatever the titles are."""
        return self.value


class PrecomputedEncoder:
    """Cosine of vectors that were computed elsewhere; a title without a vector is an error.

    Args:
        vectors: title -> vector, all of one length, finite, not all zero.
        encoder_id: name of the model and digest of the file.
        thresholds: those of the model, by default Qwen3-Embedding-0.6B's.
    """

    def __init__(
        self,
        vectors: Mapping[str, tuple[float, ...]],
        encoder_id: str,
        thresholds: Mapping[Profile, float] = QWEN_THRESHOLDS,
        web_threshold: float = QWEN_WEB_THRESHOLD,
    ) -> None:
        self.encoder_id = encoder_id
        self.thresholds = thresholds
        self.web_threshold = web_threshold
        self._unit = {title: _unit(title, vector) for title, vector in vectors.items()}
        if len({len(vector) for vector in self._unit.values()}) > 1:
            raise InputError("title vectors differ in length", where=encoder_id)

    def __len__(self) -> int:
        return len(self._unit)

    def similarity(self, a: str, b: str) -> float:
        """Cosine of the two stored vectors; 1 for equal titles, stored or not."""
        if a == b:
            return 1.0
        return sum(x * y for x, y in zip(self._vector(a), self._vector(b), strict=True))

    def _vector(self, title: str) -> tuple[float, ...]:
        try:
            return self._unit[title]
        except KeyError:
            raise TitleUnavailableError(
                f"no stored vector for the title {title[:80]!r}",
                where=self.encoder_id,
                remedy="score with an encoder that embeds any title: --encoder lexical",
            ) from None


def _unit(title: str, vector: tuple[float, ...]) -> tuple[float, ...]:
    norm = math.sqrt(sum(x * x for x in vector))
    if not norm or not math.isfinite(norm):
        raise InputError(f"the vector of {title[:80]!r} is zero or not finite")
    return tuple(x / norm for x in vector)


def default_encoder() -> LexicalEncoder:
    """The offline default: words and character trigrams, no model, no download."""
    return LexicalEncoder()


def precomputed_encoder(path: Path) -> PrecomputedEncoder:
    """Vectors from a JSON object {title: [numbers]}; the id carries the file's digest.

    Raises:
        MissingDependencyError: there is no such file.
        InputError: the file is not such an object.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MissingDependencyError(
            f"cannot read the title vectors: {error}",
            where=str(path),
            remedy="name a JSON file {title: [numbers]}, or choose --encoder lexical",
        ) from error
    try:
        vectors = msgspec.json.decode(data, type=dict[str, tuple[float, ...]])
    except msgspec.DecodeError as error:
        raise InputError(f"not a JSON object of vectors: {error}", where=str(path)) from error
    return PrecomputedEncoder(vectors, f"precomputed-{bytes_digest(data)[7:19]}")


def minilm_encoder(folder: Path | None = None) -> TitleEncoder:
    """MiniLM through onnxruntime; see `palio.judging.minilm`.

    Raises:
        MissingDependencyError: onnxruntime, tokenizers or the model is not installed.
    """
    from palio.judging.minilm import MiniLmEncoder

    return MiniLmEncoder.load(folder)


def encoder_named(name: str, path: Path | None = None) -> TitleEncoder:
    """The encoder that a configuration asks for, or an error with the remedy; never another one.

    Args:
        name: one of `ENCODERS`.
        path: the vector file of "precomputed", the optional model folder of "minilm".
    """
    if name == "lexical":
        return default_encoder()
    if name == "minilm":
        return minilm_encoder(path)
    if name == "precomputed":
        if path is None:
            raise ConfigError("the precomputed encoder needs a file", remedy="--vectors FILE")
        return precomputed_encoder(path)
    raise ConfigError(f"no title encoder is named {name!r}", remedy=f"one of {', '.join(ENCODERS)}")
