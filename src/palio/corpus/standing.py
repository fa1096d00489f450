"""A finished corpus is verified before another one grows from it, and is never written to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from palio.corpus.build import read_pools
from palio.corpus.certificate import PROBLEM_FILE
from palio.corpus.config import CorpusConfig, checked
from palio.records import (
    ConfigError,
    InputError,
    IntegrityError,
    Problem,
    Provenance,
    ResumeError,
    from_json,
)
from palio.world.artefacts import MANIFEST, file_digest, read_manifest

PREVIOUS = "previous"
"""Name, among a manifest's inputs, of the manifest that a corpus was grown from."""


class Standing(NamedTuple):
    """A finished corpus that another one grows from.

    Attributes:
        folder: where it lies; it is only read.
        manifest: its manifest, whose digests were found right.
        config: its configuration, which its successors share.
    """

    folder: Path
    manifest: Provenance
    config: CorpusConfig

    def inputs(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Inputs of a successor: those of this corpus, the new ones, and this corpus itself."""
        own = {name: value for name, value in self.manifest.inputs.items() if ":" in name}
        return {**own, **(more or {}), PREVIOUS: file_digest(self.folder / MANIFEST)}

    def problems(self) -> tuple[Problem, ...]:
        """The problems that the corpus publishes, which are all but the never-touch ones.

        Raises:
            InputError: it publishes none, or not all of those that it split.
        """
        path = self.folder / PROBLEM_FILE
        lines = path.read_bytes().split(b"\n") if path.is_file() else []
        found = tuple(from_json(line, Problem, where=str(path)) for line in lines if line)
        hidden = read_pools(self.folder).keys() - {problem.problem_id for problem in found}
        if hidden:
            raise InputError(
                f"{len(hidden)} problems of the split are not published with the corpus",
                where=str(path),
                remedy="name the suites with --suite",
            )
        return found

    def refuse_as(self, out: Path) -> None:
        """Raise InputError when `out` is this very folder, which must stay as it is."""
        if out.resolve() == self.folder.resolve():
            raise InputError(
                "the new corpus would replace the one that it grows from",
                where=str(out),
                remedy="name another folder; an old version stays untouched",
            )


def standing(folder: Path, config: CorpusConfig | None = None) -> Standing:
    """Read and verify a corpus that is to be continued.

    Args:
        folder: a finished corpus.
        config: the configuration that the caller expects, None to take the corpus's own.

    Raises:
        InputError: it has no manifest.
        IntegrityError: a file differs from its digest in the manifest.
        ConfigError: this palio cannot read its configuration.
        ResumeError: `config` differs from its configuration; names the keys.
    """
    manifest = read_manifest(folder / MANIFEST)
    if manifest is None or manifest.kind != "corpus":
        raise InputError(
            "no corpus manifest here", where=str(folder), remedy="name a corpus folder"
        )
    for name, digest in manifest.outputs.items():
        path = folder / name
        if not path.is_file() or file_digest(path) != digest:
            raise IntegrityError(
                "differs from the manifest" if path.is_file() else "is in the manifest, not here",
                where=str(path),
                remedy="restore the file, or build the corpus again",
            )
    try:
        own = checked(msgspec.convert(manifest.config, CorpusConfig))
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"its configuration is of another palio: {error}",
            where=str(folder / MANIFEST),
            remedy="build the corpus again from all trajectories",
        ) from error
    if config is not None and config != own:
        fields = (field.name for field in msgspec.structs.fields(CorpusConfig))
        keys = [name for name in fields if getattr(config, name) != getattr(own, name)]
        raise ResumeError(
            f"the corpus was built with another {', '.join(keys)}",
            where=str(folder),
            remedy="leave --config out, or build the corpus again from all trajectories",
        )
    return Standing(folder, manifest, own)
