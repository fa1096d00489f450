"""Requests that mean the same in other words: cosines of an installed model, all pairs, no index.

Vectors are kept by model and by the digest of the text, so that a text is embedded once. Nothing is
downloaded: a model that is not installed is an error that names the packages.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from palio.records import ConfigError, InputError, Problem, Record
from palio.records.base import bytes_digest
from palio.suites.keys import normalise_text
from palio.world.artefacts import write_lines

Vectors = NDArray[np.float32]
CALIBRATED = "minilm-8199be6f699a"
"""The model whose thresholds the defaults are: name and digest of the weights."""
BLOCK = 1024
"""Rows of one product of matrices: 100,000 columns of it are 400 MB."""


class Embedder(Protocol):
    """Something that turns texts into unit vectors."""

    @property
    def model_id(self) -> str:
        """Name and digest of the model; part of the certificate and of the cache's key."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, float32, one row a text."""
        ...


class EmbeddingRule(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """From which cosine two requests are one problem, and from which they are kept together.

    The thresholds belong to a model, int8 all-MiniLM-L6-v2 (`CALIBRATED`), and were chosen on the
    404,529 pairs of the 900 public tasks that share no product: 4 of them reach 0.84 (rate 1e-5)
    and 40 reach 0.8025 (rate 1e-4). At 0.8025 closure already makes clusters of 11, and at 0.7339
    (rate 1e-3) 431 pairs of 900 tasks are suspected, so that hardly any problem could measure.
    `cosines_at` gives the thresholds of another model or suite; docs/leak-guard.md has the tables.
    """

    model: str = "minilm"
    cosine: float = 0.84
    weak_cosine: float = 0.8025

    def checked(self) -> EmbeddingRule:
        """The rule itself, once it makes sense.

        Raises:
            ConfigError: thresholds out of order, or a model that palio does not know.
        """
        if not 0 < self.weak_cosine <= self.cosine <= 1:
            raise ConfigError(
                f"0 < weak_cosine {self.weak_cosine} <= cosine {self.cosine} <= 1 does not hold"
            )
        if self.model != "minilm":
            raise ConfigError(f"no embedding model is named {self.model!r}", remedy="use minilm")
        return self


class MiniLmEmbedder:
    """all-MiniLM-L6-v2 through onnxruntime, from installed files.

    Raises:
        MissingDependencyError: a package or file is missing; the remedy names it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        from palio.judging.minilm import MiniLmEncoder

        self._encoder = MiniLmEncoder.load(folder)

    @property
    def model_id(self) -> str:
        """The encoder's id, which holds the digest of its weights."""
        return self._encoder.encoder_id

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors of the texts; 65 to 95 requests a second and core."""
        return np.array([self._encoder.vector(text) for text in texts], np.float32)


class VectorStore:
    """Vectors by content: `<folder>/<model id>.npz`, or in memory alone without a folder."""

    def __init__(self, embedder: Embedder, folder: Path | None = None) -> None:
        self._embedder = embedder
        self._path = folder / f"{embedder.model_id}.npz" if folder else None
        self._known: dict[str, Vectors] = {}
        if self._path is not None and self._path.is_file():
            self._load(self._path)

    @property
    def model_id(self) -> str:
        """Id of the model."""
        return self._embedder.model_id

    def _load(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as stored:
                self._known = dict(zip(stored["keys"].tolist(), stored["vectors"], strict=True))
        except (ValueError, OSError, KeyError) as error:
            raise InputError(
                f"not a file of vectors: {error}", where=str(path), remedy="delete it"
            ) from error

    def of(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts, normalised first; what is new is embedded and stored."""
        plain = [normalise_text(text) for text in texts]
        keys = [bytes_digest(text.encode()) for text in plain]
        fresh = {k: text for k, text in zip(keys, plain, strict=True) if k not in self._known}
        if fresh:
            found = self._embedder.embed(list(fresh.values()))
            self._known.update(zip(fresh, found, strict=True))
            self._save()
        if not keys:
            return np.zeros((0, 1), np.float32)
        return np.stack([self._known[key] for key in keys])

    def _save(self) -> None:
        if self._path is None:
            return
        buffer = io.BytesIO()
        keys = sorted(self._known)
        np.savez(buffer, keys=np.array(keys), vectors=np.stack([self._known[k] for k in keys]))
        write_lines(self._path, [buffer.getvalue()])


def vector_store(rule: EmbeddingRule | None, folder: Path | None = None) -> VectorStore | None:
    """The vectors of a rule's model, None without a rule.

    Raises:
        ConfigError: no such model.
        MissingDependencyError: it is not installed.
    """
    return None if rule is None else VectorStore(embedder_of(rule), folder)


def embedder_of(rule: EmbeddingRule) -> Embedder:
    """The model that a rule names.

    Raises:
        ConfigError: no such model.
        MissingDependencyError: it is not installed.
    """
    rule.checked()
    return MiniLmEmbedder()


def near_pairs(
    problems: Sequence[Problem], vectors: Vectors, least: float
) -> list[tuple[str, str, float]]:
    """All pairs of problems with a cosine of at least `least`, ids in order, sorted."""
    found = []
    for start in range(0, len(problems), BLOCK):
        cosines = vectors[start : start + BLOCK] @ vectors[start:].T
        for row, column in zip(*np.nonzero(cosines >= least), strict=True):
            if column > row:
                pair = sorted(
                    (problems[start + row].problem_id, problems[start + column].problem_id)
                )
                found.append((pair[0], pair[1], round(float(cosines[row, column]), 4)))
    return sorted(found)


def cosines_at(vectors: Vectors, rates: Sequence[float]) -> list[float]:
    """The cosines that a share of `rates` of all pairs of a suite exceeds; up to 20,000 rows."""
    upper = np.triu_indices(len(vectors), 1)
    ranked = np.sort((vectors @ vectors.T)[upper])[::-1]
    return [float(ranked[min(len(ranked) - 1, int(len(ranked) * rate))]) for rate in rates]
