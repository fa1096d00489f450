"""A generated world on disk: equal configurations give byte-identical files, the manifest last."""

from __future__ import annotations

from pathlib import Path

import msgspec

from palio import __version__
from palio.records import Provenance, Suite, digest, to_json
from palio.world.artefacts import MANIFEST, file_digest, write_lines, write_manifest
from palio.world.catalogue import PRODUCTS, catalogue_lines
from palio.world.synthesis.synthesise import Synthesis

DECOYS = "decoys.jsonl"
FAMILIES = "families.json"


def suite_of(synthesis: Synthesis) -> Suite:
    """The problems as a suite named after the catalogue; its version is the generator's."""
    return Suite(
        suite_id=synthesis.config.name,
        version=synthesis.config.generator,
        problems=synthesis.problems,
    )


def write_synthesis(synthesis: Synthesis, out: Path, also: tuple[str, ...] = ()) -> Provenance:
    """Write the catalogue, its families and decoys into a folder that `read_catalogue` reads.

    Args:
        synthesis: what to write.
        out: the folder, made where it is missing.
        also: names of files already written there, such as the suite's, to stand in the manifest.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / PRODUCTS, catalogue_lines(synthesis.catalogue.products.values()))
    write_lines(out / DECOYS, [to_json(decoy) + b"\n" for decoy in synthesis.decoys])
    families = dict(sorted(synthesis.families.items()))
    write_lines(out / FAMILIES, [msgspec.json.encode(families) + b"\n"])
    config = msgspec.to_builtins(synthesis.config)
    manifest = Provenance(
        kind="catalogue",
        tool_version=__version__,
        config={"catalogue_id": synthesis.config.name, "synthesis": config},
        config_digest=digest(config),
        outputs={name: file_digest(out / name) for name in (PRODUCTS, DECOYS, FAMILIES, *also)},
        counts={
            "kept": len(synthesis.catalogue),
            "problems": len(synthesis.problems),
            "decoys": len(synthesis.decoys),
        },
        seed=synthesis.config.seed,
    )
    write_manifest(manifest, out / MANIFEST)
    return manifest
