"""What a run trains on: a certified corpus, of each problem the rows that show most work."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from palio.corpus.certificate import CERTIFICATE
from palio.corpus.rows import CorpusRow, read_rows
from palio.records import InputError, IntegrityError, bytes_digest, digest
from palio.suites.wordings import MEASURING
from palio.train.recipe import DataConfig, PretrainedModel
from palio.world.artefacts import MANIFEST, file_digest, read_manifest

LOG = logging.getLogger(__name__)


class Corpus(NamedTuple):
    """A corpus to train on.

    Attributes:
        path: the file of training rows.
        digests: "corpus" and, of a folder, "certificate".
    """

    path: Path
    digests: dict[str, str]

    def rows(self) -> Iterator[CorpusRow]:
        """Its training rows, each of them a conversation; one that stands twice is told.

        Raises:
            InputError: a row is none, or there is no row; names file, row and reason.
        """
        seen: dict[str, int] = {}
        again = 0
        for number, row in enumerate(read_rows(self.path), start=1):
            _check_row(row, f"{self.path}:{number}")
            again += row.trajectory_id in seen
            seen.setdefault(row.trajectory_id, number)
            yield row
        if not seen:
            raise InputError("the corpus has no rows", where=str(self.path))
        if again:
            LOG.warning(
                "%s: %d rows have the trajectory id of an earlier one, and count twice in training",
                self.path,
                again,
            )


def _check_row(row: CorpusRow, where: str) -> None:
    try:
        row.typed(), row.offered
    except InputError as error:
        raise InputError(
            f"trajectory {row.trajectory_id!r}: {error.what}",
            where=where,
            remedy="take the row out, or build the corpus again",
        ) from error


def open_corpus(corpus: Path, *, uncertified: bool = False) -> Corpus:
    """Find the training rows and the certificate of their split.

    Args:
        corpus: a corpus folder, or a file of rows.
        uncertified: take a corpus without a certificate.

    Raises:
        InputError: no such corpus, it has no certificate, or the file is that of a pool which
            measures.
        IntegrityError: rows or certificate are not those that the manifest lists.
    """
    path = corpus / "train.jsonl" if corpus.is_dir() else corpus
    if not path.is_file():
        raise InputError(
            "no such corpus file", where=str(path), remedy="run `palio corpus build` first"
        )
    certificate = path.parent / CERTIFICATE
    manifest = read_manifest(path.parent / MANIFEST)
    if path.stem in ("development", *MEASURING) and manifest is not None and not uncertified:
        raise InputError(
            f"these are the rows of pool {path.stem!r}, which is there to measure on",
            where=str(path),
            remedy=f"name the folder, {path.parent}: its training rows are taken; --uncertified "
            "trains on these all the same",
        )
    digests = {"corpus": file_digest(path)}
    if not certificate.is_file() or manifest is None:
        if uncertified:
            return Corpus(path, digests)
        raise InputError(
            "the corpus has no certificate that its pools share nothing",
            where=str(corpus),
            remedy="build it with `palio corpus build`, or say --uncertified",
        )
    digests["certificate"] = file_digest(certificate)
    for name, found in ((path.name, digests["corpus"]), (CERTIFICATE, digests["certificate"])):
        if manifest.outputs.get(name) != found:
            raise _changed(name, corpus)
    return Corpus(path, digests)


def check_listed(corpus: Path, *names: str) -> None:
    """Files of a corpus folder are those that its manifest lists; what it does not list may be any.

    Raises:
        IntegrityError: one was changed since the corpus was built, or is gone.
    """
    manifest = read_manifest(corpus / MANIFEST)
    for name in names:
        path, listed = corpus / name, manifest.outputs.get(name) if manifest else None
        if listed is not None and (not path.is_file() or listed != file_digest(path)):
            raise _changed(name, corpus)


def _changed(name: str, corpus: Path) -> IntegrityError:
    return IntegrityError(
        f"{name} is not the one that the corpus' manifest lists",
        where=str(corpus),
        remedy="build the corpus again, or take an untouched copy",
    )


def model_digests(model: PretrainedModel | None) -> dict[str, str]:
    """What a pretrained model begins with: "model", its own files, "tokenizer" and "template".

    The template is told where the recipe names one: a tokenizer's own is among its files. Of a hub
    name that this machine's cache holds, "revision", its commit, in the place of "model".

    Raises:
        ConfigError: there is no such template, or the revision is none of a hub name.
        MissingDependencyError: the package of the weights is not installed.
    """
    if model is None:
        return {}
    from palio.train.backends.codec import template_text
    from palio.train.backends.weights import base_commit, files_digest, tokenizer_digest

    template = template_text(model.template)
    found = {
        "model": files_digest(model),
        "revision": base_commit(model),
        "tokenizer": tokenizer_digest(model),
        "template": bytes_digest(template.encode()) if template else "",
    }
    return {name: told for name, told in found.items() if told}


def learned_digests(model: PretrainedModel | None, known: Mapping[str, str]) -> dict[str, str]:
    """The "revision" of a hub name that was not in the cache before its weights were loaded."""
    if model is None or known.keys() & {"model", "revision"}:
        return {}
    from palio.train.backends.weights import base_commit

    commit = base_commit(model)
    return {"revision": commit} if commit else {}


def chosen(rows: Iterable[CorpusRow], most: int) -> list[CorpusRow]:
    """The rows to train on, in corpus order.

    Args:
        rows: rows of a corpus.
        most: of one problem, those with the most thinking; 0: all.
    """
    held = list(rows)
    if not most:
        return held
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(held):
        places[row.problem_id].append(place)
    kept: list[int] = []
    for found in places.values():
        found.sort(key=lambda place: (-_thinking(held[place]), place))
        kept += found[:most]
    return [held[place] for place in sorted(kept)]


class Reserve:
    """Which problems a recipe holds back: a share of them, whole leak clusters at a time.

    Args:
        rows: of the corpus, for the clusters of problems; a problem without rows is its own.
        share: in [0, 1).
    """

    def __init__(self, rows: Iterable[CorpusRow], share: float) -> None:
        self._bound = int(share * 2**64)
        self._clusters = {row.problem_id: row.cluster_id for row in rows}

    def holds(self, problem_id: str) -> bool:
        """Whether the problem is held back; a cluster's answer never changes with the corpus."""
        cluster = self._clusters.get(problem_id) or problem_id
        return int(digest(["reserve", cluster])[7:23], 16) < self._bound


def taught(rows: Iterable[CorpusRow], data: DataConfig) -> tuple[list[CorpusRow], Reserve]:
    """The rows that stages are shown, and what is held back.

    Raises:
        InputError: everything is held back.
    """
    every = list(rows)
    reserve = Reserve(every, data.reserve)
    shown = [row for row in every if not reserve.holds(row.problem_id)]
    if every and not shown:
        raise InputError(
            f"reserve = {data.reserve} holds all {len(every)} rows back",
            remedy="take a smaller share or a larger corpus",
        )
    return chosen(shown, data.rows_a_problem), reserve


def _thinking(row: CorpusRow) -> int:
    return sum(len(message.get("reasoning_content") or "") for message in row.messages)
